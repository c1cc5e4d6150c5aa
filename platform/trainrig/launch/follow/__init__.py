"""Runs under way: logs followed, jobs listed, stopped, submitted again."""
