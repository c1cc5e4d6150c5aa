"""A tuned model beside the one it was: what both say, and what was forgotten."""
