"""Estimates of what a run needs: memory, time and money, on which devices and in which layout."""
