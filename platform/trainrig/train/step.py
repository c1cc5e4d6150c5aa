"""One update of the weights: what of it is arithmetic, and what each rank does of it.

What is made small is the objective's to know (objectives/contract.py).
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

from trainrig.objectives.contract import DeviceBatch, differentiable_loss
from trainrig.optim.groups import RATE_SHARE
from trainrig.parallel.deterministic import SummedInTree
from trainrig.parallel.fsdp import Gradients, SummedByRank, units
from trainrig.tokens.batches import TOKENS, LocalBatch
from trainrig.train.job import TrainingJob
from trainrig.train.loss_table import Loss, LossTable, add_rows
from trainrig.train.state import TrainState

# Of torch.nn.utils.clip_grad_norm_, so that a norm of 0 divides nothing by 0.
NORM_FLOOR = 1e-6


@dataclass(frozen=True)
class StepFigures:
    """What one step was like; the same on every rank."""

    loss: Loss  # of the global batch
    grad_norm: float  # of the whole gradient, before clipping
    rate: float  # learning rate
    tokens: int  # targets of the global batch

    @property
    def fault(self) -> str | None:
        """Why no update can be made of it, in words; None if one was."""
        if not math.isfinite(self.loss.total):
            return f"loss {self.loss.total}"
        return None if math.isfinite(self.grad_norm) else f"gradient norm {self.grad_norm}"


class Stepper:
    """Takes the steps of one rank of a run. All ranks take each together."""

    def __init__(
        self,
        job: TrainingJob,
        sources: Sequence[str],
        state: TrainState,
        agreed_to_stop: Callable[[], bool],
    ) -> None:
        """`sources`: of the batches. `agreed_to_stop` is called before each micro-batch and answers
        all ranks alike."""
        assert isinstance(state.model, FSDPModule)
        self._objective, self._sources = job.objective, tuple(sources)
        training = job.training
        self._training, self._state, self._agreed_to_stop = training, state, agreed_to_stop
        self._parameters: list[nn.Parameter] = [
            each for group in state.optimizer.param_groups for each in group["params"]
        ]
        way = SummedInTree if training.deterministic else SummedByRank
        gather_once = training.parallel.reshard == "step"
        self._gradients: Gradients = way(state.model, self._parameters, gather_once)

    def take(self, local: LocalBatch) -> StepFigures | None:
        """One step on a global batch of which this rank has `local`.

        None: all agreed to stop, and the state is as it was. If its loss or its gradient is not
        finite, no update is made of it: the state goes past its data and notes them as skipped.
        """
        statistics = self._measure_statistics(local)
        table = None if statistics is None else self._go_backward(local, statistics)
        if table is None:
            self._abandon()
            return None
        loss = table.reduce(local.denominators)
        training, state = self._training, self._state
        rate = training.optimizer.lr * training.schedule.multiplier(state.step, training.steps)
        tokens = local.denominators[TOKENS]
        figures = StepFigures(loss, self._gradients.norm(), rate, tokens)
        if figures.fault:
            state.skip()
        else:
            self._update(figures)
        state.optimizer.zero_grad(set_to_none=True)
        return figures

    def _measure_statistics(self, local: LocalBatch) -> Mapping[str, float] | None:
        """The objective's sums over the global batch, by a forward pass over all of it without
        gradients; {} if it needs none. None: all agreed to stop."""
        names = tuple(self._objective.statistics)
        if not names:
            return {}
        device = self._parameters[0].device
        shape = (local.micro_batches, len(names))
        table_MK = torch.zeros(shape, dtype=torch.float64, device=device)
        try:
            with torch.no_grad():
                for slot, (micro, _) in zip(local.slots, local.assigned, strict=True):
                    if self._agreed_to_stop():
                        return None
                    batch = DeviceBatch.copy(micro, device)
                    found = self._objective.measure(self._state.model, batch)
                    if slot.real:  # another only joins the others' collectives
                        table_MK[slot.index] = torch.stack([found[name] for name in names])
        finally:
            self._abandon()  # parameters gathered for a backward pass that does not come
        return dict(zip(names, add_rows(table_MK).tolist(), strict=True))

    def _go_backward(self, local: LocalBatch, statistics: Mapping[str, float]) -> LossTable | None:
        """Leave the gradient of the global batch with the parameters; and this rank's sums.
        None: all agreed to stop.

        Each micro-batch's terms are divided by the denominators of the *global* batch before its
        backward pass, so the gradient is that of the whole, however micro-batches are dealt.
        """
        objective, model = self._objective, self._state.model
        device = self._parameters[0].device
        table = LossTable(objective, self._sources, local.micro_batches, device)
        self._gradients.begin(local.virtual)
        to_go = len(local.slots)
        for slot, (micro, _) in zip(local.slots, local.assigned, strict=True):
            if self._agreed_to_stop():
                return None
            batch = DeviceBatch.copy(micro, device)
            computed = objective.compute(model, batch, statistics)
            loss = differentiable_loss(objective, computed, local.denominators, local.micro_batches)
            to_go -= 1
            self._gradients.backward(loss, slot, last=to_go == 0)
            table.fill(slot, computed, batch.sources_B)
        self._gradients.finish()
        return table

    def _update(self, figures: StepFigures) -> None:
        shrink = min(1.0, self._training.clip_norm / (figures.grad_norm + NORM_FLOOR))
        if shrink < 1:
            for parameter in self._parameters:
                assert isinstance(parameter.grad, DTensor)
                parameter.grad.to_local().mul_(shrink)
        for group in self._state.optimizer.param_groups:
            group["lr"] = figures.rate * group.get(RATE_SHARE, 1.0)
        self._state.optimizer.step()
        self._state.advance(figures.tokens)

    def _abandon(self) -> None:
        """Let go of gathered parameters, as after a whole step, for the state to be saved.

        Gradients that were not added up yet stay where they are: no step may follow.
        """
        for unit in units(self._state.model):
            unit.reshard()
