"""Compute-optimal sizes by the published approaches: envelope, isoFLOP and Kaplan's."""
