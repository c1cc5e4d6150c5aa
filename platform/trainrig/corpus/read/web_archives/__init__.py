"""Web archives, WARC and ARC: their records, and the HTTP responses in them."""
