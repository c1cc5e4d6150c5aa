"""The whole path on one machine, on pages made of the local Python installation."""
