"""Submission: all that can be checked before it, the upload, the job."""
