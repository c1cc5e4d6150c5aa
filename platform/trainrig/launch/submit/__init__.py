"""Submission of runs: checks, upload and Ray job; following, stopping and listing of runs."""
