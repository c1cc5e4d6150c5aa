"""Texts with labels, and questions with answers in a text: rows, batches, and what is told."""
