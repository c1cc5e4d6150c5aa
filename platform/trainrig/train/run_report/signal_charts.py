"""Charts of sampled measurements: norms by layer, gradient noise scale, time by phase, memory."""

import numpy as np

from trainrig.report import plots
from trainrig.report.number_formats import format_percent
from trainrig.report.plots import ChartFacts
from trainrig.train.run_report.run_charts import (
    LAST_ROWS,
    RunReportData,
    list_values,
    select_lines,
)

COLUMNS = 60  # columns of the heat map; further measurements are dropped evenly
PHASES = {
    "data": "waiting for data",
    "forward": "forward",
    "backward": "backward",
    "communication": "waiting for other ranks",
    "optimizer": "optimizer",
}


def draw_signals(run_data: RunReportData) -> dict[str, ChartFacts]:
    """Draw the charts for which the run has measurements, by name."""
    charts = {
        "norms": _draw_norms(run_data),
        "noise": _draw_noise(run_data),
        "phases": _draw_phases(run_data),
        "memory": _draw_memory(run_data),
    }
    return {name: found for name, found in charts.items() if found}


def _draw_norms(run_data: RunReportData) -> ChartFacts:
    """Draw a heat map of the gradient norm by layer and step."""
    lines = select_lines(run_data.updates, "layers/00/grad_norm")
    last = lines[-1] if lines else {}
    names = sorted(n for n in last if n.startswith("layers/") and n.endswith("/grad_norm"))
    # A policy whose completions all have the same reward has no gradient, whose logarithm does not
    # exist.
    lines = [line for line in lines if any(line.get(name) for name in names)]
    if not lines:
        return {}
    shown = [lines[index] for index in plots.choose_evenly(len(lines), COLUMNS)]
    norms_LS = np.array([[line.get(name) or np.nan for line in shown] for name in names])
    logs_LS = np.log10(norms_LS)
    low = float(np.nanmin(logs_LS))
    high = float(np.nanmax(logs_LS))
    layers = [int(name.split("/")[1]) for name in names]
    steps = list_values(shown, "step")
    heat = plots.Heat(
        # The column of a measurement ends at its step, so that the map ends with the run.
        edges=np.append(max(0.0, steps[0] - (steps[1] - steps[0] if len(steps) > 1 else 1)), steps),
        rows=layers,
        strength=0.1 + 0.9 * (logs_LS - low) / max(high - low, 1e-9),
    )
    return {
        "plot": plots.Plot([heat], plots.Axis("step"), plots.Axis("layer", whole=True)),
        "columns": ("layer", "first", "last"),
        "rows": [
            (layer, lines[0].get(name), lines[-1].get(name))
            for layer, name in zip(layers, names, strict=True)
        ],
        "largest": layers[int(np.nanargmax(norms_LS[:, -1]))],
        "norm": np.nanmax(norms_LS[:, -1]),
        "shown": len(shown),
        "measured": len(lines),
        "range": (np.nanmin(norms_LS), np.nanmax(norms_LS)),
    }


def _draw_noise(run_data: RunReportData) -> ChartFacts:
    """Draw the gradient noise scale next to the batch size."""
    lines = select_lines(run_data.updates, "noise/scale")
    if not lines:
        return {}
    steps = list_values(lines, "step")
    scales = list_values(lines, "noise/scale")
    speeds = list_values(lines, "train/tokens_per_second")
    batches = speeds * list_values(lines, "train/step_seconds")
    drawn = [
        plots.Line(steps, scales, "noise scale"),
        plots.Line(steps, batches, "batch", "c2", "--"),
    ]
    return {
        "plot": plots.Plot(drawn, plots.Axis("step"), plots.Axis("targets", log=True), height=220),
        "columns": ("step", "targets"),
        "rows": list(zip(steps.tolist(), scales.tolist(), strict=True))[-LAST_ROWS:],
        "measured": len(lines),
        "scale": float(scales[-1]),
        "share": scales[-1] / batches[-1],
    }


def _draw_phases(run_data: RunReportData) -> ChartFacts:
    """Draw the time by phase of a step."""
    lines = select_lines(run_data.updates, "time/forward")
    if not lines:
        return {}
    seconds = list_values(lines, "train/step_seconds")
    spent = {
        label: float(np.nansum(list_values(lines, f"time/{name}") * seconds))
        for name, label in PHASES.items()
    }
    whole = float(seconds.sum())
    spent["other"] = max(0.0, whole - sum(spent.values()))
    bars = [plots.BarRow(k, (value,), format_percent(value, whole)) for k, value in spent.items()]
    most = max(spent, key=lambda label: spent[label])
    saves = [e["stall_seconds"] for e in run_data.events if e["event"] == "checkpoint"]
    axis = plots.Axis("seconds", "short")
    return {
        "plot": plots.Bars(bars, axis, (plots.BarPart("s", "c3"),)),
        "columns": ("phase", "seconds"),
        "rows": list(spent.items()),
        "most": (most, format_percent(spent[most], whole)),
        "steps": len(lines),
        "measuring": sum(line.get("train/held_out_seconds", 0.0) for line in run_data.held_out),
        "saving": sum(saves),
    }


def _draw_memory(run_data: RunReportData) -> ChartFacts:
    """Draw the peak memory by step."""
    lines = select_lines(run_data.updates, "memory/peak_gib")
    if not lines:
        return {}
    steps = list_values(lines, "step")
    held = list_values(lines, "memory/peak_gib")
    y = plots.Axis("GiB", low=0, high=1.1 * float(held.max()))
    return {
        "plot": plots.Plot([plots.Line(steps, held, colour="c4")], plots.Axis("step"), y, 180),
        "columns": ("step", "GiB"),
        "rows": list(zip(steps.tolist(), held.tolist(), strict=True))[-LAST_ROWS:],
        "measured": len(lines),
        "most": held.max(),
    }
