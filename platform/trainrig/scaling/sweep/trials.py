"""Trials of a sweep: conversion of points (N, D) into training runs.

A trial is one model with one seed. Its longest run is the trunk: the learning rate warms up, stays
constant, and decays at the end. Before the decay, the rate does not depend on the run's length. So
each shorter run branches from a checkpoint of the trunk at the step where its own decay begins, and
is bit-identical to the same run trained alone (Hägele et al. 2024, arXiv:2405.18392). Therefore k
lengths cost one run and the decays of the others.
"""

import dataclasses
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from trainrig import manifest, storage
from trainrig.errors import ConfigError, DataError
from trainrig.flops import count_position_flops
from trainrig.models.architecture.decoder_config import ALIGNMENT
from trainrig.objectives.denoising import row_shapes
from trainrig.objectives.objective_interface import find_corruption
from trainrig.optim import AdamW, WarmupStableDecay
from trainrig.scaling.batch_rate_rules import round_to_sequences
from trainrig.scaling.model_ladder import LadderModel, find_ladder_model_of, with_further_heads
from trainrig.scaling.sweep.rate_search import RateBatchPair, RateSearch, list_rungs
from trainrig.scaling.sweep.sweep_run_file import DesignPoint, Sweep
from trainrig.tokens.shards.token_shards import HELD_OUT, TRAIN, TokenShards
from trainrig.tokens.tokenizers.encode import Encoder
from trainrig.train.held_out_loss import HeldOutSettings
from trainrig.train.retention import Checkpoints
from trainrig.train.run_file.run_files import Pretraining
from trainrig.train.run_file.training_settings import Training

TRIALS = "trials"
SEARCH = "search"


@dataclass(frozen=True)
class SweepTokens:
    """Facts about a sweep's tokens that planning needs."""

    tokenizer: str  # fingerprint of the tokenizer
    vocabulary: int  # vocabulary size of the models: the tokenizer's, rounded up
    unique_tokens: int  # tokens of the training split
    held_out_windows: int  # windows of the largest held-out source


@dataclass(frozen=True)
class TrialLength:
    """One run of a trial, with its length and the isoFLOP budget of its point, if any."""

    steps: int
    tokens: int  # positions of all rows of the run
    budget: float | None


@dataclass(frozen=True)
class Trial:
    """One model with one seed, and its runs of different lengths."""

    name: str
    ladder_model: LadderModel
    seed: int
    batch: int  # sequences in a batch
    ruled_batch: int  # sequences that the rule gives, before the least number of steps limits them
    rate: float  # peak learning rate
    warmup: int  # warmup steps
    lengths: tuple[TrialLength, ...]  # runs, in ascending order of steps; the last one is the trunk
    place: str = TRIALS  # parent of the trial's folder, below the sweep's folder
    # share of each source in the samples; None: the sweep's `batches.weights`
    weights: Mapping[str, float] | None = None
    stage: int = 0  # number of the stage in which it is trained; a sweep may end between two

    @property
    def trunk(self) -> TrialLength:
        """The longest run, from which the others branch."""
        return self.lengths[-1]

    @property
    def work(self) -> float:
        """Cost relative to other trials: the product of parameters and tokens of the trunk.

        The costliest trials start first, so that no long one runs alone at the end.
        """
        return float(self.ladder_model.total * self.trunk.tokens)


def plan(
    sweep: Sweep, points: Sequence[DesignPoint], data: SweepTokens, factors: RateBatchPair
) -> tuple[Trial, ...]:
    """Plan the trials that give `points`, by size and seed, with each point once for each seed.

    Raises ConfigError for points that are too short for their batch, that need more passes over the
    data than `batches.epochs`, or whose sizes lead to the same model.
    """
    by_size: dict[float, list[DesignPoint]] = defaultdict(list)
    for point in points:
        by_size[point.parameters].append(point)
    found: dict[int, float] = {}  # requested size, keyed by the model's N
    trials = []
    for asked, of_size in sorted(by_size.items()):
        model = find_sweep_model(sweep, asked, data)
        if model.parameters in found:
            raise ConfigError(
                f"design.parameters: {found[model.parameters]:,.0f} and {asked:,.0f} give the same "
                f"model, of {model.parameters:,} parameters; leave out one of them"
            )
        found[model.parameters] = asked
        repeated = sweep.seeds_up_to is None or asked <= sweep.seeds_up_to
        seeds = sweep.seeds if repeated else sweep.seeds[:1]
        by_seed: dict[int, list[DesignPoint]] = defaultdict(list)
        for point in of_size:
            for seed in seeds if point.seed is None else (point.seed,):
                by_seed[seed].append(point)
        trials += [
            plan_trial(sweep, model, seed, of_seed, factors) for seed, of_seed in by_seed.items()
        ]
    _check_epochs(sweep, trials, data)
    return tuple(trials)


def read_sweep_tokens(sweep: Sweep) -> SweepTokens:
    """Read the facts about a sweep's tokens; raise DataError if no tokens are held out."""
    tokenizer = manifest.read_file(sweep.tokens, "tokenizer.json").decode()
    encoder = Encoder(tokenizer)
    train, held_out = (
        TokenShards.open(storage.join(sweep.tokens, split), sweep.cache)
        for split in (TRAIN, HELD_OUT)
    )
    length = sweep.batches.sequence_length
    # raises an error if the tokenizer lacks special tokens
    find_corruption(sweep.objective, encoder, length)
    windows = [-(-(held_out.tokens(source) - 1) // length) for source in held_out.sources]
    if max(windows, default=0) < 1:
        raise DataError(
            f"{sweep.tokens}: nothing is held out, and a law predicts the loss on text that "
            "was not trained on; tokenize with a larger `held_out`"
        )
    return SweepTokens(
        tokenizer=encoder.fingerprint,
        vocabulary=-(-encoder.vocabulary_size // ALIGNMENT) * ALIGNMENT,
        unique_tokens=sum(train.tokens(source) for source in train.sources),
        held_out_windows=max(windows),
    )


def count_flops_per_token(sweep: Sweep, model: LadderModel, steps: int = 1) -> float:
    """Return the operations of training per token of text, averaged over the first `steps`.

    All operations are counted exactly, for the sweep's objective.
    """
    return count_position_flops(sweep.objective, model.model, sweep.batches.sequence_length, steps)


def find_sweep_model(sweep: Sweep, parameters: float, data: SweepTokens) -> LadderModel:
    """Return the model closest to a number of parameters, for the rows and objective of `sweep`."""
    length = row_shapes.compute_widest_row(sweep.objective, sweep.batches.sequence_length)
    kind = row_shapes.find_model_kind(sweep.objective)
    found = find_ladder_model_of(
        kind, parameters, data.vocabulary, length, sweep.tie_embeddings, sweep.mup
    )
    return with_further_heads(found, sweep.objective.further_heads)


def plan_trial(
    sweep: Sweep,
    model: LadderModel,
    seed: int,
    points: Sequence[DesignPoint],
    factors: RateBatchPair,
) -> Trial:
    """Plan the trial of `model` with `seed` that gives `points`.

    Raises ConfigError if a run has too few steps.
    """
    settings = sweep.training
    length = sweep.batches.sequence_length
    wanted = sorted(point.tokens for point in points)
    middle = math.sqrt(wanted[0] * wanted[-1])
    rule = sweep.rule
    by_rule = rule.compute_batch(model.parameters, middle) * factors.batch
    batch = round_to_sequences(by_rule, length, wanted[0], settings.fewest_steps)
    budgets = {point.tokens: point.budget for point in points}
    lengths: dict[int, TrialLength] = {}
    for tokens in wanted:
        steps = round(tokens / (batch * length))
        if steps < settings.fewest_steps / 2:  # even the smallest batch leaves so few steps
            raise ConfigError(
                f"{sweep.points_key}: {tokens:,.0f} tokens for {model.parameters:,} parameters are "
                f"{steps} steps of {batch} x {length} tokens, too few for training.fewest_steps = "
                f"{settings.fewest_steps}; {sweep.remedy_if_short}, or lower "
                "batches.sequence_length"
            )
        lengths.setdefault(steps, TrialLength(steps, steps * batch * length, budgets[tokens]))
    return Trial(
        name=f"n{model.parameters}-s{seed}",
        ladder_model=model,
        seed=seed,
        batch=batch,
        ruled_batch=round_to_sequences(by_rule, length, math.inf, 1),
        rate=rule.compute_rate(model.parameters, middle) * factors.rate,
        warmup=max(1, round(settings.warmup * min(lengths))),
        lengths=tuple(lengths[steps] for steps in sorted(lengths)),
        stage=points[0].stage,
    )


def plan_search(
    sweep: Sweep, search: RateSearch, data: SweepTokens, pairs: Sequence[RateBatchPair]
) -> list[Trial]:
    """Plan one trial for each of `pairs`, at the N and D of `search`."""
    model = find_sweep_model(sweep, search.parameters, data)
    points = [DesignPoint(search.parameters, search.tokens)]
    found = []
    for pair in pairs:
        factors = RateBatchPair(sweep.rate_factor * pair.rate, sweep.batch_factor * pair.batch)
        trial = plan_trial(sweep, model, sweep.seeds[0], points, factors)
        found.append(dataclasses.replace(trial, name=pair.name, place=SEARCH))
    _check_epochs(sweep, found, data)
    return found


def describe_smaller_batches(sweep: Sweep, trials: Sequence[Trial]) -> str:
    """Return which trials have a smaller batch than the rule gives, or "" if none has.

    Trials of one law whose batches differ for another reason than the rule's differ in more than N
    and D, and the learning rate stays that of the rule's batch.
    """
    smaller = [trial for trial in trials if trial.batch < trial.ruled_batch]
    if not smaller:
        return ""
    named = ", ".join(
        f"{trial.name} {trial.batch} of {trial.ruled_batch} sequences" for trial in smaller[:4]
    )
    more = f" and {len(smaller) - 4} more" if len(smaller) > 4 else ""
    return (
        f"{len(smaller)} of {len(trials)} trials have a smaller batch than rule {sweep.rule.kind} "
        f"gives ({named}{more}), so that their shortest run has training.fewest_steps = "
        f"{sweep.training.fewest_steps}; train them on more tokens, or lower fewest_steps, for one "
        "rule in all trials"
    )


def _check_epochs(sweep: Sweep, trials: Sequence[Trial], data: SweepTokens) -> None:
    """Raise ConfigError, with the possible remedies, if points repeat their data too often."""
    allowed = sweep.batches.epochs
    beyond = [
        (length.tokens / data.unique_tokens, trial, length)
        for trial in trials
        for length in trial.lengths
        if length.tokens > allowed * data.unique_tokens
    ]
    if not beyond:
        return
    epochs, trial, length = max(beyond, key=lambda entry: entry[0])
    raise ConfigError(
        f"{sweep.points_key}: {len(beyond)} of its points pass more than {allowed:g} times over "
        f"the {data.unique_tokens:,} unique tokens of {sweep.tokens}, the longest "
        f"{epochs:.1f} times ({length.tokens:,} tokens for "
        f"{trial.ladder_model.parameters:,} parameters). "
        "Repeated tokens teach less than new ones: leave out these points, tokenize more text, "
        f"or set batches.epochs = {math.ceil(epochs)} and fit the data-constrained form"
    )


def name_run_folder(sweep: Sweep, trial: Trial, length: TrialLength) -> str:
    """Return the path of the run folder of one run of a trial."""
    return storage.join(sweep.output, trial.place, trial.name, f"d{length.tokens}")


def build_run_file(
    sweep: Sweep, trial: Trial, length: TrialLength, data: SweepTokens
) -> Pretraining:
    """Return the run file of one run, as for `trainrig pretrain`."""
    rows = sweep.batches
    training = sweep.training
    micro = min(rows.micro_batch, trial.batch)
    branches = [count_stable_steps(sweep, trial, shorter) for shorter in trial.lengths[:-1]]
    is_trunk = length == trial.trunk
    measured = length.steps
    if trial.place == SEARCH and sweep.search:
        measured = list_rungs(sweep.search.scheduler, length.steps)[0]
    elif sweep.along and is_trunk:
        measured = max(1, length.steps // (sweep.along + 1))
    batches = rows.build_batch_settings(trial.batch, micro, trial.seed)
    if trial.weights is not None:
        batches = batches.model_copy(update={"weights": dict(trial.weights)})
    return Pretraining(
        tokens=sweep.tokens,
        output=name_run_folder(sweep, trial, length),
        cache=sweep.cache,
        model=trial.ladder_model.model,
        objective=sweep.objective,
        batches=batches,
        training=Training(
            steps=length.steps,
            seed=trial.seed,
            optimizer=AdamW(
                lr=trial.rate, betas=training.betas, weight_decay=training.weight_decay
            ),
            schedule=build_schedule(sweep, trial),
            clip_norm=training.clip_norm,
            threads=training.threads,
            precision=training.precision,
            # Trials are short: the compilation that is the default on a GPU would not pay off.
            compile=training.compile or False,
            deterministic=training.deterministic,
            checkpoints=Checkpoints(
                every=training.checkpoint_every, keep_at=tuple(branches) if is_trunk else ()
            ),
            held_out=HeldOutSettings(
                every=measured, rows=sweep.held_out_rows or data.held_out_windows
            ),
        ),
    )


def build_schedule(sweep: Sweep, trial: Trial) -> WarmupStableDecay:
    """Return the learning-rate schedule that all runs of a trial share."""
    return WarmupStableDecay(warmup=trial.warmup, decay=sweep.training.decay)


def count_stable_steps(sweep: Sweep, trial: Trial, length: TrialLength) -> int:
    """Return the number of steps before a run's rate decays, where it branches from the trunk."""
    return build_schedule(sweep, trial).stable_steps(length.steps)
