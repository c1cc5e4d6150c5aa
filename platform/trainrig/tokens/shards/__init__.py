"""Arrays of ids, on disk and in buckets."""
