"""Pages taken back from a pretraining run: what it takes, the replay, and its certificate."""
