"""Which blocks of a page are its text, by gradient-boosted trees over whole numbers."""
