"""Charts of sampled measurements: norms by layer, gradient noise scale, time by phase, memory."""

from collections.abc import Sequence
from functools import partial

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import EngFormatter, LogLocator, MaxNLocator, NullFormatter

from trainrig import figures
from trainrig.figures import C1, C2, C3, C4, Numbers
from trainrig.report import Chart, ReportTable, format_percent, format_short
from trainrig.train.run_report.run_charts import Line, RunReportData, list_values

COLUMNS = 60  # columns of the heat map; further measurements are dropped evenly
PHASES = {
    "data": "waiting for data",
    "forward": "forward",
    "backward": "backward",
    "communication": "waiting for other ranks",
    "optimizer": "optimizer",
}


def build_signal_charts(run_data: RunReportData) -> list[Chart]:
    """Build the charts for which the run has measurements."""
    made = (build_norms_chart, build_noise_chart, build_phases_chart, build_memory_chart)
    charts = [make(run_data) for make in made]
    return [chart for chart in charts if chart]


def _select_lines(run_data: RunReportData, name: str) -> list[Line]:
    return [line for line in run_data.updates if line.get(name) is not None]


def build_norms_chart(run_data: RunReportData) -> Chart | None:
    """Plot a heat map of the gradient norm by layer and step."""
    lines = _select_lines(run_data, "layers/00/grad_norm")
    if not lines:
        return None
    names = sorted(n for n in lines[-1] if n.startswith("layers/") and n.endswith("/grad_norm"))
    # A policy whose completions all have the same reward has no gradient, whose logarithm does not
    # exist.
    lines = [line for line in lines if any(line.get(name) for name in names)]
    if not lines:
        return None
    chosen = np.unique(np.linspace(0, len(lines) - 1, min(COLUMNS, len(lines))).astype(int))
    shown = [lines[index] for index in chosen]
    norms_LS = np.array([[line.get(name) or np.nan for line in shown] for name in names])
    logs_LS = np.log10(norms_LS)
    layers = [int(name.split("/")[1]) for name in names]
    largest = layers[int(np.nanargmax(norms_LS[:, -1]))]
    plot = partial(_plot_heat, logs_LS=logs_LS, steps=list_values(shown, "step"), layers=layers)
    rows = tuple(
        (layer, lines[0].get(name), lines[-1].get(name))
        for layer, name in zip(layers, names, strict=True)
    )
    return Chart(
        f"Layer {largest} has the largest gradient norm at the end, "
        f"{np.nanmax(norms_LS[:, -1]):.3g}",
        figures.draw(plot, 240),
        label="Heat map of the gradient norm, layers against steps.",
        caption=(
            f"n = {len(shown)} of {len(lines)} measurements. A stronger colour is a larger "
            f"norm, on a logarithmic scale from {np.nanmin(norms_LS):.2g} to "
            f"{np.nanmax(norms_LS):.2g}."
        ),
        table=ReportTable("Gradient norm by layer", ("layer", "first", "last"), rows),
    )


def _plot_heat(ax: Axes, logs_LS: Numbers, steps: Numbers, layers: Sequence[int]) -> None:
    """Plot the norms as strengths of one colour, for both themes and colour-blind readers."""
    low = float(np.nanmin(logs_LS))
    high = float(np.nanmax(logs_LS))
    strength_LS = 0.1 + 0.9 * (logs_LS - low) / max(high - low, 1e-9)
    edges = np.append(steps, steps[-1] + (steps[-1] - steps[-2] if len(steps) > 1 else 1))
    for row, layer in enumerate(layers):
        for column, strength in enumerate(strength_LS[row]):
            if np.isfinite(strength):
                ax.barh(
                    layer,
                    edges[column + 1] - edges[column],
                    left=edges[column],
                    height=1.0,
                    color=C1,
                    alpha=round(float(strength), 2),
                    linewidth=0,
                )
    ax.set_xlim(edges[0], edges[-1])
    ax.yaxis.set_major_locator(MaxNLocator(6, integer=True))
    ax.xaxis.set_major_locator(MaxNLocator(6))
    ax.set(xlabel="step", ylabel="layer")


def build_noise_chart(run_data: RunReportData) -> Chart | None:
    """Plot the gradient noise scale next to the batch size."""
    lines = _select_lines(run_data, "noise/scale")
    if not lines:
        return None
    steps = list_values(lines, "step")
    scales = list_values(lines, "noise/scale")
    batches = list_values(lines, "speed/tokens_per_second") * list_values(
        lines, "speed/step_seconds"
    )

    def plot(ax: Axes) -> None:
        ax.plot(*figures.thin(steps, scales), color=C1, linewidth=1.8, label="noise scale")
        ax.plot(*figures.thin(steps, batches), "--", color=C2, linewidth=1.8, label="batch")
        ax.set_yscale("log")
        # A scale may stay within one power of ten; and matplotlib formats powers as TeX.
        ax.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        ax.yaxis.set_major_formatter(EngFormatter(sep=" "))
        ax.yaxis.set_minor_formatter(NullFormatter())
        ax.legend()
        ax.xaxis.set_major_locator(MaxNLocator(6))
        ax.set(xlabel="step", ylabel="targets")

    share = scales[-1] / batches[-1]
    told = (
        "a larger batch would train efficiently"
        if share > 2
        else "a larger batch would save few steps"
    )
    rows = tuple(zip(steps.tolist(), scales.tolist(), strict=True))[-50:]
    return Chart(
        f"Noise scale {format_short(float(scales[-1]))} targets, "
        f"{share:.2g} times the batch: {told}",
        figures.draw(plot, 220),
        label="Lines of the gradient noise scale and of the batch size against steps.",
        caption=f"n = {len(lines)} measurements. Each point is the mean of the last 50.",
        table=ReportTable("Noise scale", ("step", "targets"), rows),
    )


def build_phases_chart(run_data: RunReportData) -> Chart | None:
    """Plot the time by phase of a step."""
    lines = _select_lines(run_data, "time/forward")
    if not lines:
        return None
    seconds = list_values(lines, "speed/step_seconds")
    spent = {
        label: float(np.nansum(list_values(lines, f"time/{name}") * seconds))
        for name, label in PHASES.items()
    }
    whole = float(seconds.sum())
    spent["other"] = max(0.0, whole - sum(spent.values()))
    rows = [
        figures.BarRow(label, (value,), format_percent(value, whole))
        for label, value in spent.items()
    ]
    most = max(spent, key=lambda label: spent[label])
    plot = partial(
        figures.plot_rows, rows=rows, parts=(figures.BarPart("s", C3),), x_label="seconds"
    )
    return Chart(
        f"Steps spend most of their time on {most}: {format_percent(spent[most], whole)}",
        figures.draw(plot, 60 + 36 * len(rows)),
        label="Bars of seconds by phase of a step.",
        caption=(
            f"n = {len(lines):,} steps of rank 0, in all attempts that count. Not included: "
            f"{_describe_beside(run_data)}."
        ),
        table=ReportTable("Seconds by phase", ("phase", "seconds"), tuple(spent.items())),
    )


def _describe_beside(run_data: RunReportData) -> str:
    measuring = sum(line.get("speed/held_out_seconds", 0.0) for line in run_data.held_out)
    saves = [e["stall_seconds"] for e in run_data.events if e["event"] == "checkpoint"]
    return f"{measuring:.3g} s for held-out losses and {sum(saves):.3g} s waiting for saves"


def build_memory_chart(run_data: RunReportData) -> Chart | None:
    """Plot the peak memory by step."""
    lines = _select_lines(run_data, "memory/peak_gib")
    if not lines:
        return None
    steps = list_values(lines, "step")
    held = list_values(lines, "memory/peak_gib")

    def plot(ax: Axes) -> None:
        ax.plot(*figures.thin(steps, held), color=C4, linewidth=1.8)
        ax.set_ylim(0, 1.1 * float(held.max()))
        ax.xaxis.set_major_locator(MaxNLocator(6))
        ax.set(xlabel="step", ylabel="GiB")

    rows = tuple(zip(steps.tolist(), held.tolist(), strict=True))[-50:]
    return Chart(
        f"Rank 0 used at most {held.max():.3g} GiB",
        figures.draw(plot, 180),
        label="Line of the peak memory against steps.",
        caption=f"n = {len(lines)} measurements. The peak is reset by each attempt.",
        table=ReportTable("Peak memory", ("step", "GiB"), rows),
    )
