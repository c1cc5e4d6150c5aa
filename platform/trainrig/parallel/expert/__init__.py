"""Expert parallelism: each rank of an axis has some of the experts of every layer."""
