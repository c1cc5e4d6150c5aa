"""Signals and keys computed from a document's URL alone: block lists, normal form, duplicates."""
