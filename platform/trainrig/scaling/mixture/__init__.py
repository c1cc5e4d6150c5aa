"""From the losses of many small runs on different mixtures of sources to a better mixture."""
