"""Groups of ranks, and the tasks that tests run on them."""
