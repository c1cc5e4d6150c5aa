"""One update of the weights: the arithmetic, and each rank's part in it.

The loss is defined by the objective (objectives/objective_interface.py).
"""

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from trainrig.models.lora import list_dropouts
from trainrig.objectives.objective_interface import DeviceBatch, compute_differentiable_loss
from trainrig.optim.noise_scale import estimate_noise
from trainrig.optim.parameter_groups import RATE_SHARE, OptimizerSet
from trainrig.parallel.axes.pipeline_passes import StagePass, StagePasses, add_shared
from trainrig.parallel.axes.pipeline_schedule import Schedule, plan_turns
from trainrig.parallel.axes.pipeline_stage import StageDecoder
from trainrig.parallel.phase_clock import PhaseClock, time_collectives
from trainrig.parallel.sharding import fsdp
from trainrig.parallel.sharding.deterministic_reduction import SummedInTree
from trainrig.parallel.sharding.gradient_norm import RowPlaces
from trainrig.parallel.training_statistics import ActivationStatistics, ParameterNorms
from trainrig.tokens.batches import TOKENS, LocalBatch, MicroBatch
from trainrig.train.loss_table import Loss, LossTable, measure_statistics
from trainrig.train.state import TrainState
from trainrig.train.training_job import TrainingJob

# As in torch.nn.utils.clip_grad_norm_: avoids a division by 0 for a norm of 0.
NORM_FLOOR = 1e-6


@dataclass(frozen=True)
class StepFigures:
    """Results of one step; equal on every rank."""

    loss: Loss  # loss of the global batch
    grad_norm: float  # norm of the whole gradient, before clipping
    rate: float  # learning rate
    tokens: int  # targets of the global batch
    # Gradient norms of the additional trained models, before clipping, by name.
    other_norms: Mapping[str, float] = field(default_factory=dict)
    outlier: str | None = None  # why the step is an outlier, in words; None if it is not
    # metrics that only some steps measure, by name
    measured: Mapping[str, float] = field(default_factory=dict)

    @property
    def fault(self) -> str | None:
        """The reason why no update can be made from this step (not finite); None if one can."""
        if not math.isfinite(self.loss.total):
            return f"loss {self.loss.total}"
        norms = {"": self.grad_norm, **{f" of the {n}": x for n, x in self.other_norms.items()}}
        bad = (f"gradient norm{of} {x}" for of, x in norms.items() if not math.isfinite(x))
        return next(bad, None)

    @property
    def why_skipped(self) -> str | None:
        """The reason why no update was made from this step; None if one was."""
        return self.fault or self.outlier


@dataclass(frozen=True)
class _Gradient:
    """Loss and gradient norms of a step; the gradient itself is stored in the parameters."""

    loss: Loss
    norm: float
    other_norms: Mapping[str, float]  # norms of the additional trained models, by name
    # mean square of the virtual workers' gradient norms; None: not measured
    part_squared: float | None


class Stepper:
    """One rank's executor of training steps. All ranks must make each step together."""

    def __init__(
        self,
        job: TrainingJob,
        sources: Sequence[str],
        state: TrainState,
        agreed_to_stop: Callable[[], bool],
    ) -> None:
        """Set up the gradient reduction and the metrics of one rank.

        `sources`: names of the sources of the batches. `agreed_to_stop` is called before each
        micro-batch and returns the same on all ranks; it may cache the answer.
        """
        self._objective, self._sources = job.objective, tuple(sources)
        self._other_trained = job.trained
        training = job.training
        self._training = training
        self._state = state
        self._agreed_to_stop = agreed_to_stop
        pipeline = training.parallel.pipeline
        self._schedule: Schedule = pipeline.schedule if pipeline else "1F1B"
        self._chunks = training.parallel.pipeline_chunks
        self._parameters: list[nn.Parameter] = [
            tensor for group in state.optimizer.param_groups for tensor in group["params"]
        ]
        self._others = {name: list(state.others[name].parameters()) for name in job.trained}
        self._models: list[nn.Module] = [state.model]
        for name in job.trained:
            self._models.append(state.others[name])
        gather_once = training.parallel.reshard == "step"
        every = [*self._parameters, *itertools.chain(*self._others.values())]
        device = self._parameters[0].device
        self.clock = PhaseClock(device)
        self._compares_ranks = False
        if state.mesh.slices.size > 1:
            parts = [unit for model in self._models for unit in fsdp.list_units(model)]
            time_collectives(parts, self.clock, device, reduces=not training.deterministic)
        alike = state.shared.list_alike(state.model) if state.shared else frozenset[int]()
        stage = state.stage
        names = {parameter: name for name, parameter in state.model.named_parameters()}
        firsts = stage.find_firsts(names[tensor] for tensor in self._parameters) if stage else None
        places = RowPlaces(firsts, sum(stage.whole.values())) if stage and firsts else None
        counted = [first is not None for first in firsts] if firsts else None
        mesh = state.mesh
        self._gradients: fsdp.Gradients = (
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
            else fsdp.SummedByRank(
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
        self._some_frozen = any(not tensor.requires_grad for tensor in state.model.parameters())

    def begin(self) -> None:
        """Begin a step; call this before its batch is read."""
        step = self._state.step + 1
        metrics = self._training.metrics
        on_host = self._parameters[0].device.type == "cpu"
        # Comparing ranks synchronises with an accelerator, so it is done less often there.
        self._compares_ranks = metrics.due(step) if on_host else metrics.layers_due(step)
        self.clock.begin(self._compares_ranks)

    def take(self, local: LocalBatch) -> StepFigures | None:
        """Make one step on a global batch of which this rank has `local`.

        Returns None if all ranks agreed to stop; the state is then unchanged. If the loss or the
        gradient is not finite or is an outlier, no update is made: the batch is recorded as
        skipped.
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
        training = self._training
        state = self._state
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
        if self._some_frozen:  # frozen parameters stay gathered after the backward pass
            self._abandon()
        return figures

    def _measure_statistics(self, local: LocalBatch) -> Mapping[str, float] | None:
        """Sum the objective's statistics over the global batch, in a pass without gradients.

        Returns {} if the objective has none, and None if all ranks agreed to stop.
        """
        device = self._parameters[0].device
        state = self._state
        batches = (
            (slot, self._copy(micro, device))
            for slot, (micro, _) in zip(local.slots, local.assigned, strict=True)
        )
        count = local.micro_batches
        stop = self._agreed_to_stop
        try:
            return measure_statistics(
                self._objective, state.model, batches, count, stop, state.split
            )
        finally:
            if self._objective.statistics:
                self._abandon()  # parameters were gathered for a backward pass that does not follow

    def _measure_activations(
        self, local: LocalBatch, statistics: Mapping[str, float]
    ) -> dict[str, Tensor]:
        """Measure the activations of the model on this rank's first micro-batch.

        Returns {} if they are not due, or if this rank has only parts of rows, of layers or of the
        model, whose activations differ from those of a whole one.
        """
        due = self._training.metrics.layers_due(self._state.step + 1)
        mesh = self._state.mesh
        if not due or mesh.parts.group or mesh.tensor.group or mesh.pipeline.group:
            return {}
        batch = self._copy(local.assigned[0][0], self._parameters[0].device)
        try:
            return self._activations.measure(
                lambda: self._objective.compute(self._state.model, batch, statistics)
            )
        finally:
            self._abandon()  # parameters were gathered for a backward pass that does not follow

    def _find_gradient(
        self, local: LocalBatch, statistics: Mapping[str, float]
    ) -> _Gradient | None:
        """Leave the gradient of the global batch in the parameters' `grad`.

        Returns None if all ranks agreed to stop. In float16, a gradient that overflows is computed
        again with a smaller loss scale.
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
            norms += [
                self._gradients.compute_norm(parameters) for parameters in self._others.values()
            ]
            squared = self._gradients.compute_part_squared()
            # Read from the device only after all work of the step is enqueued, so it never idles.
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
        """Run the forward and backward passes of this rank; return its sums of the loss terms.

        Leaves the gradient of the global batch in the parameters' `grad`. Returns None if all ranks
        agreed to stop. The terms of each micro-batch are divided by the denominators of the
        *global* batch before its backward pass, so the gradient is that of the whole batch, however
        its micro-batches are assigned to ranks.
        """
        objective = self._objective
        device = self._parameters[0].device
        split = self._state.split
        table = LossTable(objective, self._sources, local.micro_batches, device, split=split)
        table.expect(self._passes.auxiliary())
        equal_parts = local.micro_batches % local.virtual == 0
        measured = self._training.metrics.due(self._state.step + 1)
        measured = measured and equal_parts and local.virtual > 1
        self._gradients.begin(local.micro_batches, local.virtual, measured)
        count = len(local.slots)
        pipeline = self._state.mesh.pipeline
        under_way: dict[tuple[int, int], tuple[StagePass, Tensor]] = {}
        order = plan_turns(self._schedule, pipeline.rank, pipeline.size, count, self._chunks)
        for place, (forward, number, chunk) in enumerate(order):
            slot = local.slots[number]
            if forward:
                # Pipeline stages are at different micro-batches, so they ask only before the first.
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
            self._drop_by(samples_B)  # recomputed layers need the same dropout
            with self.clock.time_phase("backward"):
                loss = self._compute_loss(passed, local)
                self._gradients.backward(loss, slot, number == count - 1, chunk)
                self._passes.send_back(passed)
            del passed, loss  # free its memory before the next forward pass
        with self.clock.time_phase("communication"):
            table.expect_diagnostics(self._passes.share_names(table.diagnostics))
            self._passes.settle()
            self._gradients.finish()
            self._add_copy()
            if self._state.shared:
                self._state.shared.add_parts(self._state.model)
        return table

    def _drop_by(self, samples_B: Tensor) -> None:
        for dropout in self._dropouts:
            dropout.samples_B = samples_B

    def _compute_loss(self, passed: StagePass, local: LocalBatch) -> Tensor:
        """Return the tensor that this rank's backward pass starts from.

        It is the loss, or on earlier pipeline stages a stand-in with the gradient of the next
        stage.
        """
        if passed.computed is None:
            return self._passes.receive_loss(passed)
        loss = compute_differentiable_loss(
            self._objective, passed.computed, local.denominators, local.micro_batches
        )
        scale = self._state.loss_scale
        return loss * scale.factor if scale else loss

    def _add_copy(self) -> None:
        """Add the embedding's gradients over the first and last pipeline stage if both have it."""
        pipeline = self._state.mesh.pipeline
        model = self._state.model
        ends = isinstance(model, StageDecoder) and (model.first or model.copies_embedding)
        if ends and model.config.shapes.head is None:
            for parameter in model.embedding.parameters():
                if parameter.requires_grad:
                    assert isinstance(parameter.grad, DTensor)
                    add_shared(parameter.grad.to_local(), pipeline)

    def _copy(self, micro: MicroBatch, device: torch.device) -> DeviceBatch:
        """Return this rank's part of `micro`, on `device`."""
        return self._state.split.take_part(DeviceBatch.copy(micro, device, self._state.others))

    def _update(self, figures: StepFigures, activations: Mapping[str, Tensor]) -> dict[str, float]:
        """Make the update; return the metrics measured for it and for `activations`."""
        step = self._state.step + 1
        metrics = self._training.metrics
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
        """Estimate the gradient noise scale from the virtual workers' gradients.

        `squared` is the mean square of their norms; None returns no metrics.
        """
        if squared is None or self._others:  # their gradients would be included in it
            return {}
        if self._state.loss_scale:
            squared /= self._state.loss_scale.factor**2
        # Each is a part of the mean over all targets; the mean over its own is `virtual` times as
        # large.
        small = squared * virtual**2
        whole = figures.grad_norm**2
        found = estimate_noise(small, figures.tokens / virtual, whole, figures.tokens)
        return {"noise/gradient_squared": found.gradient_squared, "noise/trace": found.trace}

    def _make_update(self, figures: StepFigures) -> None:
        _clip(self._parameters, figures.grad_norm, self._training.clip_norm)
        _step(self._state.optimizer, figures.rate)
        share = figures.rate / self._training.optimizer.lr
        for name, trained in self._other_trained.items():
            _clip(self._others[name], figures.other_norms[name], trained.clip_norm)
            _step(self._state.other_optimizers[name], share * trained.optimizer.lr)
        if self._state.loss_scale:
            self._state.loss_scale.succeed()
        self._state.advance(figures.tokens)
        self._state.averages.update(self._state.step)

    def _forget_gradients(self) -> None:
        for optimizer in (self._state.optimizer, *self._state.other_optimizers.values()):
            optimizer.zero_grad(set_to_none=True)

    def _abandon(self) -> None:
        """Release gathered parameters, as after a whole step, so that the state can be saved.

        Partial gradients stay where they are: no step may follow.
        """
        for model in self._models:
            fsdp.reshard(model)


def _clip(parameters: Sequence[nn.Parameter], norm: float, most: float) -> None:
    shrink = min(1.0, most / (norm + NORM_FLOOR))
    if shrink < 1:
        _multiply_gradients(parameters, shrink)


def _multiply_gradients(parameters: Sequence[nn.Parameter], factor: float) -> None:
    gradients = []
    for parameter in parameters:
        assert parameter.grad is not None
        gradients.append(fsdp.find_local_slice(parameter.grad)[0])
    torch._foreach_mul_(gradients, factor)  # few kernel launches for all of them


def _step(optimizer: OptimizerSet, rate: float) -> None:
    for group in optimizer.param_groups:
        group["lr"] = rate * group.get(RATE_SHARE, 1.0)
    optimizer.step()
