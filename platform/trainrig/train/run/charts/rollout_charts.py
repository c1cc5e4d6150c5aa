"""Charts of what a run's own answers were worth, from the diagnostics of its objective."""

from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from trainrig import figures
from trainrig.figures import C1, C2, C3, C4
from trainrig.report import Chart, ReportTable, percent
from trainrig.train.run.charts.run_charts import Line, RunReportData, values

TRAIN = "train/diagnostics/"
REWARD, ENTROPY, REFERENCE = f"{TRAIN}reward", f"{TRAIN}entropy", f"{TRAIN}reference_divergence"
GAP = f"{TRAIN}sampler_gap"
PARTS = f"{REWARD}_"
FAULTS = f"{REWARD}_faults"
COLOURS = (C2, C3, C4)


def rollout_charts(run_data: RunReportData) -> list[Chart]:
    """Those of a run whose completions were worth something; none for another."""
    lines = [line for line in run_data.updates if line.get(ENTROPY) is not None]
    return [reward_chart(lines), exploration_chart(lines)] if lines else []


def reward_chart(lines: list[Line]) -> Chart:
    """The reward by step, with its parts where there are several."""
    over = max(1, len(lines) // 40)
    parts = sorted(name for name in lines[0] if name.startswith(PARTS) and name != FAULTS)
    shown = parts if len(parts) > 1 else []

    def plot(ax: Axes) -> None:
        steps = values(lines, "step")
        named = [(REWARD, C1, "reward")]
        for number, part in enumerate(shown):
            named.append((part, COLOURS[number % len(COLOURS)], part.removeprefix(PARTS)))
        for name, colour, label in named:
            x, y = figures.thin(steps, figures.trailing_mean(values(lines, name), over))
            width = 1.8 if name == REWARD else 1.1
            ax.plot(x, y, color=colour, linewidth=width, label=label)
        if shown:
            ax.legend(ncols=3)
        ax.xaxis.set_major_locator(MaxNLocator(6, integer=True))
        ax.set(xlabel="step", ylabel="reward")

    some = min(10, max(1, len(lines) // 2))
    first, last = (sum(v[REWARD] for v in part) / some for part in (lines[:some], lines[-some:]))
    flat = sum(line[f"{TRAIN}flat"] for line in lines[-some:]) / some
    return Chart(
        f"Completions are worth {last:.3g}; at first {first:.3g}",
        figures.draw(plot, 240),
        label="Lines of the mean reward of completions, and of its parts, against steps.",
        caption=f"n = {len(lines):,} steps, the mean of {over}; the headline's are of {some}. "
        f"{percent(flat, 1)} of the last completions stood in groups of equal rewards, of which "
        "nothing is learnt.",
        table=ReportTable(
            "Rewards, last steps",
            ("step", "reward", *(part.removeprefix(PARTS) for part in shown)),
            tuple((x["step"], x[REWARD], *(x[part] for part in shown)) for x in lines[-50:]),
        ),
    )


def exploration_chart(lines: list[Line]) -> Chart:
    """How undecided the policy is, and how far it has gone from its reference, by step."""
    over = max(1, len(lines) // 40)
    held = all(line.get(REFERENCE) is not None for line in lines)
    named = [(ENTROPY, C1, "entropy")]
    if held:
        named.append((REFERENCE, C2, "from the reference"))

    def plot(ax: Axes) -> None:
        for name, colour, label in named:
            means = figures.trailing_mean(values(lines, name), over)
            x, y = figures.thin(values(lines, "step"), means)
            ax.plot(x, y, color=colour, linewidth=1.8, label=label)
        ax.legend(ncols=2)
        ax.xaxis.set_major_locator(MaxNLocator(6, integer=True))
        ax.set(xlabel="step", ylabel="nats a token", ylim=(0, None))

    last, gap = lines[-1], max(line[GAP] for line in lines)
    away = f", {last[REFERENCE]:.3g} from the reference" if held else ""
    return Chart(
        f"The policy ends with an entropy of {last[ENTROPY]:.3g} nats a token{away}",
        figures.draw(plot, 240),
        label="Lines of the entropy and of the divergence from the reference against steps.",
        caption=f"n = {len(lines):,} steps, the mean of {over}. What was sampled and what training "
        f"read differed by {gap:.2g} nats a token at most.",
        table=ReportTable(
            "Entropy and divergence, last steps",
            ("step", *(label for _, _, label in named)),
            tuple((x["step"], *(x[name] for name, _, _ in named)) for x in lines[-50:]),
        ),
    )
