"""Offload of optimizer state and activations to the host's memory."""

from trainrig.parallel.offload.settings import Offload

__all__ = ["Offload"]
