"""Decisions on which documents are dropped as duplicates of which others."""
