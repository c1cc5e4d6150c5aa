"""Charts of the rewards of a run's own completions, from the diagnostics of its objective."""

from collections.abc import Callable, Sequence

from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from trainrig import figures
from trainrig.figures import C1, C2, C3, C4
from trainrig.report import Chart, ReportTable, format_percent
from trainrig.train.run_report.run_charts import Line, RunReportData, list_values

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
COLOURS = (C2, C3, C4)


def build_rollout_charts(run_data: RunReportData) -> list[Chart]:
    """Build the charts of a run that samples completions; [] for other runs."""
    lines = [line for line in run_data.updates if line.get(ENTROPY) is not None]
    if not lines:
        return []
    taught = all(line.get(TEACHER) is not None for line in lines)
    parts = _list_parts(lines)
    charts = [build_teacher_chart(lines)] if taught else []
    if parts or not taught:
        charts.append(build_reward_chart(lines))
    charts += [
        build_verifier_chart(lines, f"{PARTS}{name}")
        for name in run_data.measured
        if f"{PARTS}{name}" in parts and len(parts) > 1
    ]
    charts.append(build_exploration_chart(lines))
    if all(line.get(AWAY) is not None for line in lines):
        charts.append(build_price_chart(lines))
    if all(line.get(STALE) is not None for line in lines):
        charts.append(build_staleness_chart(lines))
    return [*charts, build_gap_chart(lines)]


def measure_answer_worth(run_data: RunReportData) -> tuple[str, float, float] | None:
    """Return the name of the measure that judges a policy, with its last and its first mean.

    Returns None for a run without a policy.
    """
    lines = [line for line in run_data.updates if line.get(ENTROPY) is not None]
    if not lines:
        return None
    taught = lines[-1].get(TEACHER) is not None
    name, figure = ("nats per token from the teacher", TEACHER) if taught else ("reward", REWARD)
    first, last, _ = _average_ends(lines, figure)
    return name, last, first


def _list_parts(lines: Sequence[Line]) -> list[str]:
    """Return the metric names of the parts of the reward."""
    return sorted(name for name in lines[0] if name.startswith(PARTS) and name != FAULTS)


def _average_ends(lines: Sequence[Line], name: str) -> tuple[float, float, int]:
    """Return the means of `name` over the first and the last steps, and the number of steps."""
    some = min(10, max(1, len(lines) // 2))
    first, last = (sum(v[name] for v in part) / some for part in (lines[:some], lines[-some:]))
    return first, last, some


def build_reward_chart(lines: list[Line]) -> Chart:
    """Plot the reward by step, with its parts if there are several."""
    over = max(1, len(lines) // 40)
    parts = _list_parts(lines)
    shown = parts if len(parts) > 1 else []

    def plot(ax: Axes) -> None:
        steps = list_values(lines, "step")
        named = [(REWARD, C1, "reward")]
        for number, part in enumerate(shown):
            named.append((part, COLOURS[number % len(COLOURS)], part.removeprefix(PARTS)))
        for name, colour, label in named:
            x, y = figures.thin(
                steps, figures.compute_trailing_mean(list_values(lines, name), over)
            )
            width = 1.8 if name == REWARD else 1.1
            ax.plot(x, y, color=colour, linewidth=width, label=label)
        if shown:
            ax.legend(ncols=3)
        ax.xaxis.set_major_locator(MaxNLocator(6, integer=True))
        ax.set(xlabel="step", ylabel="reward")

    first, last, some = _average_ends(lines, REWARD)
    flat = sum(line[f"{TRAIN}flat"] for line in lines[-some:]) / some
    return Chart(
        f"Mean reward of completions {last:.3g}; at first {first:.3g}",
        figures.draw(plot, 240),
        label="Lines of the mean reward of completions, and of its parts, against steps.",
        caption=(
            f"n = {len(lines):,} steps, mean of {over}. The title's values are means of "
            f"{some} steps. {format_percent(flat, 1)} of the last completions were in groups "
            "of equal rewards, which teach nothing."
        ),
        table=ReportTable(
            "Rewards, last steps",
            ("step", "reward", *(part.removeprefix(PARTS) for part in shown)),
            tuple((x["step"], x[REWARD], *(x[part] for part in shown)) for x in lines[-50:]),
        ),
    )


def build_verifier_chart(lines: list[Line], part: str) -> Chart:
    """Plot the trained reward next to a part that is measured but not trained on.

    If the reward rises and the part falls, the reward is being exploited (Gao et al. 2023,
    arXiv:2210.10760).
    """
    name = part.removeprefix(PARTS)
    over = max(1, len(lines) // 40)
    steps = list_values(lines, "step")
    trained, true = (
        figures.compute_trailing_mean(list_values(lines, n), over) for n in (REWARD, part)
    )
    best = int(true.argmax())

    def plot(ax: Axes) -> None:
        for y, colour, label in ((trained, C1, "reward"), (true, C2, f"{name}, not trained on")):
            ax.plot(*figures.thin(steps, y), color=colour, linewidth=1.8, label=label)
        ax.legend(ncols=2)
        ax.xaxis.set_major_locator(MaxNLocator(6, integer=True))
        ax.set(xlabel="step", ylabel="mean over completions")

    (first, last, some) = _average_ends(lines, REWARD)
    (before, after, _) = _average_ends(lines, part)
    if last > first and after < before:
        title = (
            f"Possible reward hacking: the reward rose by {last - first:.3g}, but '{name}' fell by "
        )
        title += f"{before - after:.3g}"
    else:
        title = f"'{name}', not trained on: {after:.3g}; at first {before:.3g}"
    return Chart(
        title,
        figures.draw(plot, 240),
        label=(
            f"Lines of the mean reward and of '{name}', which is not trained on, against steps."
        ),
        caption=(
            f"n = {len(lines):,} steps, mean of {over}. The title's values are means of "
            f"{some} steps. '{name}' has weight 0 in the reward. It was best at step "
            f"{steps[best]:,.0f}, with {true[best]:.3g}."
        ),
        table=ReportTable(
            f"Reward and '{name}', last steps",
            ("step", "reward", name),
            tuple((x["step"], x[REWARD], x[part]) for x in lines[-50:]),
        ),
    )


def build_teacher_chart(lines: list[Line]) -> Chart:
    """Plot the divergence of the student from its teacher, by step."""
    return _build_line_chart(
        lines,
        TEACHER,
        "nats per token",
        "A line of the divergence from the teacher against steps.",
        lambda first, last: f"{last:.3g} nats per token from the teacher; at first {first:.3g}",
        "KL(student || teacher) of the tokens that the student sampled.",
    )


def build_gap_chart(lines: list[Line]) -> Chart:
    """Plot the difference between log-probabilities as sampled and as trained on, by step."""
    most = max(line[GAP] for line in lines)
    return _build_line_chart(
        lines,
        GAP,
        "nats per token",
        "A line of the difference between log-probabilities in sampling and in training.",
        lambda first, last: (
            f"Log-probabilities in sampling and in training differ by at most {most:.2g} nats"
        ),
        "Mean |log-probability in sampling − in training|. It is rounding error alone, "
        "unless completions were sampled with other weights.",
    )


def build_staleness_chart(lines: list[Line]) -> Chart:
    """Plot the share of tokens that earlier weights sampled, and their age, by step."""
    over = max(1, len(lines) // 40)
    named = [(STALE, C1, "share from earlier weights"), (STALENESS, C2, "mean age in batches")]

    def plot(ax: Axes) -> None:
        for name, colour, label in named:
            means = figures.compute_trailing_mean(list_values(lines, name), over)
            ax.plot(*figures.thin(list_values(lines, "step"), means), color=colour, label=label)
        ax.legend(ncols=2)
        ax.xaxis.set_major_locator(MaxNLocator(6, integer=True))
        ax.set(xlabel="step", ylabel="of tokens", ylim=(0, None))

    (_, share, some) = _average_ends(lines, STALE)
    (_, behind, _) = _average_ends(lines, STALENESS)
    return Chart(
        f"{format_percent(share, 1)} of the tokens come from completions that earlier "
        "batches started",
        figures.draw(plot, 240),
        label=(
            "Lines of the share of tokens that earlier weights sampled, and of the age of "
            "those weights in batches, against steps."
        ),
        caption=(
            f"n = {len(lines):,} steps, mean of {over}. The title's value is the mean of the "
            f"last {some} steps, in which a token's weights are {behind:.2g} batches old on "
            "average. These tokens belong to completions that were interrupted and "
            "continued, not sampled again."
        ),
        table=ReportTable(
            "Tokens from earlier batches, last steps",
            ("step", *(label for _, _, label in named)),
            tuple((x["step"], *(x[name] for name, _, _ in named)) for x in lines[-50:]),
        ),
    )


def _build_line_chart(
    lines: list[Line],
    name: str,
    unit: str,
    label: str,
    title: Callable[[float, float], str],
    what: str,
) -> Chart:
    over = max(1, len(lines) // 40)

    def plot(ax: Axes) -> None:
        means = figures.compute_trailing_mean(list_values(lines, name), over)
        ax.plot(*figures.thin(list_values(lines, "step"), means), color=C1, linewidth=1.8)
        ax.xaxis.set_major_locator(MaxNLocator(6, integer=True))
        ax.set(xlabel="step", ylabel=unit)

    first, last, some = _average_ends(lines, name)
    return Chart(
        title(first, last),
        figures.draw(plot, 240),
        label=label,
        caption=(
            f"{what} n = {len(lines):,} steps, mean of {over}. The first and last values are "
            f"means of {some} steps."
        ),
        table=ReportTable(
            "Last steps", ("step", unit), tuple((x["step"], x[name]) for x in lines[-50:])
        ),
    )


def build_exploration_chart(lines: list[Line]) -> Chart:
    """Plot the entropy of the policy, and its divergence from the reference, by step."""
    over = max(1, len(lines) // 40)
    held = all(line.get(REFERENCE) is not None for line in lines)
    named = [(ENTROPY, C1, "entropy")]
    if held:
        named.append((REFERENCE, C2, "from the reference"))

    def plot(ax: Axes) -> None:
        for name, colour, label in named:
            means = figures.compute_trailing_mean(list_values(lines, name), over)
            x, y = figures.thin(list_values(lines, "step"), means)
            ax.plot(x, y, color=colour, linewidth=1.8, label=label)
        ax.legend(ncols=2)
        ax.xaxis.set_major_locator(MaxNLocator(6, integer=True))
        ax.set(xlabel="step", ylabel="nats per token", ylim=(0, None))

    last = lines[-1]
    away = f", {last[REFERENCE]:.3g} from the reference" if held else ""
    return Chart(
        f"The policy's entropy at the end is {last[ENTROPY]:.3g} nats per token{away}",
        figures.draw(plot, 240),
        label="Lines of the entropy and of the divergence from the reference against steps.",
        caption=f"n = {len(lines):,} steps, mean of {over}.",
        table=ReportTable(
            "Entropy and divergence, last steps",
            ("step", *(label for _, _, label in named)),
            tuple((x["step"], *(x[name] for name, _, _ in named)) for x in lines[-50:]),
        ),
    )


def build_price_chart(lines: list[Line]) -> Chart:
    """Plot the reward against the divergence of the policy from its reference.

    Reward that rises only at a large divergence is costly, and the reward may be exploited (Gao et
    al. 2023, arXiv:2210.10760).
    """
    over = max(1, len(lines) // 40)
    away = figures.compute_trailing_mean(list_values(lines, AWAY), over)
    rewards = figures.compute_trailing_mean(list_values(lines, REWARD), over)

    def plot(ax: Axes) -> None:
        some = slice(None, None, max(1, len(lines) // 200))
        ax.plot(away[some], rewards[some], color=C1, linewidth=1.1, marker="o", markersize=2.5)
        ax.set(xlabel="divergence from the reference, nats per completion", ylabel="reward")

    return Chart(
        f"{away[-1]:.3g} nats per completion from the reference, for a reward of {rewards[-1]:.3g}",
        figures.draw(plot, 240),
        label="A line of the mean reward against the divergence from the reference, by step.",
        caption=(
            f"n = {len(lines):,} steps in order, mean of {over}. The divergence is the k1 "
            "estimate with the weights that sampled, so a mean over few completions may be "
            "below 0."
        ),
        table=ReportTable(
            "Reward and divergence, last steps",
            ("step", "divergence", "reward"),
            tuple((x["step"], x[AWAY], x[REWARD]) for x in lines[-50:]),
        ),
    )
