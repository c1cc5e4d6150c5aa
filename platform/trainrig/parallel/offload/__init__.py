"""What of a step lies in the host's memory instead of the device's."""

from trainrig.parallel.offload.settings import Offload

__all__ = ["Offload"]
