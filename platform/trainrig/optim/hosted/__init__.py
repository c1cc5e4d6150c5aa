"""Optimizers whose memory is the host's, of which the device has a few parameters' at a time."""

from trainrig.optim.hosted.optimizer import HostedOptimizer

__all__ = ["HostedOptimizer"]
