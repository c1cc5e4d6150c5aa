"""Likelihood and generation requests to a model, in batches that do not depend on the workers."""
