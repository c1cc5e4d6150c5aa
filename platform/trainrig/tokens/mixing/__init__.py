"""The order in which rows are trained on."""
