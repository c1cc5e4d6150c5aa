"""The library behind `import trainrig`: stages as functions, opened checkpoints, runs and data."""
