"""Submits runs to clusters, follows them there, and keeps them within their budget."""
