"""Import and export of LoRA adapters as Hugging Face PEFT folders."""
