"""The stage `mixture`: from the names of sources to weights that pretraining reads.

It trains small models on drawn mixtures, fits their losses, proposes a mixture, and trains that one
beside the natural and the uniform mixture. Run folders record what has finished, as in a sweep. So
a second call trains nothing twice, and the fit depends on the losses alone.
"""

import csv
import io
from collections.abc import Iterable, Sequence
from statistics import NormalDist
from typing import Any

import numpy as np

from trainrig import config, manifest, storage
from trainrig.errors import DataError
from trainrig.manifest import Manifest
from trainrig.processes import lease
from trainrig.scaling.laws.law import Interval
from trainrig.scaling.mixture.confirmation_record import Confirmation, ConfirmedMixture
from trainrig.scaling.mixture.mixture_draws import count_needed_runs
from trainrig.scaling.mixture.mixture_fit import MixtureFit, MixtureResult, fit_runs
from trainrig.scaling.mixture.mixture_page import write_result
from trainrig.scaling.mixture.mixture_proposal import LEVEL, MixtureRecord
from trainrig.scaling.mixture.mixture_run_file import MixtureFinding
from trainrig.scaling.mixture.mixture_runs import MixtureRuns
from trainrig.scaling.mixture.proxy_trials import ProxyTrials
from trainrig.scaling.sweep.ray_tune import connect_for_trials
from trainrig.scaling.sweep.sweep import SweepDriver
from trainrig.scaling.sweep.sweep_progress import Show
from trainrig.scaling.sweep.trial import read_diverged
from trainrig.scaling.sweep.trials import Trial, name_run_folder
from trainrig.train.run import metrics

SHARES, LOSSES = "shares.csv", "losses.csv"


def find_mixture(run: MixtureFinding, show: Show = lambda done, of, rows: None) -> Manifest:
    """Train the proxies of `run`, propose a mixture, confirm it, and return the manifest.

    `show` receives the progress. Raises InputError before any training if the run cannot work,
    ClusterError if runs failed more often than allowed, and Unfinished on a stop request.
    """
    run = config.with_absolute_paths(run)
    tokens = manifest.read_input(run.tokens, "tokenize")
    planned = ProxyTrials.plan(run)
    stage = manifest.claim(run.output, run, {"tokens": tokens.content})
    if stage.finished:
        return stage.finished
    with lease.hold_lease(run.output):
        connect_for_trials(planned.sweep)
        driver = SweepDriver(stage, planned.sweep, planned.data, show)
        drawn = planned.list_drawn()
        driver.train(drawn)
        runs = _collect_runs(planned, drawn)
        settings = MixtureFit(
            mixtures=storage.join(run.output, SHARES),
            losses=storage.join(run.output, LOSSES),
            targets=tuple(planned.targets),
            target_weights=planned.targets if run.targets else {},
            method=run.method,
            search=planned.search,
        )
        result = fit_runs(settings, runs.weigh_targets(planned.targets))
        if run.confirm:
            result = result.with_confirmation(_confirm(planned, result, driver))
        names = [SHARES, LOSSES, *write_result(settings, result, run.output)]
        files = {name: manifest.compute_file_sum(stage.build_path(name)) for name in names}
        return stage.finish(_summarise(result.record), files, driver.sum_cost())


def _collect_runs(planned: ProxyTrials, drawn: Sequence[Trial]) -> MixtureRuns:
    """Return the runs that did not diverge, and write the tables of the runs.

    A diverged run has empty losses in its table. The tables are not read again, because a reader of
    tables gives some names of sources a meaning, such as `run` and `books (M)`. Raises DataError if
    too few runs are left.
    """
    shares: list[list[Any]] = [["run", *planned.sources]]
    losses: list[list[Any]] = [["run", *planned.targets]]
    fitted: list[tuple[list[float], list[float]]] = []
    for trial in drawn:
        assert trial.weights is not None
        weights = list(trial.weights.values())
        found = _read_losses(planned, trial)
        shares.append([trial.name, *weights])
        cells: Sequence[Any] = found or [""] * len(planned.targets)
        losses.append([trial.name, *cells])
        if found:
            fitted.append((weights, found))
    for name, rows in ((SHARES, shares), (LOSSES, losses)):
        storage.write(storage.join(planned.run.output, name), _format_csv(rows))
    needed = count_needed_runs(len(planned.sources))
    if len(fitted) < needed:
        raise DataError(
            f"{planned.run.output}: {len(drawn) - len(fitted)} of {len(drawn)} runs diverged, and "
            f"a regression needs {needed} that did not; raise proxy.runs, or set a lower "
            "rate_factor and another output"
        )
    return MixtureRuns(
        sources=planned.sources,
        targets=tuple(planned.targets),
        shares=np.array([weights for weights, _ in fitted]),
        losses=np.array([found for _, found in fitted]),
        left_out=len(drawn) - len(fitted),
    )


def _format_csv(rows: Iterable[Sequence[Any]]) -> bytes:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue().encode()


def _read_losses(planned: ProxyTrials, trial: Trial) -> list[float] | None:
    """Return the held-out loss of each target at the end of a run, or None if it diverged."""
    folder = name_run_folder(planned.sweep, trial, trial.trunk)
    if read_diverged(folder):
        return None
    last = metrics.read_held_out_series(folder)[-1]
    return [float(last[f"eval/{target}/loss"]) for target in planned.targets]


def _confirm(planned: ProxyTrials, result: MixtureResult, driver: SweepDriver) -> Confirmation:
    """Train the proposed, the natural and the uniform mixture, and compare them."""
    proposed = {share.source: share.weight for share in result.record.weights}
    mixtures = planned.list_confirmed(proposed)
    trials = {name: planned.list_confirmations(name, weights) for name, weights in mixtures.items()}
    driver.train([trial for of_mixture in trials.values() for trial in of_mixture])
    shares = np.array([[weights[s] for s in planned.sources] for weights in mixtures.values()])
    expected, deviations = result.regression.predict(shares)
    noise = result.regression.noise / np.sqrt(planned.run.confirm)
    reach = NormalDist().inv_cdf((1 + LEVEL) / 2) * np.sqrt(deviations**2 + noise**2)
    confirmed = [
        ConfirmedMixture(
            name=name,
            weights=weights,
            predicted=float(loss),
            interval=Interval(low=float(loss - half), high=float(loss + half), level=LEVEL),
            losses=tuple(_measure(planned, trial) for trial in trials[name]),
        )
        for (name, weights), loss, half in zip(mixtures.items(), expected, reach, strict=True)
    ]
    return Confirmation.build(confirmed, LEVEL)


def _measure(planned: ProxyTrials, trial: Trial) -> float:
    """Return the weighted mean of a run's held-out losses; raise DataError if it diverged."""
    losses = _read_losses(planned, trial)
    if losses is None:
        raise DataError(
            f"{name_run_folder(planned.sweep, trial, trial.trunk)}: a run of the confirmation "
            "diverged; set confirm = 0 for weights without a confirmation, or a lower rate_factor "
            "and another output"
        )
    return float(np.dot(losses, list(planned.targets.values())))


def _summarise(record: MixtureRecord) -> dict[str, Any]:
    """Return the key figures of a search for its manifest."""
    found: dict[str, Any] = {
        "runs": record.runs,
        "runs_left_out": record.runs_left_out,
        "loss": record.loss,
        "loss_low": record.loss_interval.low,
        "loss_high": record.loss_interval.high,
        "gain": record.gain,
        "weights": {share.source: share.weight for share in record.weights},
    }
    if record.confirmation:
        found |= {f"measured_{one.name}": one.measured for one in record.confirmation.mixtures}
    return found
