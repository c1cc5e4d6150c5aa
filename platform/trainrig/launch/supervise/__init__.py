"""The job supervisor: retries by cause, limits, cost, log, final event."""
