"""Records of runs in a home: attempts, events, progress, clusters they ran on."""
