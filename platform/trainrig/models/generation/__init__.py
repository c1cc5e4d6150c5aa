"""Writing on from prompts: how the next token is drawn, and what is kept of those before."""
