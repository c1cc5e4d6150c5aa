"""What a vocabulary is worth: measures, charts, a page."""
