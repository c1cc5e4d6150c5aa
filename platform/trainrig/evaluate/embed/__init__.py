"""The stage `embed`, which computes a vector for each document with a trained model."""
