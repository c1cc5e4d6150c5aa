"""Records of runs in storage: attempts, events, progress, and the clusters they ran on."""
