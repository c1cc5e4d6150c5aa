"""Estimates of what a run needs: operations, memory, hours and money, on which devices."""
