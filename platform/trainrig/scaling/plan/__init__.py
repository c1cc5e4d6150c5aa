"""Plans: from a law and a budget to a run file."""
