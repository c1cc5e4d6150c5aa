"""Memory that tuning needs in addition to pretraining: rows, other models, sampling."""
