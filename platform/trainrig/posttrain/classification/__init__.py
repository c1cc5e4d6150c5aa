"""Text classification and extractive question answering: rows, batches and prediction."""
