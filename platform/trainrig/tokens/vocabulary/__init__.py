"""The report on a trained tokenizer: measurements, charts, and the page."""
