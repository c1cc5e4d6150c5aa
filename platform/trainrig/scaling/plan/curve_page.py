"""Output of `trainrig predict RUN --out`: the record and the HTML page `report.html`."""

import json

import numpy as np

from trainrig import storage
from trainrig.errors import ConfigError
from trainrig.report import page_rendering, plots
from trainrig.report.plots import ChartFacts
from trainrig.scaling.laws.law_formats import format_interval, format_loss
from trainrig.scaling.laws.learning_curves import is_run_folder
from trainrig.scaling.regression.curve_prediction import CurveAnswer
from trainrig.storage.writable import check_folder

RECORD = "curve.json"
PAGE = "report.html"
POINTS = 300  # most points of a drawn line
TABLE_ROWS = 40


def build_curve_page(answer: CurveAnswer, record: str) -> str:
    """Return the page as HTML text. `record` is the path of the JSON file next to it."""
    found = answer.found
    return page_rendering.render_page(
        __name__,
        found=found,
        end=found.predictions[0],
        warnings=found.warnings,
        loss=format_loss,
        interval=lambda value: format_interval(value) if value else "no interval",
        curve=_draw_curve(answer),
        rates=_draw_rates(answer),
        ends=[
            (
                end.schedule,
                end.steps,
                format_loss(end.loss),
                format_interval(end.interval) if end.interval else "–",
            )
            for end in found.predictions
        ],
        record=record,
        again=answer.command,
    )


def _draw_curve(answer: CurveAnswer) -> ChartFacts:
    """Draw the measured losses of the run, the law, and the predicted ends."""
    own = answer.fitted.curves[0]
    marks: list[plots.Mark] = []
    for end, rates, colour in zip(
        answer.found.predictions, answer.rates, plots.SERIES[1:], strict=False
    ):
        first = int(own.steps[0])
        losses = answer.fitted.form.compute_losses(rates)[first - 1 :]
        rows = plots.choose_evenly(len(losses), min(POINTS, len(losses)))
        steps = [first + row for row in rows]
        marks.append(plots.Line(steps, losses[rows], end.schedule, colour))
        if end.interval and end.interval.low and end.interval.high:
            error = [(end.interval.high - end.interval.low) / 2]
            marks.append(plots.Line([end.steps], [end.loss], "", colour, "D", error=error))
    marks.append(plots.Line(own.steps, own.losses, "measured", "ink", "o", size=3, on_top=True))
    last = min(TABLE_ROWS, len(own.losses))
    law = answer.fitted.form.compute_losses(own.rates)[own.steps - 1]
    return {
        "plot": plots.Plot(
            marks,
            plots.Axis("step", "short"),
            plots.Axis("held-out loss (nats per token)", high=float(np.quantile(own.losses, 0.95))),
            height=330,
        ),
        "columns": ("step", "measured", "law"),
        "rows": list(
            zip(*(column[-last:].tolist() for column in (own.steps, own.losses, law)), strict=True)
        ),
        "cut": f", the last {last} of {len(own.losses)}" if last < len(own.losses) else "",
    }


def _draw_rates(answer: CurveAnswer) -> ChartFacts:
    """Draw the learning rate of each schedule."""
    marks: list[plots.Mark] = []
    rows: list[plots.Row] = []
    for end, rates, colour in zip(
        answer.found.predictions, answer.rates, plots.SERIES[1:], strict=False
    ):
        at = plots.choose_evenly(len(rates), min(POINTS, len(rates)))
        marks.append(plots.Line([row + 1 for row in at], rates[at], end.schedule, colour))
        few = plots.choose_evenly(len(rates), min(12, len(rates)))
        rows += [(end.schedule, row + 1, float(rates[row])) for row in few]
    axes = plots.Axis("step", "short"), plots.Axis("learning rate", low=0)
    return {
        "plot": plots.Plot(marks, *axes),
        "columns": ("schedule", "step", "learning rate"),
        "rows": rows,
    }


def write_curve(answer: CurveAnswer, out: str) -> tuple[str, str]:
    """Write `curve.json` and the page into the folder `out`, and return their paths."""
    if is_run_folder(out):
        raise ConfigError(
            f"{out}: is the folder of a run, whose {PAGE} would be replaced; name another folder"
        )
    check_folder(out)
    paths = storage.join(out, RECORD), storage.join(out, PAGE)
    data = json.dumps(answer.found.model_dump(mode="json"), indent=2)
    storage.write(paths[0], f"{data}\n".encode())
    storage.write(paths[1], build_curve_page(answer, paths[0]).encode())
    return paths
