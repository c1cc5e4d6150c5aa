"""How documents become rows."""
