"""The supervisor of a job: retries by cause, limits, cost, log, last word."""
