"""Submission of a run: checks beforehand, upload of the package, and the Ray job."""
