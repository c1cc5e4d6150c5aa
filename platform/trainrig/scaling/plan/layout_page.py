"""HTML page of a layout plan: the ten fastest layouts, and the terms that predict them."""

from trainrig.estimate.cost_estimate import format_hours
from trainrig.estimate.layout import planner_terms
from trainrig.estimate.layout.layout_search import Found, LayoutPlan
from trainrig.estimate.step_memory import RESERVE
from trainrig.parallel.activation_budget import GIB
from trainrig.report import page_rendering, plots
from trainrig.report.plots import ChartFacts
from trainrig.scaling.laws import law_formats
from trainrig.scaling.laws.law_formats import format_count
from trainrig.scaling.plan import layout_text

_GROUPS = {
    "products": ("products",),
    "other": ("attention", "elementwise", "optimizer", "rest"),
    "sent": ("tensor", "context", "expert", "pipeline"),
    "bubble": ("bubble",),
    "data": ("data",),
}
_COLOURS: tuple[plots.Colour, ...] = (*plots.SERIES, "muted")


def build_layout_page(plan: LayoutPlan, run_file: str) -> str:
    """Return the page as HTML text.

    `run_file` is the path of the run file with the best layout that the trainer supports.
    """
    named = [(_format_name(number, found), found) for number, found in enumerate(plan.best, 1)]
    parts = tuple(plan.best[0].prediction.memory.__dataclass_fields__)
    return page_rendering.render_page(
        __name__,
        plan=plan,
        hours=format_hours(plan.cost),
        warnings=plan.warnings,
        formats=law_formats,
        degrees=layout_text.format_degrees(plan.best[0].prediction.layout),
        room=plan.cluster.device.memory * (1 - RESERVE) / GIB,
        gib=GIB,
        steps=_draw_steps(named),
        axes=layout_text.AXES,
        layouts=_list_layouts(plan),
        memory_parts=parts,
        memory=[
            (
                name,
                found.prediction.memory.total / GIB,
                *(getattr(found.prediction.memory, part) / GIB for part in parts),
            )
            for name, found in named
        ],
        traffic=[
            (name, why, sent.inside / 1e9, sent.across / 1e9, sent.seconds)
            for name, found in named
            for why, sent in vars(found.prediction.traffic).items()
            if sent.inside or sent.across
        ],
        constants=[(c.name, f"{c.value:g}", c.unit, c.source) for c in planner_terms.CONSTANTS],
        run_file=run_file,
    )


def _format_name(number: int, found: Found) -> str:
    degrees = found.prediction.layout.degrees
    letters = [
        f"{letter}{getattr(degrees, axis)}"
        for letter, axis in zip("RSTPCE", layout_text.AXES, strict=True)
        if getattr(degrees, axis) > 1
    ]
    return f"{number}  {' '.join(letters) or 'one device'}"


def _draw_steps(named: list[tuple[str, Found]]) -> ChartFacts:
    """Draw the step time of each layout, divided into parts."""
    seconds = {name: vars(found.prediction.seconds) for name, found in named}
    bars = [
        plots.BarRow(
            name,
            [sum(spent[part] for part in parts) for parts in _GROUPS.values()],
            f"{found.prediction.seconds.total:.4g} s",
        )
        for (name, found), spent in zip(named, seconds.values(), strict=True)
    ]
    parts = [plots.BarPart(name, c) for name, c in zip(_GROUPS, _COLOURS, strict=True)]
    return {
        "plot": plots.Bars(bars, plots.Axis("seconds of a step"), parts),
        "columns": ("layout", *next(iter(seconds.values()))),
        "rows": [(name, *map(float, spent.values())) for name, spent in seconds.items()],
    }


def _list_layouts(plan: LayoutPlan) -> list[plots.Row]:
    """Return a row for each of the fastest layouts, and one for the best that is supported."""
    shown = [(str(number), found) for number, found in enumerate(plan.best, 1)]
    if plan.runnable is not None and plan.runnable not in plan.best:
        shown.append(("best supported", plan.runnable))
    rows: list[plots.Row] = []
    for name, found in shown:
        made = found.prediction
        layout = made.layout
        degrees = [getattr(layout.degrees, axis) for axis in layout_text.AXES]
        settings = (layout.micro_batch, layout_text.format_schedule(layout), layout.recompute)
        speed = (made.seconds.total, f"{made.mfu:.1%}", format_count(made.tokens_per_second))
        needs = ", ".join(found.needs) or "–"
        rows.append((name, *degrees, *settings, layout.reshard, layout.reduce, *speed, needs))
    return rows
