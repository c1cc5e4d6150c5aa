"""Providers of machines: EC2, Compute Engine, Kubernetes, and this machine."""
