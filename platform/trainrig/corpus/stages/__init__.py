"""The stages of a curation: read pages, apply rules, deduplicate, remove spans, write documents."""
