"""Time and memory of a step in every parallel layout, and the search for the fastest one."""
