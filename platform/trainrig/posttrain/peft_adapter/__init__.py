"""Adapters to folders of Hugging Face's PEFT and back."""
