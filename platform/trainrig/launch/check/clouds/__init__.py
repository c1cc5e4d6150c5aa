"""Checks of cluster files for AWS, Google Cloud and one laptop."""
