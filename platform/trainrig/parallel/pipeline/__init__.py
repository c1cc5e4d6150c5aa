"""Pipeline parallelism: each rank of an axis has some layers, and micro-batches flow through."""
