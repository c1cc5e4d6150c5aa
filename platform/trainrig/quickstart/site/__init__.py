"""The web archives of the quickstart: pages made of this machine's Python."""
