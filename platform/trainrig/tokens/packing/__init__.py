"""Packing of documents into rows of equal length."""
