"""The lineage of a checkpoint in the formats of other tools, and as a picture on a page."""
