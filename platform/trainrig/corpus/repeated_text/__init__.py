"""Removal of text that a corpus repeats: common lines and exact substrings."""
