"""Exchange with Hugging Face: model folders and PEFT adapters, exported and imported."""
