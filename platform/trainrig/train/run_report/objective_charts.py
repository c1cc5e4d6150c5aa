"""Charts of what a run's objective measures: preferences, labels, and parts of a mixture."""

import numpy as np

from trainrig.objectives.objective_kinds import find_kind
from trainrig.report import plots
from trainrig.report.number_formats import format_percent
from trainrig.report.plots import ChartFacts
from trainrig.train.run_report.run_charts import (
    LAST_ROWS,
    RunReportData,
    draw_by_name,
    draw_trends,
    list_values,
    select_lines,
)

TRAIN = "train/diagnostics/"
EVAL = "eval/diagnostics/"
ACCURACY = "reward_accuracy"
CHOSEN = "chosen_reward"
REJECTED = "rejected_reward"
CALIBRATION = f"{EVAL}calibration/"  # metric names of objectives/reward.py
F1 = "f1"
# The objectives of a mixture are its members. A metric "eval/diagnostics/loss/NAME" is the held-out
# loss of the member NAME.
OF_MEMBER = "diagnostics/loss/"


def draw_preferences(run_data: RunReportData) -> dict[str, ChartFacts]:
    """Draw the charts of preferences for which the run has measurements, by name."""
    lines = select_lines(select_lines(run_data.updates, TRAIN + CHOSEN), TRAIN + REJECTED)
    named = {TRAIN + CHOSEN: "chosen", TRAIN + REJECTED: "rejected"}
    charts = {
        "accuracy": _draw_share(run_data, ACCURACY, "chosen above rejected", chance=True),
        "rewards": draw_trends(lines, named, "reward") if lines else {},
        "reliability": _draw_reliability(run_data),
    }
    return {name: found for name, found in charts.items() if found}


def draw_labels(run_data: RunReportData) -> ChartFacts:
    """Draw the accuracy of a run that labels whole texts; {} without measurements."""
    objective = find_kind(run_data.objective)
    name = objective.right_diagnostic if objective else None
    found = _draw_share(run_data, name, "rows predicted correctly") if name else {}
    if found:
        scores = [line.get(found["prefix"] + F1) for line in found["measured"][-LAST_ROWS:]]
        found["columns"] = ("step", "share", "F1")
        found["rows"] = [
            (*row, "" if f1 is None else f1) for row, f1 in zip(found["rows"], scores, strict=True)
        ]
        found["f1"] = scores[-1]
    return found


def _draw_share(
    run_data: RunReportData, name: str, y_label: str, chance: bool = False
) -> ChartFacts:
    """Draw the share of right rows or pairs by step, of those trained on and those held out."""
    lines = select_lines(run_data.updates, TRAIN + name)
    if not lines:
        return {}
    held_out = select_lines(run_data.held_out, EVAL + name)
    more = []
    if held_out:
        at, shares = (list_values(held_out, n) for n in ("step", EVAL + name))
        more = [plots.Line(at, shares, "held out", "c2", "D-")]
    if chance:
        more.append(plots.Line([lines[0]["step"], lines[-1]["step"]], [0.5, 0.5], "chance", "c3"))
    limits = {"form": "percent", "low": 0, "high": 1.02}
    found = draw_trends(lines, {TRAIN + name: "trained on"}, y_label, tuple(more), **limits)
    measured, prefix = (held_out, EVAL) if held_out else (lines, TRAIN)
    return found | {
        "columns": ("step", "share"),
        "rows": [(line["step"], line[prefix + name]) for line in measured[-LAST_ROWS:]],
        "ends": [measured[end][prefix + name] for end in (0, -1)],
        "measured": measured,
        "prefix": prefix,
        "held_out": bool(held_out),
    }


def _draw_reliability(run_data: RunReportData) -> ChartFacts:
    """Draw how often a reward model is right on held-out pairs, by its confidence."""
    last = run_data.held_out[-1] if run_data.held_out else {}
    shares = {
        int(name.removeprefix(CALIBRATION).split("/")[0]): value
        for name, value in last.items()
        if name.startswith(CALIBRATION) and name.endswith("/share") and value
    }
    if not shares:
        return {}
    bins = sorted(shares)
    confidences, accuracies = (
        np.array([last[f"{CALIBRATION}{lowest}/{what}"] for lowest in bins])
        for what in ("confidence", "accuracy")
    )
    weights = np.array([shares[lowest] for lowest in bins])
    marks = [
        plots.Line([0.5, 1], [0.5, 1], "calibrated", "c3", ":", width=1),
        plots.Line(confidences, accuracies, width=1.2),
        plots.Line(confidences, accuracies, area=30 + 200 * weights),
    ]
    x = plots.Axis("confidence", "percent", low=0.49, high=1.01)
    y = plots.Axis("right", "percent", low=-0.03, high=1.03)
    columns = ("confidence from", "mean confidence", "right", "share of correctly ranked pairs")
    values = (confidences.tolist(), accuracies.tolist(), weights.tolist())
    return {
        "plot": plots.Plot(marks, x, y, height=260),
        "columns": columns,
        "rows": list(zip((format_percent(at, 100) for at in bins), *values, strict=True)),
        "error": float((weights * np.abs(confidences - accuracies)).sum() / weights.sum()),
        "step": last["step"],
    }


def draw_members(run_data: RunReportData) -> ChartFacts:
    """Draw the loss of each objective by step, held out if measured.

    Returns {} if no loss by objective is logged, as in a run with a single objective.
    """
    for split, lines in (("eval", run_data.held_out), ("train", run_data.updates)):
        prefix = f"{split}/{OF_MEMBER}"
        found = {n for line in lines for n, value in line.items() if value is not None}
        names = {n: n.removeprefix(prefix) for n in sorted(found) if n.startswith(prefix)}
        if names:
            drawn = draw_by_name(lines, names, f"loss ({run_data.unit})")
            table = {"columns": ("objective", "first", "last"), "rows": drawn["series"]}
            return drawn | table | {"held_out": split == "eval"}
    return {}
