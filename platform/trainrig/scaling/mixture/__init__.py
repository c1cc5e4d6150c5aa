"""Fit of losses of small runs on different mixtures of sources, to propose a better mixture."""
