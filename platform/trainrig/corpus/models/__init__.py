"""Models of quality: what text is like, by models that a user trains or names."""
