"""Following, listing, stopping and resubmitting of runs."""
