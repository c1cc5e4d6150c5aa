"""Submission of runs to clusters, with supervision and a budget for each run."""
