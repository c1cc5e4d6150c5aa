"""HTML page of a plan: the size, the predicted loss, the memory and the assumptions."""

from functools import partial

import numpy as np

from trainrig import figures, report, storage
from trainrig.report import Cell, Chart, KeyFigure, ReportTable, Section, Text
from trainrig.scaling import plan_plots
from trainrig.scaling.fit.law_views import compute_surface
from trainrig.scaling.law_plots import Band, plot_contours
from trainrig.scaling.laws.law import Law
from trainrig.scaling.laws.law_formats import (
    format_count,
    format_flops,
    format_four_digits,
    format_interval,
    format_loss,
    format_usd,
)
from trainrig.scaling.laws.law_forms import OverTraining, Parametric
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
    page = report.ReportPage(
        title="Plan of a run",
        verdict=_build_verdict(plan),
        figures=_build_key_figures(plan),
        sections=(
            Section("size", "Model size and tokens", _build_size(plan, law)),
            Section("loss", "The predicted loss", (_chart_trajectory(plan),)),
            *_build_beyond_training(plan, law),
            Section("memory", "Memory", (_build_memory_table(plan),)),
            Section("assumed", "Assumptions", _list_assumptions(plan)),
        ),
        commands=(
            report.PageCommand(f"trainrig check {run_file}", "Check the run file"),
            report.PageCommand(f"trainrig pretrain {run_file}", "Start the training"),
        ),
        provenance={
            "Law": {"name": plan.law, "source": plan.law_source, "counts": plan.parameters_count},
            "Asked": {plan.target.replace("_", " "): f"{plan.asked:g}"},
        },
    )
    return page.render_html()


def _build_verdict(plan: ScalingPlan) -> report.Verdict:
    size = plan.size
    interval = f" {format_interval(plan.loss_interval)}" if plan.loss_interval else ""
    sentence = (
        f"{format_count(size.parameters)} parameters on {format_count(size.tokens)} tokens are "
        f"expected to reach {format_loss(plan.loss)}{interval} nats per token, in "
        f"{format_four_digits(plan.cost.hours)} h on {plan.cost.devices:,} {plan.cost.device}."
    )
    return report.Verdict(sentence, "warning" if plan.warnings else "done", plan.warnings)


def _build_key_figures(plan: ScalingPlan) -> tuple[KeyFigure, ...]:
    size = plan.size
    cost = plan.cost
    interval = format_interval(plan.loss_interval) if plan.loss_interval else plan.no_interval
    sizes = size.parameters_interval
    best = f"95%: {format_interval(sizes)}" if sizes else f"{size.non_embedding:,} in layers"
    price = "–" if cost.usd is None else format_usd(cost.usd)
    machines = "no price" if cost.machines is None else f"{cost.machines:,} {cost.instance}"
    by_6nd = f"{format_flops(size.flops_6nd)} by 6ND"
    days = f"{format_four_digits(cost.device_days)} device days"
    return (
        KeyFigure("Loss", format_loss(plan.loss), "nats per token", interval),
        KeyFigure("Parameters", format_count(size.parameters), plan.parameters_count, best),
        KeyFigure(
            "Tokens",
            format_count(size.tokens),
            "",
            f"{size.tokens_per_parameter:.3g} per parameter",
        ),
        KeyFigure("Compute", format_flops(size.flops), "FLOPs", by_6nd),
        KeyFigure("Money", price, "USD", machines),
        KeyFigure("Energy", format_four_digits(cost.kwh), "kWh", days),
    )


def _build_size(plan: ScalingPlan, law: Law) -> tuple[Chart | ReportTable, ...]:
    size = plan.size
    recipe = plan.recipe
    shape = plan.model.shape
    rows: list[tuple[Cell, ...]] = [
        ("layers", f"{shape.layers:,} of {shape.channels:,} channels, {shape.heads} heads"),
        ("parameters in layers", f"{size.non_embedding:,}"),
        ("parameters in the embedding", f"{size.embedding:,}"),
        ("global batch", f"{recipe.global_batch:,} sequences of {recipe.sequence_length:,} tokens"),
        ("steps", f"{recipe.steps:,}"),
        ("learning rate", f"{recipe.rate:.2g}, by {recipe.rule.kind}"),
        ("checkpoints", f"every {plan.saving.every:,} steps"),
    ]
    return _chart_contours(plan, law), ReportTable("The run", ("", "value"), tuple(rows))


def _chart_contours(plan: ScalingPlan, law: Law) -> Chart:
    size = plan.size
    sizes = (size.parameters / WIDE, size.parameters * WIDE)
    tokens = (size.tokens / WIDE, size.tokens * WIDE)
    budgets = np.geomspace(size.flops_6nd / WIDE, size.flops_6nd * WIDE, 40)
    best = law.form.compute_optimum(budgets)
    return Chart(
        f"{size.tokens_per_parameter:.3g} tokens per parameter",
        figures.draw(
            partial(
                plot_contours,
                surface=compute_surface(law.form, sizes, tokens),
                frontier=(best.parameters, best.tokens),
                chosen=(size.parameters, size.tokens),
            ),
            330,
        ),
        label="Lines of equal loss over parameters and tokens, with the plan on them.",
        caption="Lines: loss by the law, nats per token, if no token repeats.",
        table=ReportTable(
            "Compute-optimal parameters and tokens",
            ("FLOPs", "parameters", "tokens", "loss (nats per token)"),
            tuple(
                (
                    format_flops(budgets[i]),
                    format_count(best.parameters[i]),
                    format_count(best.tokens[i]),
                    format_loss(best.loss[i]),
                )
                for i in range(0, len(budgets), 3)
            ),
        ),
    )


def _chart_trajectory(plan: ScalingPlan) -> Chart:
    points = plan.curve
    losses = np.array([point.loss for point in points])
    known = all(point.low is not None and point.high is not None for point in points)
    ends = [(point.low or 0.0, point.high or 0.0) for point in points] if known else []
    low, high = np.array(ends).T if ends else (None, None)
    band = Band(np.array([point.tokens for point in points]), losses, low, high)
    reached = f"{format_loss(plan.loss)} {format_interval(plan.loss_interval)}"
    return Chart(
        f"Loss {reached} after {format_count(plan.size.tokens)} tokens",
        figures.draw(partial(plan_plots.plot_trajectory, band=band), 250),
        label="Predicted loss of this model size against the tokens of the whole run.",
        caption="Each point is a run that ends there, with a decayed learning rate. The report of "
        "the run compares its losses with this curve.",
        table=ReportTable(
            "Loss by tokens, nats per token",
            ("tokens", "loss", "low", "high"),
            tuple(
                (
                    format_count(point.tokens),
                    format_loss(point.loss),
                    _format_end(point.low),
                    _format_end(point.high),
                )
                for point in points
            ),
        ),
    )


def _format_end(of_interval: float | None) -> str:
    return "–" if of_interval is None else format_loss(of_interval)


def _build_beyond_training(plan: ScalingPlan, law: Law) -> tuple[Section, ...]:
    charts = []
    if plan.service is not None and isinstance(law.form, Parametric | OverTraining):
        charts.append(_chart_serving(plan, law))
    if plan.data is not None:
        charts.append(_chart_epochs(plan))
    return (Section("beyond", "Serving and repeated tokens", tuple(charts)),) if charts else ()


def _chart_serving(plan: ScalingPlan, law: Law) -> Chart:
    assert plan.service is not None  # the caller checks this
    service = plan.service
    alone = allocation.Allocation(*service.best_trained)
    served = np.geomspace(SERVED[0] * alone.tokens, SERVED[1] * alone.tokens, 24)
    found = [
        allocation.allocate_for_serving(law.form, alone, float(served_tokens))
        for served_tokens in served
    ]
    ratio = np.array([model.tokens / model.parameters for model in found])
    drawn = plan_plots.Served(served, ratio, alone.tokens / alone.parameters)
    chosen = (service.tokens_served, plan.size.tokens_per_parameter)
    return Chart(
        f"A smaller model saves {service.saved:.2%} of all compute if it serves "
        f"{format_count(service.tokens_served)} tokens",
        figures.draw(partial(plan_plots.plot_served, served=drawn, chosen=chosen), 260),
        label="Tokens per parameter of the cheapest model of one loss, against tokens served.",
        caption="All models on the line have the loss of the model that is best for training "
        "alone, if no token repeats. A plan with repeated tokens lies off the line.",
        table=ReportTable(
            "Cheapest model with the same loss",
            ("tokens served", "parameters", "tokens", "tokens per parameter"),
            tuple(
                (
                    format_count(served_tokens),
                    format_count(model.parameters),
                    format_count(model.tokens),
                    tokens_per_parameter,
                )
                for served_tokens, model, tokens_per_parameter in zip(
                    served.tolist(), found, ratio.tolist(), strict=True
                )
            ),
        ),
    )


def _chart_epochs(plan: ScalingPlan) -> Chart:
    assert plan.data is not None  # the caller checks this
    data = plan.data
    epochs = np.geomspace(1, max(EPOCHS, 2 * data.epochs), 60)
    # Muennighoff et al. 2023, arXiv:2305.16264, equation 5.
    effective = data.unique_tokens * (1 - data.fading * np.expm1(-(epochs - 1) / data.fading))
    drawn = plan_plots.RepeatedTokens(epochs, effective, data.unique_tokens)
    few = range(0, len(epochs), 4)
    return Chart(
        f"{data.epochs:.3g} epochs are worth {format_count(data.worth)} new tokens; no number of "
        f"epochs is worth more than {format_count(data.wall)}",
        figures.draw(
            partial(plan_plots.plot_epochs, repeated=drawn, chosen=(data.epochs, data.worth)), 260
        ),
        label="Number of new tokens that repeated tokens are worth, against epochs.",
        caption=f"{format_count(data.unique_tokens)} unique tokens. The value of repeats decays "
        f"with R_D* = {data.fading:.3g}.",
        table=ReportTable(
            "Value of repeated epochs",
            ("epochs", "worth in new tokens"),
            tuple((float(epochs[i]), format_count(effective[i])) for i in few),
        ),
    )


def _build_memory_table(plan: ScalingPlan) -> ReportTable:
    placement = plan.placement
    columns = tuple(next((row.bytes_by_recompute for row in placement.table), {}))
    return ReportTable(
        f"GiB per device, of {placement.room / GIB:,.1f} usable, by layout and recomputation",
        ("layout", *columns, ""),
        tuple(
            (
                row.layout,
                *(f"{size / GIB:,.1f}" for size in row.bytes_by_recompute.values()),
                "" if row.offered else "not supported here",
            )
            for row in placement.table
        ),
    )


def _list_assumptions(plan: ScalingPlan) -> tuple[ReportTable | Text, ...]:
    rows = tuple((k.replace("_", " "), v) for k, v in plan.assumptions.model_dump().items())
    price = Text(
        f"On-demand prices of {plan.cost.as_of}."
        if plan.cost.usd is not None
        else "The hardware table has no price for this device."
    )
    return ReportTable("Assumptions", ("", "value"), rows), price
