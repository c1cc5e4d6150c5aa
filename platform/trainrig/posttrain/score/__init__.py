"""Scoring of the rows of files with reward models and classifiers."""
