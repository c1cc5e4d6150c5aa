"""From a pretrained checkpoint to one that answers."""
