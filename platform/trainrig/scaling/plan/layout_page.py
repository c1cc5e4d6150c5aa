"""HTML page of a layout plan: the ten fastest layouts, and the terms that predict them."""

from functools import partial

from trainrig import figures, report
from trainrig.estimate.layout import planner_terms
from trainrig.estimate.layout.layout_search import Found, LayoutPlan
from trainrig.estimate.layout.step_prediction import StepSeconds
from trainrig.estimate.step_memory import RESERVE
from trainrig.parallel.activation_budget import GIB
from trainrig.report import Cell, Chart, KeyFigure, ReportTable, Section
from trainrig.scaling.laws.law_formats import format_count, format_four_digits, format_usd
from trainrig.scaling.plan import layout_text
from trainrig.scaling.plan_plots import StepParts, plot_step_parts

_GROUPS = {
    "products": ("products",),
    "other": ("attention", "elementwise", "optimizer"),
    "sent": ("tensor", "context", "expert", "pipeline"),
    "bubble": ("bubble",),
    "data": ("data",),
}


def build_layout_page(plan: LayoutPlan, run_file: str) -> str:
    """Return the page as HTML text.

    `run_file` is the path of the run file with the best layout that the trainer supports.
    """
    page = report.ReportPage(
        title="Layouts of a run",
        verdict=_build_verdict(plan),
        figures=_build_key_figures(plan),
        sections=(
            Section("layouts", "The fastest layouts", (_chart_steps(plan), _build_table(plan))),
            Section("memory", "Memory per device", (_build_memory_table(plan),)),
            Section("traffic", "Traffic per device", (_build_traffic_table(plan),)),
            Section(
                "terms",
                "How step times are predicted",
                (_build_terms_table(), _build_constants_table()),
            ),
        ),
        commands=(
            report.PageCommand(f"trainrig check {run_file}", "Check the run file"),
            report.PageCommand(f"trainrig pretrain {run_file}", "Start the training"),
        ),
        provenance={
            "Run": {"file": plan.subject.name, "steps": f"{plan.subject.training.steps:,}"},
            "Links": {
                "inside a machine": plan.cluster.inside.source,
                "between machines": plan.cluster.across.source if plan.cluster.across else "none",
            },
        },
    )
    return page.render_html()


def _build_verdict(plan: LayoutPlan) -> report.Verdict:
    best = plan.best[0].prediction
    sentence = (
        f"The fastest of {plan.fitting:,} layouts that fit {plan.cluster.devices:,} "
        f"{plan.cluster.name} (of {plan.legal:,} legal ones) is "
        f"{layout_text.format_degrees(best.layout)}: {best.seconds.total:.4g} s per step, "
        f"{best.mfu:.1%} of the peak."
    )
    return report.Verdict(sentence, "warning" if plan.warnings else "done", plan.warnings)


def _build_key_figures(plan: LayoutPlan) -> tuple[KeyFigure, ...]:
    best = plan.best[0].prediction
    cost = plan.cost
    room = plan.cluster.device.memory * (1 - RESERVE) / GIB
    machines = "no price" if cost.machines is None else f"{cost.machines:,} {cost.instance}"
    return (
        KeyFigure("Step", f"{best.seconds.total:.4g}", "s", f"{best.mfu:.1%} MFU"),
        KeyFigure("Tokens", format_count(best.tokens_per_second), "per second", ""),
        KeyFigure(
            "Memory", f"{best.memory.total / GIB:.1f}", "GiB per device", f"of {room:.1f} usable"
        ),
        KeyFigure(
            "Time", format_four_digits(cost.hours), "h", f"{cost.device_days:,.4g} device days"
        ),
        KeyFigure("Money", "–" if cost.usd is None else format_usd(cost.usd), "USD", machines),
        KeyFigure("Energy", format_four_digits(cost.kwh), "kWh", ""),
    )


def _chart_steps(plan: LayoutPlan) -> Chart:
    steps = [
        StepParts(_format_name(n, found), _group_seconds(found))
        for n, found in enumerate(plan.best, 1)
    ]
    return Chart(
        f"The fastest layout takes {plan.best[0].prediction.seconds.total:.4g} s per step, the "
        f"last one shown {plan.best[-1].prediction.seconds.total:.4g} s",
        figures.draw(partial(plot_step_parts, steps=steps), 110 + 34 * len(steps)),
        label="Seconds per step of the fastest layouts, divided into parts.",
        caption="The fastest layout for each choice of degrees: R replicate, S shard, T tensor, P "
        "pipeline, C context, E expert. Other: attention, elementwise kernels, optimizer. "
        "Sent: communication within a replica. Data: waiting for parameters and gradients.",
        table=ReportTable(
            "Seconds per step",
            ("layout", *StepSeconds.__dataclass_fields__),
            tuple(
                (
                    _format_name(n, found),
                    *(float(v) for v in vars(found.prediction.seconds).values()),
                )
                for n, found in enumerate(plan.best, 1)
            ),
        ),
    )


def _format_name(number: int, found: Found) -> str:
    degrees = found.prediction.layout.degrees
    letters = [
        f"{letter}{getattr(degrees, axis)}"
        for letter, axis in zip("RSTPCE", layout_text.AXES, strict=True)
        if getattr(degrees, axis) > 1
    ]
    return f"{number}  {' '.join(letters) or 'one device'}"


def _group_seconds(found: Found) -> dict[str, float]:
    seconds = found.prediction.seconds
    return {name: sum(getattr(seconds, part) for part in parts) for name, parts in _GROUPS.items()}


def _build_table(plan: LayoutPlan) -> ReportTable:
    rows: list[tuple[Cell, ...]] = []
    shown = list(enumerate(plan.best, 1))
    if plan.runnable is not None and plan.runnable not in plan.best:
        shown.append((0, plan.runnable))
    for number, found in shown:
        made = found.prediction
        layout = found.prediction.layout
        rows.append(
            (
                str(number or "best supported"),
                *(getattr(layout.degrees, axis) for axis in layout_text.AXES),
                layout.micro_batch,
                layout_text.format_schedule(layout),
                layout.recompute,
                layout.reshard,
                made.seconds.total,
                f"{made.mfu:.1%}",
                format_count(made.tokens_per_second),
                ", ".join(found.needs) or "–",
            )
        )
    columns = (
        "",
        *layout_text.AXES,
        "micro-batch",
        "schedule",
        "recompute",
        "reshard",
        "s/step",
        "MFU",
        "tokens/s",
        "needs",
    )
    return ReportTable("The fastest layout for each choice of degrees", columns, tuple(rows))


def _build_memory_table(plan: LayoutPlan) -> ReportTable:
    parts = tuple(plan.best[0].prediction.memory.__dataclass_fields__)
    return ReportTable(
        "GiB on the device that needs the most, at the peak of a step",
        ("layout", "all", *parts),
        tuple(
            (
                _format_name(number, found),
                found.prediction.memory.total / GIB,
                *(getattr(found.prediction.memory, part) / GIB for part in parts),
            )
            for number, found in enumerate(plan.best, 1)
        ),
    )


def _build_traffic_table(plan: LayoutPlan) -> ReportTable:
    rows: list[tuple[Cell, ...]] = []
    for number, found in enumerate(plan.best, 1):
        for name, sent in vars(found.prediction.traffic).items():
            if sent.inside or sent.across:
                rows.append(
                    (
                        _format_name(number, found),
                        name,
                        sent.inside / 1e9,
                        sent.across / 1e9,
                        sent.seconds,
                    )
                )
    columns = (
        "layout",
        "why",
        "GB inside its machine",
        "GB to other machines",
        "s, overlapped time included",
    )
    return ReportTable("Bytes sent per step", columns, tuple(rows))


def _build_terms_table() -> ReportTable:
    rows = tuple((term.name, term.formula, term.hidden) for term in planner_terms.TERMS)
    return ReportTable("Terms of the step time", ("term", "formula", "overlaps with"), rows)


def _build_constants_table() -> ReportTable:
    rows = tuple((c.name, f"{c.value:g}", c.unit, c.source) for c in planner_terms.CONSTANTS)
    return ReportTable(
        "Constants, which are the same for all runs", ("", "value", "unit", "source"), rows
    )
