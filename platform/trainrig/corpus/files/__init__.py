"""Files that the stages of a curation exchange."""
