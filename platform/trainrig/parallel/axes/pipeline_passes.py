"""Forward and backward passes of micro-batches through the stages of a pipeline.

A stage receives hidden states from the stage before it, and their gradient from the stage after it.
The two directions have process groups of their own. Within each, messages arrive in the order in
which they were sent, so no schedule makes two neighbours wait for each other. The links between the
last rank and the first, where ranks have several stages, also have their own groups: with two
ranks, each is before the other.

torch.distributed.pipelining has schedules too. They split one batch themselves, accumulate the
gradients of all of it, and take one loss function. Here a step has micro-batches of several virtual
workers, whose gradients are added in a tree, and objectives with terms and denominators of their
own.

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
from trainrig.objectives.objective_interface import Computed, DeviceBatch, Objective, ReadingRows
from trainrig.parallel.axes.pipeline_stage import StageDecoder
from trainrig.parallel.mesh import Axis, WorkerMesh
from trainrig.parallel.phase_clock import PhaseClock
from trainrig.tokens import batches

# Number of gradients that a rank has sent back and that may not be received yet. With one, ranks
# with several stages would wait for each other (tests/parallel/test_pipeline.py).
GRADIENTS_UNDER_WAY = 2


@dataclass(eq=False)
class StagePass:
    """State that a stage keeps of one micro-batch from its forward to its backward pass."""

    computed: Computed | None  # loss terms, on the last stage only
    chunk: int = 0  # number of this rank's stage
    # Leaf tensors from the stage before: hidden states, and router outputs if there are any.
    received: Sequence[Tensor] = ()
    given: Sequence[Tensor] = ()  # tensors sent to the stage after
    going: Sequence[dist.Work] = ()


class StagePasses:
    """Passes through one rank's stages; without a pipeline, through the whole model.

    The ranks of a pipeline call the same methods for the same micro-batches.
    """

    def __init__(self, model: nn.Module, mesh: WorkerMesh, clock: PhaseClock | None = None) -> None:
        """`clock`: times the waiting for other stages."""
        self._waiting = clock.time_waiting if clock else contextlib.nullcontext
        self._model = model
        self._alone = mesh.pipeline.group is None
        self._axis = mesh.pipeline
        self._names: tuple[str, ...] | None = None  # names of diagnostics; None: not yet known
        self._to_next = _find_lane(mesh, 1, False)
        self._from_next = _find_lane(mesh, 1, True)
        self._to_previous = _find_lane(mesh, -1, True)
        self._from_previous = _find_lane(mesh, -1, False)
        # Gradients sent back that may not be received yet, the oldest micro-batch first.
        self._going: deque[list[tuple[dist.Work, Tensor]]] = deque()

    def forward(
        self,
        objective: Objective,
        batch: DeviceBatch,
        statistics: Mapping[str, float],
        chunk: int = 0,
    ) -> StagePass:
        """Run `batch` through this rank's stage `chunk`.

        The last stage computes the loss terms of `objective`. `statistics`: see
        `Objective.compute`.
        """
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
        going = [self._to_next.send(tensor.detach().contiguous()) for tensor in given]
        return StagePass(None, chunk, received, given, going)

    def _receive(self, model: StageDecoder, ids_BT: Tensor, chunk: int) -> tuple[Tensor, ...]:
        """Receive hidden states [B, t, C] from the stage before, and router outputs, if any."""
        shape = model.stream_shape(ids_BT)
        device = ids_BT.device
        received = [torch.empty(shape, dtype=model.stream, device=device)]
        routers = model.router_shape(model.stages[chunk].start)
        if routers[0]:
            received.append(torch.empty(routers, device=device))
        with self._waiting():
            for tensor in received:
                self._from_previous.receive(tensor)
        return tuple(tensor.requires_grad_(torch.is_grad_enabled()) for tensor in received)

    def auxiliary(self) -> Mapping[str, Tensor]:
        """Return zeros under the names of the last stage's additional loss terms.

        Empty on the rank of the last stage, which computes the terms, and without a pipeline.
        """
        model = self._model
        return model.auxiliary() if isinstance(model, StageDecoder) and not model.last else {}

    def share_names(self, diagnostics: tuple[str, ...]) -> tuple[str, ...]:
        """Return, on all ranks of the pipeline, the names of the last stage's `diagnostics`.

        Collective at the first call; the names are then remembered.
        """
        if self._alone:
            return diagnostics
        if self._names is None:
            told = [diagnostics]
            axis = self._axis
            dist.broadcast_object_list(told, group=axis.group, group_src=axis.size - 1)
            self._names = told[0]
        return self._names

    def run_forward(
        self, objective: Objective, batch: DeviceBatch, statistics: Mapping[str, float]
    ) -> Computed | None:
        """Run `batch` forward only, and return its loss terms on the rank of the last stage."""
        computed = None
        for chunk in range(count_chunks(self._model)):
            passed = self.forward(objective, batch, statistics, chunk)
            for work in passed.going:
                work.wait()
            computed = passed.computed
        return computed

    def receive_loss(self, passed: StagePass) -> Tensor:
        """Return a scalar 0 whose backward pass uses the gradients that the stage after sends.

        For stages that are not the last.
        """
        gradients = [
            torch.empty_like(output, memory_format=torch.contiguous_format)
            for output in passed.given
        ]
        with self._waiting():
            for work in passed.going:
                work.wait()  # once received, a gradient will come back
            for gradient in gradients:
                self._from_next.receive(gradient)
        losses: list[Tensor] = [
            _Given.apply(output, gradient)  # type: ignore[no-untyped-call]
            for output, gradient in zip(passed.given, gradients, strict=True)
        ]
        return sum(losses[1:], start=losses[0])

    def send_back(self, passed: StagePass) -> None:
        """Send the gradient of the stage's input to the stage before, after a backward pass."""
        if not passed.received:
            return
        self._settle(GRADIENTS_UNDER_WAY - 1)
        # Routers that add nothing to the loss have no gradient.
        gradients = [
            torch.zeros_like(tensor) if tensor.grad is None else tensor.grad.contiguous()
            for tensor in passed.received
        ]
        self._going.append([(self._to_previous.send(gradient), gradient) for gradient in gradients])

    def settle(self) -> None:
        """Wait until all gradients that were sent back are received."""
        self._settle(0)

    def _settle(self, left: int) -> None:
        while len(self._going) > left:
            with self._waiting():
                for work, _ in self._going.popleft():
                    work.wait()


def _find_inputs(objective: Objective, batch: DeviceBatch) -> tuple[Tensor, Tensor | None]:
    """Return the ids [R, T] that `objective` makes the model read, and their positions.

    Positions are None if each row is one document.
    """
    if not isinstance(objective, ReadingRows):
        return batch.arrays[batches.IDS], batch.arrays.get(batches.POSITIONS)
    ids_RT, _ = objective.read_rows(batch)
    if batch.parts is None:
        return ids_RT, None
    # the positions of one answer; the answers are stacked along the rows
    positions_BT = batch.parts.positions_BT
    return ids_RT, positions_BT.repeat(len(ids_RT) // len(positions_BT), 1)


def _find_text(objective: Objective, batch: DeviceBatch) -> Tensor | None:
    """Return which places of the rows that `objective` has its model read are not padding [R, T].

    None if all places have targets. All stages must agree, but objectives call the last alone.
    """
    if batch.all_targets:
        return None
    arrays = batch.arrays
    if isinstance(objective, ReadingRows):
        _, targets_RT = objective.read_rows(batch)
    else:
        targets_RT = arrays[
            batches.STEP_LABELS if batches.STEP_LABELS in arrays else batches.TARGETS
        ]
    return find_text(targets_RT != batches.IGNORE)


def count_chunks(model: nn.Module) -> int:
    """Return the number of pipeline stages that this rank has of `model`; 1 without a pipeline."""
    return len(model.stages) if isinstance(model, StageDecoder) else 1


@dataclass(frozen=True)
class _Lane:
    """Connection to a neighbouring rank in one direction."""

    group: dist.ProcessGroup | None
    peer: int  # rank of the neighbour in `group`

    def send(self, tensor: Tensor) -> dist.Work:
        """Start to send `tensor`."""
        work = dist.isend(tensor, group=self.group, group_dst=self.peer)
        assert work is not None
        return work

    def receive(self, tensor: Tensor) -> None:
        """Wait for a tensor, and fill `tensor` with it."""
        dist.recv(tensor, group=self.group, group_src=self.peer)


def _find_lane(mesh: WorkerMesh, step: int, back: bool) -> _Lane:
    """Return the connection to the rank `step` positions further; `back`: for gradients."""
    axis = mesh.pipeline
    place = axis.rank + step
    beside = mesh.pipeline_back if back else axis
    around = mesh.pipeline_round_back if back else mesh.pipeline_round
    group = beside.group if 0 <= place < axis.size else around.group
    return _Lane(group, place % axis.size)


class _Plain(nn.Module):
    """Stage with the call signature that objectives expect of a model.

    It takes only the arguments that all stages can be given: with a branched text, for example,
    only the last stage would know the branches.
    """

    def __init__(self, model: nn.Module, text_BT: Tensor | None) -> None:
        """Wrap `model`, which reads `text_BT` as `Decoder.forward` does, the same in all stages."""
        super().__init__()
        # a bound method, so that the model is not registered as a submodule
        self._call = model.__call__
        self._text_BT = text_BT

    def forward(
        self, ids_BT: Tensor, positions_BT: Tensor | None = None, places_N: Tensor | None = None
    ) -> Any:
        """Return the output of the stage."""
        return self._call(
            ids_BT, positions_BT=positions_BT, places_N=places_N, text_BT=self._text_BT
        )


class _Given(torch.autograd.Function):
    """Function with value 0 whose input has a given gradient."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, gradient: Tensor) -> Tensor:
        ctx.gradient = gradient
        return hidden.new_zeros(())

    @staticmethod
    def backward(ctx: Any, of_scalar: Tensor) -> tuple[Tensor, None]:
        return ctx.gradient * of_scalar, None


def add_shared(gradient: Tensor, axis: Axis) -> None:
    """Replace `gradient` by its sum over the first and the last rank of `axis`.

    For a weight that both ranks hold. Both call it, each with the same slice.
    """
    other = axis.size - 1 if axis.rank == 0 else 0
    theirs = torch.empty_like(gradient)
    for work in dist.batch_isend_irecv(
        [
            dist.P2POp(dist.isend, gradient.contiguous(), group=axis.group, group_peer=other),
            dist.P2POp(dist.irecv, theirs, group=axis.group, group_peer=other),
        ]
    ):
        work.wait()
    gradient.add_(theirs)  # addition of two numbers is commutative, so both get the same bits
