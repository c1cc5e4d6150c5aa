"""Child processes, fork servers, leases, heartbeats, stop requests and append-only logs."""
