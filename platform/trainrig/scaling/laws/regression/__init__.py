"""Fits of the forms by regression of log loss, with their checks and intervals."""
