"""Micro-batches on their way through the stages of a pipeline, forward and backward.

A stage is sent hidden states by the one before it, and their gradient by the one after it. Messages
of the two directions have process groups of their own: in each they come in the order in which they
were sent, so no schedule can have two neighbours wait for each other. So have those between the
last rank and the first, where ranks have several stages: of two ranks each is before the other.

torch.distributed.pipelining has schedules too. They cut one batch themselves, add up gradients of
all of it, and take one loss function; here a step has micro-batches of several virtual workers,
whose gradients are added in a tree, and objectives with terms and denominators of their own.

Shapes: B rows of a micro-batch, T positions, C channels.
"""

import contextlib
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from trainrig.models.moe import find_text
from trainrig.objectives.contract import Computed, DeviceBatch, Objective, ReadingIds
from trainrig.objectives.log_probabilities import stack_rows
from trainrig.parallel.mesh import Axis, WorkerMesh
from trainrig.parallel.phase_clock import PhaseClock
from trainrig.parallel.pipeline.stage import StageDecoder
from trainrig.tokens.batches import (
    CHOSEN_IDS,
    CHOSEN_TARGETS,
    IDS,
    IGNORE,
    POSITIONS,
    REJECTED_IDS,
    REJECTED_TARGETS,
    STEP_LABELS,
    TARGETS,
)

# Gradients that a rank has sent back and that may still be to be received. With one, ranks that
# have several stages would wait for each other (tests/parallel/test_pipeline.py).
GRADIENTS_UNDER_WAY = 2


@dataclass(eq=False)
class StagePass:
    """What a stage keeps of one micro-batch from its forward to its backward pass."""

    computed: Computed | None  # by the last stage
    chunk: int = 0  # which of this rank's stages
    # What the stage before sent, leaves: hidden states, and what routers gave if there are any.
    received: Sequence[Tensor] = ()
    given: Sequence[Tensor] = ()  # what the stage after was sent
    going: Sequence[dist.Work] = ()


class StagePasses:
    """The passes of one rank's stages; without a pipeline it is all of the model. The ranks of a
    pipeline call the same methods for the same micro-batches."""

    def __init__(self, model: nn.Module, mesh: WorkerMesh, clock: PhaseClock | None = None) -> None:
        """`clock`: times what is waited for."""
        self._waiting = clock.time_waiting if clock else contextlib.nullcontext
        self._model, self._alone = model, mesh.pipeline.group is None
        self._axis = mesh.pipeline
        self._names: tuple[str, ...] | None = None  # of diagnostics; None: not told yet
        self._to_next, self._from_next = _find_lane(mesh, 1, False), _find_lane(mesh, 1, True)
        self._to_previous, self._from_previous = (
            _find_lane(mesh, -1, True),
            _find_lane(mesh, -1, False),
        )
        # Gradients sent back, those of the oldest micro-batch first.
        self._going: deque[list[tuple[dist.Work, Tensor]]] = deque()

    def forward(
        self,
        objective: Objective,
        batch: DeviceBatch,
        statistics: Mapping[str, float],
        chunk: int = 0,
    ) -> StagePass:
        """Of `batch` through this rank's stage `chunk`; the last stage computes its terms by
        `objective`."""
        if self._alone:
            return StagePass(objective.compute(self._model, batch, statistics))
        model = self._model
        assert isinstance(model, StageDecoder)
        ids_BT, positions_BT = _find_inputs(objective, batch)
        received = () if model.begins(chunk) else self._receive(model, ids_BT, chunk)
        model.begin(chunk, received)
        stage = _Plain(model, _find_text(objective, batch) if model.counts_padding else None)
        if model.ends(chunk):
            return StagePass(objective.compute(stage, batch, statistics), chunk, received)
        output = stage(ids_BT, positions_BT=positions_BT)
        given = (output.hidden, *output.auxiliary.values())
        going = [self._to_next.send(each.detach().contiguous()) for each in given]
        return StagePass(None, chunk, received, given, going)

    def _receive(self, model: StageDecoder, ids_BT: Tensor, chunk: int) -> tuple[Tensor, ...]:
        """[B, t, C] of the stage before; and what routers gave, if there are any before it."""
        shape, device = model.stream_shape(ids_BT), ids_BT.device
        received = [torch.empty(shape, dtype=model.stream, device=device)]
        routers = model.router_shape(model.stages[chunk].start)
        if routers[0]:
            received.append(torch.empty(routers, device=device))
        with self._waiting():
            for each in received:
                self._from_previous.receive(each)
        return tuple(each.requires_grad_(torch.is_grad_enabled()) for each in received)

    def auxiliary(self) -> Mapping[str, Tensor]:
        """Zeros, by the names of what the last stage gives beside terms; {} on its rank, which
        comes to know of them, and without a pipeline."""
        model = self._model
        return model.auxiliary() if isinstance(model, StageDecoder) and not model.last else {}

    def share_names(self, diagnostics: tuple[str, ...]) -> tuple[str, ...]:
        """The names of the `diagnostics` that the rank of the last stage has computed, on all ranks
        of the pipeline, which call it; told once."""
        if self._alone:
            return diagnostics
        if self._names is None:
            told = [diagnostics]
            axis = self._axis
            dist.broadcast_object_list(told, group=axis.group, group_src=axis.size - 1)
            self._names = told[0]
        return self._names

    def look(
        self, objective: Objective, batch: DeviceBatch, statistics: Mapping[str, float]
    ) -> Computed | None:
        """The terms of `batch`, on the rank of the last stage, without a backward pass to come."""
        computed = None
        for chunk in range(count_chunks(self._model)):
            passed = self.forward(objective, batch, statistics, chunk)
            for work in passed.going:
                work.wait()
            computed = passed.computed
        return computed

    def receive_loss(self, passed: StagePass) -> Tensor:
        """A scalar, 0, for a stage that is not the last to go backward from: its backward pass is
        that of the gradient which the stage after sends."""
        gradients = [
            torch.empty_like(each, memory_format=torch.contiguous_format) for each in passed.given
        ]
        with self._waiting():
            for work in passed.going:
                work.wait()  # it was received: a gradient comes for it
            for each in gradients:
                self._from_next.receive(each)
        losses: list[Tensor] = [
            _Given.apply(each, gradient)  # type: ignore[no-untyped-call]
            for each, gradient in zip(passed.given, gradients, strict=True)
        ]
        return sum(losses[1:], start=losses[0])

    def send_back(self, passed: StagePass) -> None:
        """Its backward pass is done: send the gradient to the stage before."""
        if not passed.received:
            return
        self._settle(GRADIENTS_UNDER_WAY - 1)
        # Of routers that add nothing to the loss there is none.
        gradients = [
            torch.zeros_like(each) if each.grad is None else each.grad.contiguous()
            for each in passed.received
        ]
        self._going.append([(self._to_previous.send(each), each) for each in gradients])

    def settle(self) -> None:
        """Return once all that was sent back was received."""
        self._settle(0)

    def _settle(self, left: int) -> None:
        while len(self._going) > left:
            with self._waiting():
                for work, _ in self._going.popleft():
                    work.wait()


def _find_inputs(objective: Objective, batch: DeviceBatch) -> tuple[Tensor, Tensor | None]:
    """[R, T] ids that `objective` has its model read of `batch`, and their positions; None: each
    row is one document."""
    if not isinstance(objective, ReadingIds):
        return batch.arrays[IDS], batch.arrays.get(POSITIONS)
    ids_RT = objective.read_ids(batch)
    if batch.parts is None:
        return ids_RT, None
    positions_BT = batch.parts.positions_BT  # of one of the answers that are below one another
    return ids_RT, positions_BT.repeat(len(ids_RT) // len(positions_BT), 1)


def _find_text(objective: Objective, batch: DeviceBatch) -> Tensor | None:
    """Return which places of the rows that `objective` has its model read are not padding [R, T].

    None if all places have targets. All stages have to agree, and objectives tell the last alone.
    """
    if batch.all_targets:
        return None
    arrays = batch.arrays
    if isinstance(objective, ReadingIds):
        chosen = arrays[CHOSEN_IDS], arrays[CHOSEN_TARGETS]
        rejected = arrays[REJECTED_IDS], arrays[REJECTED_TARGETS]
        _, targets_RT = stack_rows(chosen, rejected)
    else:
        targets_RT = arrays[STEP_LABELS if STEP_LABELS in arrays else TARGETS]
    return find_text(targets_RT != IGNORE)


def count_chunks(model: nn.Module) -> int:
    """How many stages of a pipeline this rank has of `model`; 1: all of it is one."""
    return len(model.stages) if isinstance(model, StageDecoder) else 1


@dataclass(frozen=True)
class _Lane:
    """What goes to a neighbour, or comes from it, in one direction."""

    group: dist.ProcessGroup | None
    peer: int  # its place in `group`

    def send(self, tensor: Tensor) -> dist.Work:
        """Begin to."""
        work = dist.isend(tensor, group=self.group, group_dst=self.peer)
        assert work is not None
        return work

    def receive(self, tensor: Tensor) -> None:
        """Fill `tensor`."""
        dist.recv(tensor, group=self.group, group_src=self.peer)


def _find_lane(mesh: WorkerMesh, step: int, back: bool) -> _Lane:
    """To or from the rank `step` places on; `back`: of gradients."""
    axis = mesh.pipeline
    place = axis.rank + step
    beside = mesh.pipeline_back if back else axis
    around = mesh.pipeline_round_back if back else mesh.pipeline_round
    group = beside.group if 0 <= place < axis.size else around.group
    return _Lane(group, place % axis.size)


class _Plain(nn.Module):
    """A stage as objectives call a model, with what all stages can be given alone: a text in
    branches, say, the last stage would read by itself."""

    def __init__(self, model: nn.Module, text_BT: Tensor | None) -> None:
        """`text_BT`: see `Decoder.forward`; the same in all stages."""
        super().__init__()
        self._call = model.__call__  # of no sub-module
        self._text_BT = text_BT

    def forward(
        self, ids_BT: Tensor, positions_BT: Tensor | None = None, places_N: Tensor | None = None
    ) -> Any:
        """What the stage gives."""
        return self._call(
            ids_BT, positions_BT=positions_BT, places_N=places_N, text_BT=self._text_BT
        )


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
