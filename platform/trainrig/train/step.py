"""One update of the weights: what of it is arithmetic, and what each rank does of it.

What is made small is the objective's to know (objectives/contract.py).
"""

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from trainrig.models.lora.layers import list_dropouts
from trainrig.objectives.contract import DeviceBatch, compute_differentiable_loss
from trainrig.optim.groups import RATE_SHARE
from trainrig.optim.noise_scale import estimate_noise
from trainrig.optim.optimizer_set import OptimizerSet
from trainrig.parallel.activations import ActivationStatistics
from trainrig.parallel.exact.deterministic import SummedInTree
from trainrig.parallel.fsdp import Gradients, SummedByRank, find_local_slice, list_units, reshard
from trainrig.parallel.norm import RowPlaces
from trainrig.parallel.parameter_norms import ParameterNorms
from trainrig.parallel.phase_clock import PhaseClock, time_collectives
from trainrig.parallel.pipeline.passes import StagePass, StagePasses, add_shared
from trainrig.parallel.pipeline.schedule import Schedule, plan_turns
from trainrig.parallel.pipeline.stage import StageDecoder
from trainrig.tokens.batches import TOKENS, LocalBatch, MicroBatch
from trainrig.train.job import TrainingJob
from trainrig.train.loss_table import Loss, LossTable, measure_statistics
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
    # Of the gradients of models that are trained beside, before clipping, by name.
    other_norms: Mapping[str, float] = field(default_factory=dict)
    outlier: str | None = None  # why it is one, in words
    measured: Mapping[str, float] = field(default_factory=dict)  # what some steps measure, by name

    @property
    def fault(self) -> str | None:
        """Why no update can be made of it, in words; None if one was."""
        if not math.isfinite(self.loss.total):
            return f"loss {self.loss.total}"
        norms = {"": self.grad_norm, **{f" of the {n}": x for n, x in self.other_norms.items()}}
        bad = (f"gradient norm{of} {x}" for of, x in norms.items() if not math.isfinite(x))
        return next(bad, None)

    @property
    def why_skipped(self) -> str | None:
        """Why no update was made of it, in words; None if one was."""
        return self.fault or self.outlier


@dataclass(frozen=True)
class _Gradient:
    """What there is to know of the gradient that a step has left with the parameters."""

    loss: Loss
    norm: float
    other_norms: Mapping[str, float]  # of models that are trained beside, by name
    part_squared: float | None  # mean square of the virtual workers' norms; None: not measured


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
        all ranks alike; how often it asks them is its own to know."""
        self._objective, self._sources, self._beside = job.objective, tuple(sources), job.trained
        training = job.training
        self._training, self._state, self._agreed_to_stop = training, state, agreed_to_stop
        pipeline = training.parallel.pipeline
        self._schedule: Schedule = pipeline.schedule if pipeline else "1F1B"
        self._chunks = training.parallel.pipeline_chunks
        self._parameters: list[nn.Parameter] = [
            each for group in state.optimizer.param_groups for each in group["params"]
        ]
        self._others = {name: list(state.others[name].parameters()) for name in job.trained}
        self._models: list[nn.Module] = [state.model]
        for name in job.trained:
            self._models.append(state.others[name])
        gather_once = training.parallel.reshard == "step"
        every = [*self._parameters, *itertools.chain(*self._others.values())]
        device = self._parameters[0].device
        self.clock, self._compares_ranks = PhaseClock(device), False
        if state.mesh.slices.size > 1:
            parts = [unit for model in self._models for unit in list_units(model)]
            time_collectives(parts, self.clock, device, reduces=not training.deterministic)
        alike = state.shared.list_alike(state.model) if state.shared else frozenset[int]()
        stage, names = state.stage, {each: n for n, each in state.model.named_parameters()}
        firsts = stage.find_firsts(names[each] for each in self._parameters) if stage else None
        places = RowPlaces(firsts, sum(stage.whole.values())) if stage and firsts else None
        counted = [each is not None for each in firsts] if firsts else None
        mesh = state.mesh
        self._gradients: Gradients = (
            SummedInTree(
                self._models,
                every,
                gather_once,
                mesh,
                self.clock,
                alike,
                places,
                by_micro_batch=training.parallel.by_micro_batch,
            )
            if training.deterministic
            else SummedByRank(
                self._models,
                gather_once,
                mesh.tensor,
                alike,
                training.parallel.by_micro_batch,
                mesh.pipeline.group,
                counted,
            )
        )
        self._passes = StagePasses(state.model, mesh, self.clock)
        self._norms = ParameterNorms(state.model, state.shared, stage)
        self._activations = ActivationStatistics(state.model)
        self._dropouts = list_dropouts(state.model)
        self._some_frozen = any(not each.requires_grad for each in state.model.parameters())

    def begin(self) -> None:
        """A step begins, and its batch is about to be asked for."""
        step, metrics = self._state.step + 1, self._training.metrics
        on_host = self._parameters[0].device.type == "cpu"
        # An accelerator is waited for when ranks are compared, so less often.
        self._compares_ranks = metrics.due(step) if on_host else metrics.layers_due(step)
        self.clock.begin(self._compares_ranks)

    def take(self, local: LocalBatch) -> StepFigures | None:
        """One step on a global batch of which this rank has `local`.

        None: all agreed to stop, and the state is as it was. If its loss or its gradient is not
        finite, or an outlier, no update is made of it: the state goes past its data and notes them
        as skipped.
        """
        statistics = self._measure_statistics(local)
        if statistics is None:
            self._abandon()
            return None
        activations = self._measure_activations(local, statistics)
        found = self._find_gradient(local, statistics)
        if found is None:
            self._abandon()
            return None
        training, state = self._training, self._state
        rate = training.optimizer.lr * training.schedule.multiplier(state.step, training.steps)
        tokens = local.denominators[TOKENS]
        rate *= state.detector.compute_rate_share(state.data_step)
        outlier = state.detector.observe(state.data_step, found.loss.total, found.norm)
        figures = StepFigures(found.loss, found.norm, rate, tokens, found.other_norms, outlier)
        if figures.why_skipped:
            state.skip()
        else:
            noise = self._measure_noise(figures, found.part_squared, local.virtual)
            measured = noise | self._update(figures, activations)
            figures = replace(figures, measured=measured)
        self._forget_gradients()
        if self._some_frozen:  # no backward pass lets go of what needs no gradient
            self._abandon()
        return figures

    def _measure_statistics(self, local: LocalBatch) -> Mapping[str, float] | None:
        """The objective's sums over the global batch, by a forward pass over all of it without
        gradients; {} if it needs none. None: all agreed to stop."""
        device, state = self._parameters[0].device, self._state
        batches = (
            (slot, self._copy(micro, device))
            for slot, (micro, _) in zip(local.slots, local.assigned, strict=True)
        )
        count, stop = local.micro_batches, self._agreed_to_stop
        try:
            return measure_statistics(
                self._objective, state.model, batches, count, stop, state.split
            )
        finally:
            if self._objective.statistics:
                self._abandon()  # parameters gathered for a backward pass that does not come

    def _measure_activations(
        self, local: LocalBatch, statistics: Mapping[str, float]
    ) -> dict[str, Tensor]:
        """What passes through the model, of this rank's first micro-batch; {} of parts of one, or
        of layers, which are not what a whole one is like, and of stages."""
        due, mesh = self._training.metrics.layers_due(self._state.step + 1), self._state.mesh
        if not due or mesh.parts.group or mesh.tensor.group or mesh.pipeline.group:
            return {}
        batch = self._copy(local.assigned[0][0], self._parameters[0].device)
        try:
            return self._activations.measure(
                lambda: self._objective.compute(self._state.model, batch, statistics)
            )
        finally:
            self._abandon()  # parameters gathered for a backward pass that does not come

    def _find_gradient(
        self, local: LocalBatch, statistics: Mapping[str, float]
    ) -> _Gradient | None:
        """Leave the gradient of the global batch with the parameters. None: all agreed to stop.

        In float16, gradients that overflow are computed again from a loss that is scaled by less.
        """
        scale = self._state.loss_scale
        while True:
            table = self._go_backward(local, statistics)
            if table is None:
                return None
            if scale:
                for parameters in (self._parameters, *self._others.values()):
                    _multiply_gradients(parameters, 1 / scale.factor)
            norms = [self._gradients.compute_norm(self._parameters)]
            norms += [self._gradients.compute_norm(each) for each in self._others.values()]
            squared = self._gradients.compute_part_squared()
            # Read when the device has been asked for all of it, so that it never waits to be asked.
            loss = table.reduce(local.denominators)
            norm, *found = torch.stack(norms if squared is None else [*norms, squared]).tolist()
            part_squared = None if squared is None else found.pop()
            others = dict(zip(self._others, found, strict=True))
            finite = all(map(math.isfinite, (norm, *others.values())))
            overflowed = scale and math.isfinite(loss.total) and not finite
            if not (overflowed and scale and scale.back_off()):
                return _Gradient(loss, norm, others, part_squared)
            self._forget_gradients()

    def _go_backward(self, local: LocalBatch, statistics: Mapping[str, float]) -> LossTable | None:
        """Leave the gradient of the global batch with the parameters; and this rank's sums.
        None: all agreed to stop.

        Each micro-batch's terms are divided by the denominators of the *global* batch before its
        backward pass, so the gradient is that of the whole, however micro-batches are dealt.
        """
        objective, device = self._objective, self._parameters[0].device
        split = self._state.split
        table = LossTable(objective, self._sources, local.micro_batches, device, split=split)
        table.expect(self._passes.auxiliary())
        equal_parts = local.micro_batches % local.virtual == 0
        measured = self._training.metrics.due(self._state.step + 1)
        measured = measured and equal_parts and local.virtual > 1
        self._gradients.begin(local.micro_batches, local.virtual, measured)
        count, pipeline = len(local.slots), self._state.mesh.pipeline
        under_way: dict[tuple[int, int], tuple[StagePass, Tensor]] = {}
        order = plan_turns(self._schedule, pipeline.rank, pipeline.size, count, self._chunks)
        for place, (forward, number, chunk) in enumerate(order):
            slot = local.slots[number]
            if forward:
                # Stages are at different micro-batches, so they ask before the first alone.
                if (place == 0 or pipeline.group is None) and self._agreed_to_stop():
                    return None
                batch = self._copy(local.assigned[number][0], device)
                self._drop_by(batch.samples_B)
                with self.clock.time_phase("forward"):
                    passed = self._passes.forward(objective, batch, statistics, chunk)
                if passed.computed is not None:
                    table.fill(slot, passed.computed, batch.sources_B)
                under_way[chunk, number] = passed, batch.samples_B
                continue
            passed, samples_B = under_way.pop((chunk, number))
            self._drop_by(samples_B)  # in layers that are computed again
            with self.clock.time_phase("backward"):
                loss = self._compute_loss(passed, local)
                self._gradients.backward(loss, slot, number == count - 1, chunk)
                self._passes.send_back(passed)
            del passed, loss  # nothing is kept of it while the next goes forward
        with self.clock.time_phase("communication"):
            table.expect_diagnostics(self._passes.share_names(table.diagnostics))
            self._passes.settle()
            self._gradients.finish()
            self._add_copy()
            if self._state.shared:
                self._state.shared.add_parts(self._state.model)
        return table

    def _drop_by(self, samples_B: Tensor) -> None:
        for each in self._dropouts:
            each.samples_B = samples_B

    def _compute_loss(self, passed: StagePass, local: LocalBatch) -> Tensor:
        """What this rank goes backward from: the loss, or the gradient of what it has passed on."""
        if passed.computed is None:
            return self._passes.receive_loss(passed)
        loss = compute_differentiable_loss(
            self._objective, passed.computed, local.denominators, local.micro_batches
        )
        scale = self._state.loss_scale
        return loss * scale.factor if scale else loss

    def _add_copy(self) -> None:
        """Where the first and the last stage have the embedding: have both have the gradients of
        both."""
        pipeline, model = self._state.mesh.pipeline, self._state.model
        ends = isinstance(model, StageDecoder) and (model.first or model.copies_embedding)
        if ends and model.config.shapes.head is None:
            for each in model.embedding.parameters():
                if each.requires_grad:
                    assert isinstance(each.grad, DTensor)
                    add_shared(each.grad.to_local(), pipeline)

    def _copy(self, micro: MicroBatch, device: torch.device) -> DeviceBatch:
        """What this rank reads of `micro`, on `device`."""
        return self._state.split.take_part(DeviceBatch.copy(micro, device, self._state.others))

    def _update(self, figures: StepFigures, activations: Mapping[str, Tensor]) -> dict[str, float]:
        """Make the update; what was measured of it, and of `activations`."""
        step, metrics = self._state.step + 1, self._training.metrics
        measured: dict[str, float] = {}
        if metrics.layers_due(step):
            self._norms.begin()
        with self.clock.time_phase("optimizer"):
            self._make_update(figures)
        if metrics.layers_due(step):
            measured |= self._norms.finish(activations)
        if self._compares_ranks:
            measured |= self.clock.find_slowest()
        norms = figures.other_norms.items()
        return measured | {f"beside/{name}/grad_norm": norm for name, norm in norms}

    def _measure_noise(
        self, figures: StepFigures, squared: float | None, virtual: int
    ) -> dict[str, float]:
        """What the gradients of the virtual workers, of the mean square `squared`, say of the noise
        in that of the whole batch."""
        if squared is None or self._others:  # of whose gradients it would tell too
            return {}
        if self._state.loss_scale:
            squared /= self._state.loss_scale.factor**2
        # Each is a part of the mean over all targets: the mean over its own is `virtual` times it.
        small, whole = squared * virtual**2, figures.grad_norm**2
        found = estimate_noise(small, figures.tokens / virtual, whole, figures.tokens)
        return {"noise/gradient_squared": found.gradient_squared, "noise/trace": found.trace}

    def _make_update(self, figures: StepFigures) -> None:
        _clip(self._parameters, figures.grad_norm, self._training.clip_norm)
        _step(self._state.optimizer, figures.rate)
        share = figures.rate / self._training.optimizer.lr
        for name, each in self._beside.items():
            _clip(self._others[name], figures.other_norms[name], each.clip_norm)
            _step(self._state.other_optimizers[name], share * each.optimizer.lr)
        if self._state.loss_scale:
            self._state.loss_scale.succeed()
        self._state.advance(figures.tokens)
        self._state.averages.update(self._state.step)

    def _forget_gradients(self) -> None:
        for optimizer in (self._state.optimizer, *self._state.other_optimizers.values()):
            optimizer.zero_grad(set_to_none=True)

    def _abandon(self) -> None:
        """Let go of gathered parameters, as after a whole step, for the state to be saved.

        Gradients that were not added up yet stay where they are: no step may follow.
        """
        for model in self._models:
            reshard(model)


def _clip(parameters: Sequence[nn.Parameter], norm: float, most: float) -> None:
    shrink = min(1.0, most / (norm + NORM_FLOOR))
    if shrink < 1:
        _multiply_gradients(parameters, shrink)


def _multiply_gradients(parameters: Sequence[nn.Parameter], factor: float) -> None:
    gradients = []
    for parameter in parameters:
        assert parameter.grad is not None
        gradients.append(find_local_slice(parameter.grad)[0])
    torch._foreach_mul_(gradients, factor)  # few kernels for all of them, on an accelerator


def _step(optimizer: OptimizerSet, rate: float) -> None:
    for group in optimizer.param_groups:
        group["lr"] = rate * group.get(RATE_SHARE, 1.0)
    optimizer.step()
