"""Parts of the command line that several commands share."""
