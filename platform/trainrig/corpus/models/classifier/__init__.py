"""Classifiers of texts: learnt from texts that are wanted and texts that are not."""
