"""Low-rank adapters (LoRA, DoRA) on frozen weights: settings and layers."""
