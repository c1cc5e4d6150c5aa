"""Projects: folders of run files that `trainrig init` writes for given data and `run` executes."""
