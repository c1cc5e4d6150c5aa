"""Micro-batches on their way through the stages of a pipeline, forward and backward.

A stage is sent hidden states by the one before it, and their gradient by the one after it. Messages
of the two directions have process groups of their own: in each they come in the order in which they
were sent, so no schedule can have two neighbours wait for each other.

torch.distributed.pipelining has schedules too. They cut one batch themselves, add up gradients of
all of it, and take one loss function; here a step has micro-batches of several virtual workers,
whose gradients are added in a tree, and objectives with terms and denominators of their own.

Shapes: B rows of a micro-batch, T positions, C channels.
"""

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from trainrig.objectives.contract import Computed, DeviceBatch, Objective
from trainrig.parallel.mesh import Axis, WorkerMesh
from trainrig.parallel.phase_clock import PhaseClock
from trainrig.parallel.pipeline.stage import StageDecoder
from trainrig.tokens.batches import IDS, POSITIONS


@dataclass(eq=False)
class StagePass:
    """What a stage keeps of one micro-batch from its forward to its backward pass."""

    computed: Computed | None  # by the last stage
    received: Tensor | None = None  # hidden states of the stage before, a leaf
    hidden: Tensor | None = None  # those that the stage after was sent
    going: dist.Work | None = None


class StagePasses:
    """The passes of one rank's stage; without a pipeline it is all of the model. The ranks of a
    pipeline call the same methods for the same micro-batches."""

    def __init__(self, model: nn.Module, mesh: WorkerMesh, clock: PhaseClock | None = None) -> None:
        """`clock`: times what is waited for."""
        self._waiting = clock.waiting if clock else contextlib.nullcontext
        self._model, self._ahead, self._back = model, mesh.pipeline, mesh.pipeline_back
        self._last = self._ahead.rank == self._ahead.size - 1
        self._going: tuple[dist.Work, Tensor] | None = None  # the newest gradient sent back

    def forward(
        self, objective: Objective, batch: DeviceBatch, statistics: Mapping[str, float]
    ) -> StagePass:
        """Of `batch`, whose terms by `objective` the last stage computes."""
        if self._ahead.group is None:
            return StagePass(objective.compute(self._model, batch, statistics))
        received = self._receive_hidden(batch)
        stage = _Fed(self._model, received)
        if self._last:
            return StagePass(objective.compute(stage, batch, statistics), received)
        hidden = stage(batch.arrays[IDS], positions_BT=batch.arrays.get(POSITIONS)).hidden
        group, after = self._ahead.group, self._ahead.rank + 1
        going = dist.isend(hidden.detach().contiguous(), group=group, group_dst=after)
        return StagePass(None, received, hidden, going)

    def _receive_hidden(self, batch: DeviceBatch) -> Tensor | None:
        """[B, T, C] of the stage before; None: this is the first."""
        if self._ahead.rank == 0:
            return None
        ids_BT = batch.arrays[IDS]
        assert isinstance(self._model, StageDecoder)
        shape = (*ids_BT.shape, self._model.shape.channels)
        hidden = torch.empty(shape, dtype=self._model.stream, device=ids_BT.device)
        with self._waiting():
            dist.recv(hidden, group=self._ahead.group, group_src=self._ahead.rank - 1)
        return hidden.requires_grad_(torch.is_grad_enabled())

    def look(
        self, objective: Objective, batch: DeviceBatch, statistics: Mapping[str, float]
    ) -> Computed | None:
        """The terms of `batch`, on the ranks of the last stage, without a backward pass to come."""
        passed = self.forward(objective, batch, statistics)
        if passed.going is not None:
            passed.going.wait()
        return passed.computed

    def loss_of(self, passed: StagePass) -> Tensor:
        """A scalar, 0, for a stage that is not the last to go backward from: its backward pass is
        that of the gradient which the stage after sends."""
        assert passed.hidden is not None and passed.going is not None
        gradient = torch.empty_like(passed.hidden, memory_format=torch.contiguous_format)
        with self._waiting():
            passed.going.wait()  # it was received: a gradient comes for it
            dist.recv(gradient, group=self._back.group, group_src=self._back.rank + 1)
        loss: Tensor = _Given.apply(passed.hidden, gradient)  # type: ignore[no-untyped-call]
        return loss

    def send_back(self, passed: StagePass) -> None:
        """Its backward pass is done: send the gradient to the stage before."""
        if passed.received is None:
            return
        self.settle()
        gradient = passed.received.grad
        assert gradient is not None
        gradient = gradient.contiguous()
        group, before = self._back.group, self._back.rank - 1
        work = dist.isend(gradient, group=group, group_dst=before)
        assert work is not None
        self._going = work, gradient

    def settle(self) -> None:
        """Return once what was sent back was received."""
        if self._going:
            with self._waiting():
                self._going[0].wait()
            self._going = None


class _Fed(nn.Module):
    """A stage as objectives call a model; what they give it as ids is `hidden` instead, if that was
    received."""

    def __init__(self, model: nn.Module, hidden: Tensor | None) -> None:
        super().__init__()
        self._call = model.__call__  # of no sub-module
        self._hidden = hidden

    def forward(self, ids_BT: Tensor, positions_BT: Tensor | None = None) -> Any:
        """What the stage gives."""
        given = ids_BT if self._hidden is None else self._hidden
        return self._call(given, positions_BT=positions_BT)


class _Given(torch.autograd.Function):
    """0, of which what was computed before has a gradient that is given."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, gradient: Tensor) -> Tensor:
        ctx.gradient = gradient
        return hidden.new_zeros(())

    @staticmethod
    def backward(ctx: Any, of_scalar: Tensor) -> tuple[Tensor, None]:
        return ctx.gradient * of_scalar, None


def add_shared(gradient: Tensor, axis: Axis) -> None:
    """Make of `gradient`, of a weight that the first and the last of `axis` have alike, the sum of
    both. The two call it, each with the same slice."""
    other = axis.size - 1 if axis.rank == 0 else 0
    theirs = torch.empty_like(gradient)
    for work in dist.batch_isend_irecv(
        [
            dist.P2POp(dist.isend, gradient.contiguous(), group=axis.group, group_peer=other),
            dist.P2POp(dist.irecv, theirs, group=axis.group, group_peer=other),
        ]
    ):
        work.wait()
    gradient.add_(theirs)  # in either order the same bits
