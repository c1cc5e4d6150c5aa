"""HTML page of a plan: the size, the predicted loss, the memory and the assumptions."""

import numpy as np

from trainrig import storage
from trainrig.estimate.cost_estimate import format_hours
from trainrig.flops import count_flops_6nd
from trainrig.report import page_rendering, plots
from trainrig.report.plots import ChartFacts
from trainrig.scaling import law_plots
from trainrig.scaling.law_plots import Band, compute_surface
from trainrig.scaling.laws import law_formats
from trainrig.scaling.laws.law import Law
from trainrig.scaling.laws.law_formats import format_count, format_flops, format_loss
from trainrig.scaling.laws.law_forms import Form, OverTraining, Parametric
from trainrig.scaling.plan import allocation
from trainrig.scaling.plan.plan_schema import ScalingPlan

GIB = 2**30
EPOCHS = 100.0  # epochs up to which the value of repeated tokens is plotted
WIDE = 30.0  # factor around the plan's size and tokens that the loss surface covers
SERVED = (0.01, 1000.0)  # range of served tokens that is plotted, as factors of the plan's tokens


def write_plan_page(path: str, plan: ScalingPlan, law: Law, run_file: str) -> str:
    """Write the page of `plan` to `path`, and return the path.

    `run_file` is the path of the run file that was written for the plan.
    """
    storage.write(path, build_plan_page(plan, law, run_file).encode())
    return path


def build_plan_page(plan: ScalingPlan, law: Law, run_file: str) -> str:
    """Return the page as HTML text."""
    served = plan.service is not None and isinstance(law.form, Parametric | OverTraining)
    return page_rendering.render_page(
        __name__,
        plan=plan,
        hours=format_hours(plan.cost),
        state="warning" if plan.doubt or plan.warnings else "done",
        warnings=plan.warnings,
        formats=law_formats,
        contours=_draw_plan_contours(plan, law),
        trajectory=_draw_trajectory(plan),
        serving=_draw_serving(plan, law) if served else None,
        epochs=_draw_epochs(plan) if plan.data else None,
        memory=[
            (
                row.layout,
                *(f"{size / GIB:,.1f}" for size in row.bytes_by_recompute.values()),
                "" if row.offered else "not supported here",
            )
            for row in plan.placement.table
        ],
        assumptions=[
            (name.replace("_", " "), value) for name, value in plan.assumptions.model_dump().items()
        ],
        run_file=run_file,
        gib=GIB,
    )


def find_effective_size(plan: ScalingPlan, form: Form) -> tuple[float, float]:
    """Return the parameters and new tokens with the plan's loss, on the surface of `form`."""
    if plan.data is None:
        return plan.size.parameters, plan.size.tokens
    repeating = allocation.to_data_constrained(form)
    parameters, tokens = repeating.compute_effective(
        plan.size.parameters, plan.size.tokens, plan.data.unique_tokens
    )
    return float(parameters), float(tokens)


def _draw_plan_contours(plan: ScalingPlan, law: Law) -> ChartFacts:
    form = law.form if plan.data is None else allocation.to_data_constrained(law.form)
    parameters, worth = find_effective_size(plan, law.form)
    sizes = (parameters / WIDE, parameters * WIDE)
    tokens = (worth / WIDE, worth * WIDE)
    flops = count_flops_6nd(parameters, worth)
    budgets = np.geomspace(flops / WIDE, flops * WIDE, 40)
    best = form.compute_optimum(budgets)
    surface = compute_surface(form, sizes, tokens)
    chosen = law_plots.mark_chosen(parameters, worth)
    return {
        "worth": (parameters, worth),
        "plot": law_plots.draw_contours(surface, (best.parameters, best.tokens), chosen),
        "columns": ("FLOPs", "parameters", "tokens", "loss (nats per token)"),
        "rows": [
            (format_flops(flops), format_count(n), format_count(d), format_loss(loss))
            for flops, n, d, loss in list(
                zip(budgets, best.parameters, best.tokens, best.loss, strict=True)
            )[::3]
        ],
    }


def _draw_trajectory(plan: ScalingPlan) -> ChartFacts:
    """Draw the predicted loss over tokens, with its interval as a band."""
    points = plan.curve
    ends = ([point.low for point in points], [point.high for point in points])
    low, high = (None if None in end else np.array(end, np.float64) for end in ends)
    losses = np.array([point.loss for point in points])
    band = Band(np.array([point.tokens for point in points]), losses, low, high)
    x = plots.Axis("tokens at the end of the run", log=True)
    return {
        "plot": plots.Plot(band.draw(""), x, plots.Axis("loss (nats per token)"), height=250),
        "columns": ("tokens", "loss", "low", "high"),
        "rows": [
            (
                format_count(point.tokens),
                *(
                    "–" if loss is None else format_loss(loss)
                    for loss in (point.loss, point.low, point.high)
                ),
            )
            for point in points
        ],
    }


def _draw_serving(plan: ScalingPlan, law: Law) -> ChartFacts:
    """Draw D/N of the cheapest model for the loss over served tokens (Sardana, 2401.00448)."""
    assert plan.service is not None  # the caller checks this
    service = plan.service
    alone = allocation.Allocation(*service.best_trained)
    served = np.geomspace(SERVED[0] * alone.tokens, SERVED[1] * alone.tokens, 24)
    found = [allocation.allocate_for_serving(law.form, alone, float(tokens)) for tokens in served]
    ratios = [model.tokens / model.parameters for model in found]
    best = alone.tokens / alone.parameters
    marks: list[plots.Mark] = [
        plots.Line(served, ratios, width=2.2),
        plots.Rule(best, name="best for training alone"),
        law_plots.mark_chosen(service.tokens_served, plan.size.tokens_per_parameter),
    ]
    x = plots.Axis("tokens served", log=True)
    y = plots.Axis("tokens per parameter (D/N)", log=True)
    return {
        "plot": plots.Plot(marks, x, y, height=260),
        "columns": ("tokens served", "parameters", "tokens", "tokens per parameter"),
        "rows": [
            (format_count(tokens), format_count(model.parameters), format_count(model.tokens), d_n)
            for tokens, model, d_n in zip(served.tolist(), found, ratios, strict=True)
        ],
    }


def _draw_epochs(plan: ScalingPlan) -> ChartFacts:
    """Draw effective tokens over epochs (Muennighoff et al. 2023, arXiv:2305.16264, eq. 5)."""
    assert plan.data is not None  # the caller checks this
    data = plan.data
    epochs = np.geomspace(1, max(EPOCHS, 2 * data.epochs), 60)
    effective = data.unique_tokens * (1 - data.fading * np.expm1(-(epochs - 1) / data.fading))
    every = epochs * data.unique_tokens
    marks = [
        plots.Line(epochs, every, "if all were new", "muted", "--", width=1),
        plots.Line(epochs, effective, "effective tokens", width=2.2),
        law_plots.mark_chosen(data.epochs, data.worth),
    ]
    x = plots.Axis("epochs of the unique tokens", log=True)
    rows = [(float(n), format_count(worth)) for n, worth in zip(epochs, effective, strict=True)]
    return {
        "plot": plots.Plot(marks, x, plots.Axis("tokens", log=True), height=260),
        "columns": ("epochs", "worth in new tokens"),
        "rows": rows[::4],
    }
