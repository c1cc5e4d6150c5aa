"""Fit and judgement of a mixture proposal from runs on different mixtures."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from trainrig import config
from trainrig.config import Field, Settings, format_toml_value
from trainrig.errors import ConfigError
from trainrig.manifest import collect_environment
from trainrig.scaling.laws.law import Interval
from trainrig.scaling.laws.law_formats import format_loss_interval
from trainrig.scaling.mixture import mixture_proposal, mixture_regression
from trainrig.scaling.mixture.confirmation_record import Confirmation
from trainrig.scaling.mixture.mixing_law_draws import DrawnLaws
from trainrig.scaling.mixture.mixture_draws import round_shares
from trainrig.scaling.mixture.mixture_proposal import (
    LEVEL,
    MixtureRecord,
    Proposal,
    RegressionScore,
    SourceShare,
    propose,
)
from trainrig.scaling.mixture.mixture_regression import (
    GaussianProcess,
    MeanLaw,
    MeanProcess,
    MeanRegression,
    MixingLaw,
    PredictedLosses,
)
from trainrig.scaling.mixture.mixture_runs import MixtureRuns
from trainrig.scaling.mixture.mixture_settings import Method, MixtureSearch
from trainrig.train.run_file.run_files import Pretraining

RECORD, SECTION, RUN, PAGE = "mixture.json", "mixture.toml", "pretrain.toml", "report.html"


class MixtureFit(Settings):
    """Settings of a mixture fit: its input files and its search."""

    mixtures: str = Field(min_length=1)  # CSV with one line per run: the share of each source
    losses: str = Field(min_length=1)  # CSV with the same runs: the loss of each target
    targets: tuple[str, ...] = ()  # columns whose mean loss is minimised; empty: all columns
    # weight of each of `targets`, with the sum 1; empty: all weigh the same
    target_weights: Mapping[str, float] = Field({})
    method: Method = "RegMix"  # regression that predicts losses
    # CSV with the mixtures of runs that the fit is judged on; they are not fitted
    held_out_mixtures: str | None = None
    held_out_losses: str | None = None
    # run file of `trainrig pretrain`, of which a copy with the proposed weights is written
    run: str | None = None
    search: MixtureSearch = MixtureSearch()

    def check(self) -> None:
        """Raise ConfigError if only one of the two held-out files is given."""
        if (self.held_out_mixtures is None) != (self.held_out_losses is None):
            raise ConfigError(
                "held-out runs need two files: give both their mixtures and their losses"
            )


@dataclass(frozen=True, eq=False)
class MixtureResult:
    """Record of a fit, and the points that its page plots."""

    record: MixtureRecord
    # Losses of each fitted run, predicted from the other runs.
    left_out: PredictedLosses
    held_out: PredictedLosses | None
    regression: MeanRegression

    def with_confirmation(self, confirmation: Confirmation) -> "MixtureResult":
        """Return the same result with the losses that were measured on the proposal."""
        warnings = (*confirmation.find_warnings(), *self.record.warnings)
        changes = {"confirmation": confirmation, "warnings": warnings}
        record = self.record.model_copy(update=changes)
        return replace(self, record=record)


def fit_mixture(settings: MixtureFit) -> MixtureResult:
    """Fit the regressions, score them, and propose a mixture.

    Raises ConfigError or DataError if the settings or the files do not allow a fit.
    """
    settings.check()
    return fit_runs(settings, _read_runs(settings, settings.mixtures, settings.losses))


def fit_runs(settings: MixtureFit, runs: MixtureRuns) -> MixtureResult:
    """Fit `runs`, the content of the two files of `settings`, and propose a mixture.

    Their losses are already weighted by target. Raises ConfigError or DataError if the settings or
    the runs do not allow a fit.
    """
    runs.refuse_too_few(settings.mixtures)
    limits = settings.search.compute_limits(runs.sources)
    others = _read_held_out(settings, runs)
    process = mixture_regression.MeanProcess.fit(runs.shares, runs.losses)
    law = mixture_regression.MeanLaw.fit(runs.shares, runs.losses)
    by_process = settings.method == "RegMix"
    regression: MeanRegression = process if by_process else DrawnLaws.fit(runs.shares, runs.losses)
    judged = _judge(settings, runs, others, process, law)
    if not by_process:
        judged = [judged[1], judged[0], *reversed(judged[2:])]
    by_target = {}
    if others is not None:
        parts: Sequence[GaussianProcess | MixingLaw] = process.processes if by_process else law.laws
        by_target = {
            target: PredictedLosses(
                part.expect(others.shares), others.losses[:, column]
            ).rank_correlation
            for column, (target, part) in enumerate(zip(runs.targets, parts, strict=True))
        }
    found = propose(regression, runs.shares, settings.search, limits)
    record = MixtureRecord(
        method=settings.method,
        targets=runs.targets,
        target_weights=settings.target_weights,
        runs=len(runs),
        runs_left_out=runs.left_out,
        weights=_round_weights(runs, found),
        loss=found.loss,
        loss_interval=_build_interval(found.loss_interval),
        average_loss=found.average_loss,
        gain=found.gain,
        gain_interval=_build_interval(found.gain_interval),
        lowest_measured=float(runs.losses.mean(axis=1).min()),
        law_loss=float(law.expect(found.shares[None])[0]),
        process_loss=float(process.expect(found.shares[None])[0]),
        noise=regression.noise,
        scores=tuple(score for score, _ in judged),
        by_target=by_target,
        search=settings.search,
        made_by=collect_environment(),
    )
    record = record.model_copy(update={"warnings": tuple(mixture_proposal.find_warnings(record))})
    held_out = None if others is None else judged[2][1]
    return MixtureResult(record, judged[0][1], held_out, regression)


def format_section(record: MixtureRecord) -> str:
    """Return the weights as the `[batches.weights]` table of a run file of `trainrig pretrain`."""
    kind = "weighted mean" if record.target_weights else "mean"
    lines = [
        f"# Expected loss {record.loss:.4f} {format_loss_interval(record.loss_interval)} nats per "
        f"token, the {kind} of {len(record.targets)} targets,",
        f"# by {record.runs} runs; {record.gain:.4f} "
        f"{format_loss_interval(record.gain_interval)} below the loss of their average mixture.",
    ]
    if record.confirmation:
        lines += [f"# {line}." for line in record.confirmation.describe()]
    lines.append("[batches.weights]")
    lines += [
        f"{json.dumps(share.source, ensure_ascii=False)} = {format_toml_value(share.weight)}"
        for share in record.weights
    ]
    return "\n".join(lines) + "\n"


def apply_weights(run: Pretraining, record: MixtureRecord) -> str:
    """Return the text of the run file `run` with the weights of `record`."""
    weights = {share.source: share.weight for share in record.weights}
    batches = run.batches.model_copy(update={"weights": weights})
    return config.to_toml(run.model_copy(update={"batches": batches}))


def _read_held_out(settings: MixtureFit, runs: MixtureRuns) -> MixtureRuns | None:
    if settings.held_out_mixtures is None or settings.held_out_losses is None:
        return None
    others = _read_runs(settings, settings.held_out_mixtures, settings.held_out_losses)
    if others.sources != runs.sources:
        differ = sorted(set(others.sources) ^ set(runs.sources))
        named = f" ({', '.join(differ[:3])})" if differ else " (in another order)"
        raise ConfigError(
            f"{settings.held_out_mixtures}: its sources differ from the sources of "
            f"{settings.mixtures}{named}; give both files the same columns"
        )
    return others


def _read_runs(settings: MixtureFit, mixtures: str, losses: str) -> MixtureRuns:
    """Return the runs of two files, with the losses of the targets as they are weighed."""
    runs = MixtureRuns.read(mixtures, losses).select_targets(settings.targets)
    return runs.weigh_targets(settings.target_weights) if settings.target_weights else runs


def _judge(
    settings: MixtureFit,
    runs: MixtureRuns,
    others: MixtureRuns | None,
    process: MeanProcess,
    law: MeanLaw,
) -> list[tuple[RegressionScore, PredictedLosses]]:
    """Return the scores of the processes and the laws, on runs left out and on held-out runs."""
    mean = float(runs.losses.mean())
    seed = settings.search.seed
    in_folds = mixture_regression.cross_validate_law(runs.shares, runs.losses, seed)
    found = [
        (
            "Gaussian processes",
            "runs left out one at a time",
            mixture_regression.predict_left_out(process, runs.losses),
        ),
        ("mixing laws", "runs left out a fifth at a time", in_folds),
    ]
    if others is not None:
        actual = others.losses.mean(axis=1)
        where = "the held-out runs"
        found += [
            (name, where, PredictedLosses(regression.expect(others.shares), actual))
            for name, regression in (("Gaussian processes", process), ("mixing laws", law))
        ]
    return [(_build_score(name, on, losses, mean), losses) for name, on, losses in found]


def _build_score(
    regression: str, judged_on: str, judged: PredictedLosses, mean: float
) -> RegressionScore:
    return RegressionScore(
        regression=regression,
        judged_on=judged_on,
        rows=len(judged.actual),
        rank_correlation=judged.rank_correlation,
        error=judged.error,
        baseline_error=float(np.sqrt(np.mean((judged.actual - mean) ** 2))),
        shift=float(np.mean(judged.predicted - judged.actual)),
    )


def _build_interval(ends: tuple[float, float]) -> Interval:
    return Interval(low=ends[0], high=ends[1], level=LEVEL)


def _round_weights(runs: MixtureRuns, found: Proposal) -> tuple[SourceShare, ...]:
    rounded = round_shares(found.shares)
    return tuple(
        SourceShare(
            source=source,
            weight=float(rounded[index]),
            interval=_build_interval((float(found.low[index]), float(found.high[index]))),
            average=float(found.average_shares[index]),
        )
        for index, source in enumerate(runs.sources)
    )
