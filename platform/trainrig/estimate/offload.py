"""Device memory for what `training.offload` keeps in the host's memory."""

import heapq
from collections.abc import Iterable
from dataclasses import dataclass

from trainrig.estimate.held_parameters import HeldParameter, ModelRole
from trainrig.parallel.recompute import Offload
from trainrig.train.run_file.training_settings import Training

SLOTS = 2  # number of slots in optim/hosted.py, which imports torch
# Optimizers that update as many parameters at once as there are slices.
WHOLE = ("Adafactor", "Muon")


def resolve_offload(training: Training, on_cpu: bool) -> Training:
    """Return `training` without offloading if it runs on CPUs, whose memory is the host's."""
    return training.model_copy(update={"offload": Offload()}) if on_cpu else training


@dataclass(frozen=True)
class UpdateState:
    """Optimizer state on the device while parameters are updated one after another.

    The rest of the state is in the host's memory.
    """

    # Bytes of optimizer state of each parameter, and of each stack of experts.
    kept: tuple[int, ...]
    experts: tuple[int, ...]
    whole: bool  # whole matrices are updated, as many at once as there are slices

    @classmethod
    def of(
        cls, held: Iterable[HeldParameter], role: ModelRole, experts: str = "\0"
    ) -> "UpdateState":
        """Return the optimizer state of the `held` parameters of a model with the given `role`.

        `experts` is a part of the names of stacks that are sharded over fewer devices than the
        rest.
        """
        kinds = {group.optimizer.kind for group in role.groups if group.optimizer}
        kinds |= {role.optimizer.kind} if role.optimizer else set()
        found = list(held)
        return cls(
            kept=tuple(parameter.optimizer for parameter in found if experts not in parameter.name),
            experts=tuple(parameter.optimizer for parameter in found if experts in parameter.name),
            whole=not kinds.isdisjoint(WHOLE),
        )

    def estimate_bytes(self, over: int, fewer: int) -> float:
        """Return the most bytes on a device during an update.

        Parameters are sharded over `over` devices, stacks of experts over `fewer`.
        """
        many = SLOTS * (over if self.whole else 1)
        slices = [size / over for size in self.kept] + [size / fewer for size in self.experts]
        return sum(heapq.nlargest(many, slices))
