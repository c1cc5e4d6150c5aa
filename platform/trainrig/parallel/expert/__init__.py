"""Expert parallelism: the ranks of an axis each have some of the experts of every layer."""
