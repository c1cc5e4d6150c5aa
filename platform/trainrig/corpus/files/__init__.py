"""Files that stages of a curation leave for each other."""
