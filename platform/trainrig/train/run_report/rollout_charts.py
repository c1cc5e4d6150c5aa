"""Charts of the rewards of a run's own completions, from the diagnostics of its objective."""

from collections.abc import Sequence

from trainrig.report import plots
from trainrig.report.plots import ChartFacts
from trainrig.train.run_report.run_charts import (
    LAST_ROWS,
    MetricsLine,
    RunReportData,
    draw_trends,
    list_values,
    select_lines,
)

TRAIN = "train/diagnostics/"
REWARD = f"{TRAIN}reward"
ENTROPY = f"{TRAIN}entropy"
REFERENCE = f"{TRAIN}reference_divergence"
GAP = f"{TRAIN}sampler_gap"
STALE = f"{TRAIN}stale_tokens"
STALENESS = f"{TRAIN}staleness"
AWAY = f"{TRAIN}completion_divergence"
TEACHER = f"{TRAIN}teacher_divergence"
PARTS = f"{REWARD}_"
FAULTS = f"{REWARD}_faults"
NATS = "nats per token"


def draw_rollouts(run_data: RunReportData) -> dict[str, ChartFacts]:
    """Draw the charts of a run that samples completions, by name; {} for other runs."""
    lines = select_lines(run_data.updates, ENTROPY)
    if not lines:
        return {}
    parts = {
        name: name.removeprefix(PARTS)
        for name in sorted(lines[0])
        if name.startswith(PARTS) and name != FAULTS
    }
    taught = _has(lines, TEACHER)
    charts = {"teacher": draw_trends(lines, {TEACHER: NATS}, NATS)} if taught else {}
    if parts or not taught:
        named = {REWARD: "reward"} | (parts if len(parts) > 1 else {})
        charts["reward"] = draw_trends(lines, named, "reward")
        some = charts["reward"]["some"]
        charts["reward"]["flat"] = sum(line[f"{TRAIN}flat"] for line in lines[-some:]) / some
    for name in run_data.measured:
        if f"{PARTS}{name}" in parts and len(parts) > 1:
            charts[f"verifier {name}"] = _draw_verifier(lines, name)
    held = {REFERENCE: "from the reference"} if _has(lines, REFERENCE) else {}
    charts["exploration"] = draw_trends(lines, {ENTROPY: "entropy"} | held, NATS, low=0)
    if _has(lines, AWAY):
        charts["price"] = _draw_price(lines)
    if _has(lines, STALE):
        named = {STALE: "share from earlier weights", STALENESS: "mean age in batches"}
        charts["staleness"] = draw_trends(lines, named, "of tokens", low=0)
    gap = draw_trends(lines, {GAP: NATS}, NATS)
    return charts | {"gap": gap | {"most": max(line[GAP] for line in lines)}}


def _has(lines: Sequence[MetricsLine], name: str) -> bool:
    return all(line.get(name) is not None for line in lines)


def measure_answer_worth(run_data: RunReportData) -> tuple[str, float, float] | None:
    """Return the name of the measure that judges a policy, with its last and its first mean.

    Returns None for a run without a policy.
    """
    lines = select_lines(run_data.updates, ENTROPY)
    if not lines:
        return None
    taught = lines[-1].get(TEACHER) is not None
    name, metric = ("nats per token from the teacher", TEACHER) if taught else ("reward", REWARD)
    found = draw_trends(lines, {metric: name}, name)
    return name, found["last"][metric], found["first"][metric]


def _draw_verifier(lines: Sequence[MetricsLine], name: str) -> ChartFacts:
    """Draw the trained reward next to a part that is measured but not trained on.

    If the reward rises and the part falls, the reward is being exploited (Gao et al. 2023,
    arXiv:2210.10760).
    """
    part = f"{PARTS}{name}"
    named = {REWARD: "reward", part: f"{name}, not trained on"}
    found = draw_trends(lines, named, "mean over completions")
    true = found["plot"].marks[1].y
    ends = (found["first"], found["last"])
    reward, verified = ([end[metric] for end in ends] for metric in (REWARD, part))
    return found | {
        "columns": ("step", "reward", name),
        "name": name,
        "reward": reward,
        "verified": verified,
        "hacked": reward[1] > reward[0] and verified[1] < verified[0],
        "best": (lines[int(true.argmax())]["step"], true.max()),
    }


def _draw_price(lines: Sequence[MetricsLine]) -> ChartFacts:
    """Draw the reward against the divergence of the policy from its reference.

    Reward that rises only at a large divergence is costly, and the reward may be exploited (Gao et
    al. 2023, arXiv:2210.10760).
    """
    over = max(1, len(lines) // 40)
    away, rewards = (
        plots.compute_trailing_mean(list_values(lines, name), over) for name in (AWAY, REWARD)
    )
    some = slice(None, None, max(1, len(lines) // 200))
    line = plots.Line(away[some], rewards[some], style="o-", width=1.1, size=2.5)
    x = plots.Axis("divergence from the reference, nats per completion")
    return {
        "plot": plots.Plot([line], x, plots.Axis("reward")),
        "columns": ("step", "divergence", "reward"),
        "rows": [(x["step"], x[AWAY], x[REWARD]) for x in lines[-LAST_ROWS:]],
        "steps": len(lines),
        "over": over,
        "away": away[-1],
        "reward": rewards[-1],
    }
