"""Division of a model over ranks: context, expert, pipeline and tensor parallelism."""
