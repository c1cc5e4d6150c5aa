"""Gradients on one rank: GPU kernels, and mixed precision without FSDP."""
