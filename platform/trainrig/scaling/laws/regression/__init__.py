"""Laws as regressions of log loss: minimised, checked, with intervals."""
