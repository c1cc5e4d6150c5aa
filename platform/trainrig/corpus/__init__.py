"""From a crawl to documents: read, extract, judge, deduplicate, mask. Ray is in `curate` alone."""
