"""The command `trainrig fit`: fits and comparisons of scaling laws, and their report pages."""
