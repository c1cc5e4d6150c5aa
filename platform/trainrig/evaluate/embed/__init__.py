"""The stage `embed`: a vector for each document, by a trained model."""
