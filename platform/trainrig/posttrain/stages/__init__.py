"""Stages that run a model over prompts or rows: `sample`, `constitutional`, `teacher`, `score`."""
