"""Training runs looked at from outside: listed, watched, traced to their pages, averaged."""
