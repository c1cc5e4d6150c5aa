"""Optimizers with state in the host's memory; the device has that of a few parameters at a time."""

from trainrig.optim.hosted.optimizer import HostedOptimizer

__all__ = ["HostedOptimizer"]
