"""What a device has of that which `training.offload` keeps in the host's memory."""

import heapq
from collections.abc import Iterable
from dataclasses import dataclass

from trainrig.estimate.held_parameters import HeldParameter, ModelRole
from trainrig.parallel.offload import Offload
from trainrig.train.run_file.training import Training

SLOTS = 2  # of optim/hosted/lanes.py, which imports torch
WHOLE = ("Adafactor", "Muon")  # which update as many parameters at once as there are slices


def settle_offload(training: Training, on_cpu: bool) -> Training:
    """`training` as it is on devices of their own memory; on CPUs, whose memory is the host's, with
    nothing offloaded."""
    return training.model_copy(update={"offload": Offload()}) if on_cpu else training


@dataclass(frozen=True)
class UnderWay:
    """What is remembered of parameters that are updated one after another, by an optimizer whose
    memory is the host's."""

    # Bytes of each parameter, and of each stack of experts.
    kept: tuple[int, ...]
    experts: tuple[int, ...]
    whole: bool  # whether whole matrices are updated, as many at once as there are slices

    @classmethod
    def of(cls, held: Iterable[HeldParameter], role: ModelRole, experts: str = "\0") -> "UnderWay":
        """That of parameters of such a `role`; `experts`: what is in the names of stacks that are
        sliced over fewer devices than the rest."""
        kinds = {group.optimizer.kind for group in role.groups if group.optimizer}
        kinds |= {role.optimizer.kind} if role.optimizer else set()
        found = list(held)
        return cls(
            kept=tuple(each.optimizer for each in found if experts not in each.name),
            experts=tuple(each.optimizer for each in found if experts in each.name),
            whole=not kinds.isdisjoint(WHOLE),
        )

    def estimate_bytes(self, over: int, fewer: int) -> float:
        """Of a device while it updates, at most: parameters are sliced over `over` devices, stacks
        of experts over `fewer`."""
        many = SLOTS * (over if self.whole else 1)
        slices = [each / over for each in self.kept] + [each / fewer for each in self.experts]
        return sum(heapq.nlargest(many, slices))
