"""Progress of a designed sweep: the prediction after each stage, and the decision to end.

After a stage, the law of `trainrig fit` is fitted to all runs so far, with its default settings.
The decision depends on these runs alone, not on their order or their times.
"""

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from trainrig import storage
from trainrig.errors import ConfigError, DataError
from trainrig.scaling.fit.law_fit import LawFit, fit_law
from trainrig.scaling.laws.law_forms import Form
from trainrig.scaling.laws.runs_table import RunsTable
from trainrig.scaling.sweep.budget_design import BudgetDesign
from trainrig.scaling.sweep.sweep_run_file import OptimalDesign
from trainrig.scaling.sweep.trials import Trial

DESIGN_FILE = "design.json"

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class StagePrediction:
    """Prediction of the target's loss by the runs of all stages so far."""

    loss: float | None  # nats per token; None: no law could be fitted
    low: float | None  # ends of the 95% interval; None: unbounded or unknown
    high: float | None
    reason: str = ""  # why there is no loss or no interval

    @property
    def width(self) -> float | None:
        """The width of the interval relative to the loss, or None if it is not bounded."""
        if self.loss is None or self.low is None or self.high is None:
            return None
        return (self.high - self.low) / self.loss


def predict_target(design: OptimalDesign, runs: RunsTable) -> StagePrediction:
    """Predict the loss of the design's target from `runs`, as `trainrig fit` and `predict` do."""
    parameters, tokens = design.predict

    def compute_loss(form: Form) -> float:
        return float(form.compute_loss(parameters, tokens))

    try:
        law = fit_law(runs, LawFit(), "sweep").law
    except DataError as why:
        return StagePrediction(None, None, None, str(why))
    interval = law.predict_interval(compute_loss, parameters, tokens)
    loss = law.combine(compute_loss)
    if interval is None:
        return StagePrediction(loss, None, None, law.no_interval)
    return StagePrediction(loss, interval.low, interval.high)


def is_narrow_enough(design: OptimalDesign, found: StagePrediction) -> bool:
    """Return whether the sweep ends after a stage because its prediction is narrow enough."""
    wanted = design.stop_at_width
    return wanted is not None and found.width is not None and found.width <= wanted


def report_stage(designed: BudgetDesign, number: int, found: StagePrediction) -> None:
    """Log the prediction after the stage `number`, counted from 0."""
    announced = designed.stages[number]
    if found.width is None:
        measured = f"no interval yet: {found.reason or 'it is not bounded'}"
    else:
        measured = f"loss {found.loss:.4f} [{found.low:.4f}, {found.high:.4f}], {found.width:.1%}"
    log.info("stage %d: %s; measured: %s", number + 1, announced.describe(), measured)


def check_earlier_design(folder: str, trials: Sequence[Trial]) -> None:
    """Raise ConfigError if the sweep in `folder` began with other trials than `trials` do."""
    path = storage.join(folder, DESIGN_FILE)
    if not storage.exists(path):
        return
    earlier = json.loads(storage.read(path))
    names = _list_lengths(trials)
    if any(names.get(name) != lengths for name, lengths in earlier["trials"].items()):
        raise ConfigError(
            f"design: {folder} has the trials of the budgets {', '.join(earlier['budgets'])}, and "
            "this design has others; keep these budgets and append a larger one, with no other "
            "change of the design, or set another output"
        )


def serialise_progress(
    designed: BudgetDesign, trials: Sequence[Trial], found: Sequence[StagePrediction]
) -> bytes:
    """Return the design and the predictions after its finished stages as JSON."""
    stages: list[dict[str, Any]] = []
    for number, stage in enumerate(designed.stages):
        entry = asdict(stage)
        if number < len(found):
            keys = ("loss", "low", "high", "width", "reason")
            entry |= {key: getattr(found[number], key) for key in keys}
        stages.append(entry)
    parameters, tokens = designed.design.predict
    content = {
        "budgets": list(designed.design.budgets),
        "predict": {"parameters": parameters, "tokens": tokens},
        "stages": stages,
        "trials": _list_lengths(trials),
    }
    return json.dumps(content, indent=1, allow_nan=False).encode()


def summarise_prediction(
    designed: BudgetDesign, found: Sequence[StagePrediction]
) -> Mapping[str, Any]:
    """Return the figures of the last finished stage for the manifest."""
    last = found[-1]
    return {
        "stages": len(found),
        "stages_planned": len(designed.stages),
        "predicted_loss": last.loss,
        "predicted_width": last.width,
        "expected_width": designed.stages[len(found) - 1].expected_width,
    }


def _list_lengths(trials: Sequence[Trial]) -> dict[str, list[int]]:
    return {trial.name: [length.tokens for length in trial.lengths] for trial in trials}
