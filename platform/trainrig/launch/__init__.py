"""Gets runs onto machines, follows them there, and pays no more than was allowed."""
