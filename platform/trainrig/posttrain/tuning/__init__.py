"""Fine-tuning on conversations, preferences, labels and a teacher: batches, references, memory."""
