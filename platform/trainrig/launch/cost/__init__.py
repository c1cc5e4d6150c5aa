"""What a run has cost: nodes metered, money and time spent."""
