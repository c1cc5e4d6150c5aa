"""The stages of a curation, in their order: read, apply rules, deduplicate, cut, write."""
