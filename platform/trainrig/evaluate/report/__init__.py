"""Scorecards as pages to be read: of one checkpoint, of two or more, of a folder of them."""
