"""Objectives that train on rows other than those of next-token prediction, one file each."""
