"""Scores of tasks, with standard errors and intervals, computed from scored rows."""
