"""One update of the weights: what of it is arithmetic, and what each rank does of it.

Shapes: B sequences of a micro-batch, T positions, V entries of the vocabulary, M micro-batches.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

from trainrig.objectives.causal import cross_entropy_sum
from trainrig.parallel.deterministic import SummedInTree
from trainrig.parallel.fsdp import Gradients, SummedByRank, units
from trainrig.tokens.batches import MicroBatch, Share
from trainrig.train.run import Training
from trainrig.train.state import TrainState

# Of torch.nn.utils.clip_grad_norm_, so that a norm of 0 divides nothing by 0.
NORM_FLOOR = 1e-6


@dataclass(frozen=True)
class StepFigures:
    """What one step was like; the same on every rank."""

    loss: float  # nats per target, mean over the global batch
    grad_norm: float  # of the whole gradient, before clipping
    rate: float  # learning rate
    targets: int  # in the global batch

    @property
    def fault(self) -> str | None:
        """Why no update can be made of it, in words; None if one was."""
        if not math.isfinite(self.loss):
            return f"loss {self.loss}"
        return None if math.isfinite(self.grad_norm) else f"gradient norm {self.grad_norm}"


class Stepper:
    """Takes the steps of one rank of a run. All ranks take each together."""

    def __init__(
        self, training: Training, state: TrainState, agreed_to_stop: Callable[[], bool]
    ) -> None:
        """`agreed_to_stop` is called before each micro-batch and answers all ranks alike."""
        assert isinstance(state.model, FSDPModule)
        self._training, self._state, self._agreed_to_stop = training, state, agreed_to_stop
        self._parameters: list[nn.Parameter] = [
            each for group in state.optimizer.param_groups for each in group["params"]
        ]
        way = SummedInTree if training.deterministic else SummedByRank
        gather_once = training.parallel.reshard == "step"
        self._gradients: Gradients = way(state.model, self._parameters, gather_once)

    def take(self, share: Share) -> StepFigures | None:
        """One step on a global batch of which this rank has `share`.

        None: all agreed to stop, and the state is as it was. If its loss or its gradient is not
        finite, no update is made of it: the state goes past its data and notes them as skipped.
        """
        nats_M = self._gradients_of(share)
        if nats_M is None:
            self._abandon()
            return None
        dist.all_reduce(nats_M)  # all but one of what is added in each place are zeros
        loss = sum(nats_M.tolist()) / share.targets
        training, state = self._training, self._state
        rate = training.optimizer.lr * training.schedule.multiplier(state.step, training.steps)
        figures = StepFigures(loss, self._gradients.norm(), rate, share.targets)
        if figures.fault:
            state.skip()
        else:
            self._update(figures)
        state.optimizer.zero_grad(set_to_none=True)
        return figures

    def _gradients_of(self, share: Share) -> Tensor | None:
        """Leave the gradient of the global batch with the parameters; nats of each micro-batch of
        this rank [M], in its place, the rest 0. None: all agreed to stop.

        Each micro-batch's loss is divided by the targets of the *global* batch before its backward
        pass, so the gradient is that of the mean over all of them, however they are dealt.
        """
        device = self._parameters[0].device
        nats_M = torch.zeros(share.micro_batches, dtype=torch.float64, device=device)
        self._gradients.begin(share.virtual)
        to_go = len(share.turns)
        for turn, (micro, real) in zip(share.turns, share.dealt, strict=True):
            if self._agreed_to_stop():
                return None
            loss = micro_batch_nats(self._state.model, micro, device)
            to_go -= 1
            self._gradients.backward(loss * (1 / share.targets), turn, last=to_go == 0)
            if real:
                nats_M[turn.index] = loss.detach()
        self._gradients.finish()
        return nats_M

    def _update(self, figures: StepFigures) -> None:
        shrink = min(1.0, self._training.clip_norm / (figures.grad_norm + NORM_FLOOR))
        if shrink < 1:
            for parameter in self._parameters:
                assert isinstance(parameter.grad, DTensor)
                parameter.grad.to_local().mul_(shrink)
        for group in self._state.optimizer.param_groups:
            group["lr"] = figures.rate
        self._state.optimizer.step()
        self._state.advance(figures.targets)

    def _abandon(self) -> None:
        """Let go of gathered parameters, as after a whole step, for the state to be saved.

        Gradients that were not added up yet stay where they are: no step may follow.
        """
        for unit in units(self._state.model):
            unit.reshard()


def micro_batch_nats(model: nn.Module, micro: MicroBatch, device: torch.device) -> Tensor:
    """Nats of all targets of `micro` together: a float32 scalar, to go backward from."""
    ids_BT, targets_BT = (torch.from_numpy(a).to(device) for a in (micro.ids, micro.targets))
    if micro.positions is None:
        logits_BTV: Tensor = model(ids_BT)
    else:
        positions_BT = torch.from_numpy(micro.positions).to(device)
        logits_BTV = model(ids_BT, positions_BT=positions_BT)
    return cross_entropy_sum(logits_BTV, targets_BT)
