"""Rules that drop documents: thresholds over stored signals, so that they can be applied again."""
