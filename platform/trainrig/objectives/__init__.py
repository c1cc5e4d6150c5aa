"""Floor 2: what training makes small, as functions of logits and targets."""
