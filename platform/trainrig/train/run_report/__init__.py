"""The report of a training run: its page and its charts."""
