"""Supervision of runs: records in storage, and the supervisor with retries, limits and cost."""
