"""Run files of training runs: their settings and the checks of them."""
