"""What tuning takes of a device beside what pretraining does: rows, other models, sampling."""
