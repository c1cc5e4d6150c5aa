"""What changes a text rather than judging it."""
