"""What becomes of gradients on one rank: a GPU's kernels, and mixed precision without FSDP."""
