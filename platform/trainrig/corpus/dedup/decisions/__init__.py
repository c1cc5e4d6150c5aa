"""Which documents fall as duplicates of which."""
