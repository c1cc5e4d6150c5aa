"""Whose machines a cluster is made of: EC2, Compute Engine, Kubernetes, this one."""
