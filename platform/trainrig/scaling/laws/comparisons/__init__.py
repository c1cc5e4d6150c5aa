"""Comparisons of scaling laws across corpora and across training objectives."""
