"""trainrig: raw web pages to an aligned language model on an elastic Ray cluster."""

__version__ = "0.2.0"
