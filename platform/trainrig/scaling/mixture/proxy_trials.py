"""Runs of a search for a mixture: the drawn mixtures, and those of the confirmation."""

import dataclasses
import functools
import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from trainrig import storage
from trainrig.config import suggest_choice
from trainrig.errors import ConfigError, DataError
from trainrig.manifest import MANIFEST
from trainrig.scaling.mixture.mixture_draws import (
    DECIMALS,
    Array,
    count_needed_runs,
    draw_mixtures,
    limit_shares,
    round_shares,
)
from trainrig.scaling.mixture.mixture_run_file import MixtureFinding
from trainrig.scaling.mixture.mixture_settings import MixtureSearch
from trainrig.scaling.sweep.design_points import estimate_sweep, list_design_points
from trainrig.scaling.sweep.rate_search import RateBatchPair
from trainrig.scaling.sweep.sweep_run_file import Sweep
from trainrig.scaling.sweep.trials import SweepTokens, Trial, plan, read_sweep_tokens
from trainrig.tokens.rows.packing import open_layout
from trainrig.tokens.shards.token_shards import HELD_OUT, TRAIN, TokenShards

# Range of the total concentration of drawn mixtures, from nearly one source alone to close to the
# natural shares. RegMix's strengths reach as far, for 17 sources.
CONCENTRATION = (1.0, 20.0)
# Share that a limit stays below what the epochs of a source allow, for the rounding of weights.
MARGIN = 1e-3
PROPOSED, NATURAL, UNIFORM = "proposed", "natural", "uniform"  # the mixtures that are confirmed
# First number of each random stream, so that the seeds of proxies and confirmations differ.
DRAWS, PROXIES, CONFIRMATIONS = 0, 1, 2

Shares = Mapping[str, float]


@dataclass(frozen=True)
class ProxyTrials:
    """Plan of all runs of a search: they differ from one trial in weights and seed only."""

    run: MixtureFinding
    sweep: Sweep
    data: SweepTokens
    base: Trial
    natural: Shares  # shares of the sources in the tokens

    @classmethod
    def plan(cls, run: MixtureFinding) -> "ProxyTrials":
        """Read the tokens of `run` and plan its runs; raise InputError if they cannot work."""
        natural = _check_sources(run)
        run.search.compute_limits(tuple(natural))  # raises the errors of the user's limits
        sweep = run.build_sweep()
        data = read_sweep_tokens(sweep)
        factors = RateBatchPair(run.rate_factor, run.batch_factor)
        (base,) = plan(sweep, list_design_points(sweep, data), data, factors)
        planned = cls(run, sweep, data, base, natural)
        planned._check_epochs()
        planned.search.compute_limits(planned.sources)  # raises the errors of limits with epochs
        return planned

    @property
    def sources(self) -> tuple[str, ...]:
        """Names of the sources, in alphabetical order."""
        return tuple(self.natural)

    @property
    def targets(self) -> Shares:
        """Weight of each target in the loss; they sum to 1."""
        targets = self.run.targets or dict.fromkeys(self.sources, 1.0)
        total = sum(targets.values())
        return {target: weight / total for target, weight in targets.items()}

    @functools.cached_property
    def epoch_limits(self) -> Shares:
        """Greatest share of each source that its epochs allow in a proxy run, at most 1."""
        samples = self.base.trunk.steps * self.base.batch
        rows = self.run.batches
        shards = TokenShards.open(storage.join(self.run.tokens, TRAIN), self.run.cache)
        layout = open_layout(rows.packing, shards, rows.sequence_length, self.run.cache)
        limits = {}
        for source in self.sources:
            most = (rows.epochs * layout.windows(source) - 1) / samples - MARGIN
            limits[source] = round(min(max(most, 0.0), 1.0), DECIMALS)
        return limits

    @property
    def search(self) -> MixtureSearch:
        """The run's search, in which no source exceeds its epochs in a proxy run."""
        given = self.run.search
        limits = dict(given.at_most)
        for source, most in self.epoch_limits.items():
            if most < limits.get(source, 1.0):
                limits[source] = most
        return given.model_copy(update={"at_most": limits})

    def list_drawn(self) -> list[Trial]:
        """Return the trials on drawn mixtures; with more runs, the first trials stay the same."""
        return [
            self._build_trial(f"mix-{number:04}", self._draw(number), PROXIES, number)
            for number in range(self.run.proxy.runs)
        ]

    def list_confirmations(self, name: str, weights: Shares) -> list[Trial]:
        """Return the trials on the mixture `name`, one for each seed of the confirmation.

        The mixtures share their seeds, so that they differ in nothing else.
        """
        # another proposal, after more runs or of another method, has other folders
        mark = hashlib.sha256(json.dumps(sorted(weights.items())).encode()).hexdigest()[:8]
        return [
            self._build_trial(f"{name}-{mark}-{number}", weights, CONFIRMATIONS, number)
            for number in range(self.run.confirm)
        ]

    def list_confirmed(self, proposed: Shares) -> dict[str, Shares]:
        """Return the weights of the mixtures to confirm, the proposed one first."""
        uniform = np.full(len(self.sources), 1 / len(self.sources))
        return {
            PROPOSED: proposed,
            NATURAL: self._fit_limits(np.array(list(self.natural.values()))),
            UNIFORM: self._fit_limits(uniform),
        }

    def _check_epochs(self) -> None:
        """Raise ConfigError if the epochs of all sources together do not suffice for a run."""
        total = math.fsum(self.epoch_limits.values())
        if total < 1:
            raise _describe_epochs(self.run, total * self.base.trunk.tokens)

    def _draw(self, number: int) -> Shares:
        generator = np.random.default_rng([self.run.seed, DRAWS, number])
        natural = np.array(list(self.natural.values()))
        return self._fit_limits(draw_mixtures(natural, 1, generator, CONCENTRATION)[0])

    def _fit_limits(self, shares: Array) -> Shares:
        """Return `shares` rounded, and lowered where the epochs of a source do not suffice."""
        limits = np.array(list(self.epoch_limits.values()))
        rounded = round_shares(limit_shares(shares[None], limits)[0])
        return dict(zip(self.sources, rounded.tolist(), strict=True))

    def _build_trial(self, name: str, weights: Shares, stream: int, number: int) -> Trial:
        sequence = np.random.SeedSequence([self.run.seed, stream, number])
        seed = int(sequence.generate_state(1)[0])
        return dataclasses.replace(self.base, name=name, seed=seed, weights=weights)


def estimate_mixture(run: MixtureFinding, _: object) -> dict[str, float | str]:
    """Return the estimate of what `run` will train: the models and the operations of all runs.

    Returns an empty mapping before the tokens exist. Raises InputError if the run cannot work.
    """
    if not storage.exists(storage.join(run.tokens, MANIFEST)):
        return {}
    planned = ProxyTrials.plan(run)
    number = run.proxy.runs + 3 * run.confirm
    facts = estimate_sweep(planned.sweep, None)
    totals = {name: number * float(facts[name]) for name in ("flops", "flops_by_6nd")}
    return {**facts, "trials": number, "runs": number, **totals}


def _check_sources(run: MixtureFinding) -> Shares:
    """Return the natural share of each source, in alphabetical order.

    Raises DataError or ConfigError if the tokens have too few sources, a source has too few tokens,
    a target does not exist, or the runs are too few to fit.
    """
    train, held_out = (
        TokenShards.open(storage.join(run.tokens, split), run.cache) for split in (TRAIN, HELD_OUT)
    )
    tokens = {source: train.tokens(source) for source in sorted(train.sources)}
    if len(tokens) < 2:
        raise DataError(
            f"{run.tokens}: only one source, '{next(iter(tokens), '')}', so there is nothing to "
            "weigh; tokenize two or more sources into one folder"
        )
    window = run.batches.sequence_length + 1
    _check_tokens(run.tokens, tokens, tokens, window, "lower batches.sequence_length")
    found = {source: held_out.tokens(source) for source in held_out.sources}
    targets = run.targets or tokens
    for target in targets:
        if target not in tokens:
            raise ConfigError(
                f"targets: {run.tokens} has no source '{target}'{suggest_choice(target, tokens)}"
            )
    _check_tokens(f"{run.tokens}: held out", found, list(targets), 2, "tokenize with more held_out")
    needed = count_needed_runs(len(tokens))
    if run.proxy.runs < needed:
        raise ConfigError(
            f"proxy.runs: {run.proxy.runs} runs of {len(tokens)} sources, but a regression needs "
            f"{needed} or more (RegMix: 512 for 17 sources)"
        )
    total = sum(tokens.values())
    if run.proxy.tokens > run.batches.epochs * total:
        raise _describe_epochs(run, run.batches.epochs * total)
    return {source: count / total for source, count in tokens.items()}


def _describe_epochs(run: MixtureFinding, most: float) -> ConfigError:
    return ConfigError(
        f"proxy.tokens: {run.proxy.tokens:,.0f} tokens of one run, but batches.epochs = "
        f"{run.batches.epochs:g} passes over {run.tokens} give {most:,.0f}; set "
        f"{0.95 * most:,.0f} or fewer, raise batches.epochs, or tokenize more text"
    )


def _check_tokens(
    where: str, tokens: Mapping[str, int], sources: Sequence[str] | Shares, least: int, remedy: str
) -> None:
    for source in sources:
        if tokens.get(source, 0) < least:
            raise DataError(
                f"{where}: source '{source}' has {tokens.get(source, 0)} tokens, and {least} or "
                f"more are needed; add text to it, or {remedy}"
            )
