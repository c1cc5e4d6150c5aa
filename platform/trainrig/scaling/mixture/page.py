"""`report.html` of a proposed mixture."""

from functools import partial

from trainrig import figures, report
from trainrig.report import Chart, Details, KeyFigure, Section, Table, Text
from trainrig.scaling.mixture.fitting import (
    RECORD,
    SECTION,
    MixtureFit,
    MixtureRecord,
    MixtureResult,
    spelt,
)
from trainrig.scaling.plots.agreement import Agreement, plot_agreement
from trainrig.scaling.plots.shares import Share, plot_shares

TABLE_ROWS = 60


def mixture_page(settings: MixtureFit, result: MixtureResult, folder: str) -> str:
    """The page as HTML text: a pure function of what it is given."""
    record = result.record
    page = report.Page(
        title="Mixture",
        verdict=_verdict(record),
        figures=_key_figures(record),
        sections=(
            Section("mixture", "What to train on", (_shares_chart(record),)),
            Section("proof", "How well mixtures are ordered", _proof(result)),
        ),
        commands=_commands(settings, folder),
        provenance={
            "Files": _files(settings, folder),
            "Search": {name: str(value) for name, value in record.search.model_dump().items()},
            "Made by": dict(record.made_by),
        },
    )
    return page.html()


def _verdict(record: MixtureRecord) -> report.Verdict:
    warnings = []
    ours = [score for score in record.scores if score.regression == "Gaussian processes"]
    low = record.gain_interval.low
    if low is None or low <= 0:
        warnings.append(
            f"The gain's interval {spelt(record.gain_interval)} holds 0: the runs do not show that "
            "this mixture is better than their average. Train more of them."
        )
    if ours[0].rank_correlation < 0.9:
        warnings.append(
            f"New mixtures are ordered with a rank correlation of {ours[0].rank_correlation:.3f} "
            "alone, so the best of many may be the luckiest of them."
        )
    if record.runs_left_out:
        warnings.append(
            f"Runs that only one file has, or with a loss that is no number: {record.runs_left_out}"
        )
    sentence = (
        f"The proposed mixture is expected to reach {record.loss:.3f} nats per token, "
        f"{record.gain:.3f} {spelt(record.gain_interval)} below the average of the runs."
    )
    return report.Verdict(sentence, "warning" if warnings else "done", tuple(warnings))


def _key_figures(record: MixtureRecord) -> tuple[KeyFigure, ...]:
    judged = next(
        (s for s in record.scores if "held-out" in s.judged_on),
        record.scores[0],
    )
    targets = len(record.targets)
    gain = f"over the average of the runs; {spelt(record.gain_interval)}"
    what = f"mean of {targets} targets" if targets > 1 else record.targets[0]
    return (
        KeyFigure("Expected loss", f"{record.loss:.4f}", "nats per token", what),
        KeyFigure("95% interval", spelt(record.loss_interval), "", "of what the runs leave open"),
        KeyFigure("Gain", f"{record.gain:.4f}", "nats per token", gain),
        KeyFigure(
            "Rank correlation", f"{judged.rank_correlation:.4f}", "", f"on {judged.judged_on}"
        ),
        KeyFigure("Error", f"{judged.error:.4f}", "nats per token", f"n = {judged.rows:,}"),
        KeyFigure(
            "Runs", f"{record.runs:,}", "", f"on mixtures of {len(record.weights)} sources"
        ),
    )  # fmt: skip


def _shares_chart(record: MixtureRecord) -> Chart:
    ordered = sorted(record.weights, key=lambda each: -each.weight)
    shared = _shared_beginning([x.source for x in ordered])
    shares = [
        Share(
            x.source[len(shared) :],
            x.weight,
            x.interval.low or 0.0,
            x.interval.high or 0.0,
            x.average,
        )
        for x in ordered
    ]
    prefix = f"Names begin with {shared}. " if shared else ""
    raised = max(ordered, key=lambda each: each.weight - each.average)
    return Chart(
        f"{raised.source} is raised most: from {raised.average:.1%} to {raised.weight:.1%}",
        figures.draw(partial(plot_shares, shares=shares), 70 + 24 * len(shares)),
        label="Each source's share, with its interval, beside that of the average run.",
        caption=f"n = {record.runs:,} runs. {prefix}The average of the {record.search.best} best "
        f"of {record.search.candidates:,} mixtures drawn; a line holds 95% of the answers under "
        f"{record.search.draws} functions that the runs do not rule out.",
        table=Table(
            "Weights, as a run file has them",
            ("source", "weight", "low", "high", "average run"),
            tuple(
                (x.source, x.weight, x.interval.low, x.interval.high, x.average) for x in ordered
            ),
        ),
    )


def _shared_beginning(names: list[str]) -> str:
    """The words, ended by underscores, that all names begin with."""
    words = [name.split("_")[:-1] for name in names]
    shared = 0
    while all(len(each) > shared for each in words) and len({each[shared] for each in words}) == 1:
        shared += 1
    return "".join(f"{word}_" for word in words[0][:shared]) if len(names) > 1 else ""


def _proof(result: MixtureResult) -> tuple[Chart | Table | Text | Details, ...]:
    record = result.record
    fitted = Agreement(result.left_out.predicted, result.left_out.actual)
    held = result.held_out
    held_out = None if held is None else Agreement(held.predicted, held.actual)
    judged = result.left_out if held is None else held
    rows = list(zip(judged.actual.tolist(), judged.predicted.tolist(), strict=True))
    chart = Chart(
        f"New mixtures are ordered with a rank correlation of {judged.rank_correlation:.4f}",
        figures.draw(
            partial(
                plot_agreement,
                fitted=fitted,
                held_out=held_out,
                names=("fitted, predicted from the others", "held out"),
            ),
            330,
        ),
        label="Predicted against measured loss of each run.",
        caption=f"n = {len(fitted.actual):,} runs of the fit, each predicted from the others"
        + ("." if held is None else f"; {len(held.actual):,} held out, which no fit has seen."),
        table=Table(
            f"Losses, nats per token{_some(len(rows))}",
            ("measured", "predicted"),
            tuple(rows[:TABLE_ROWS]),
        ),
    )
    scores = Table(
        "Regressions side by side",
        ("regression", "judged on", "runs", "rank correlation", "error (nats per token)"),
        tuple(
            (s.regression, s.judged_on, s.rows, s.rank_correlation, s.error) for s in record.scores
        ),
    )
    note = Text(
        f"The mixing laws expect {record.law_loss:.4f} nats per token of the proposal, the Gaussian"
        f" processes {record.loss:.4f}. The lowest of the runs measured "
        f"{record.lowest_measured:.4f}, its luck included."
    )
    if not record.by_target:
        return chart, scores, note
    by_target = Table(
        "Rank correlation on the held-out runs",
        ("target", "rank correlation"),
        tuple(record.by_target.items()),
    )
    return chart, scores, note, Details("By target", (by_target,))


def _some(rows: int) -> str:
    return f", {TABLE_ROWS} of {rows:,}" if rows > TABLE_ROWS else ""


def _commands(settings: MixtureFit, folder: str) -> tuple[report.Command, ...]:
    if settings.run is not None:
        return (report.Command(f"trainrig pretrain {folder}/pretrain.toml", "Train on it"),)
    return (
        report.Command(
            f"cat {folder}/{SECTION} >> RUN.toml", "Give the weights to a run file of pretrain"
        ),
    )


def _files(settings: MixtureFit, folder: str) -> dict[str, str]:
    named = {
        "mixtures": settings.mixtures,
        "losses": settings.losses,
        "held-out mixtures": settings.held_out_mixtures,
        "held-out losses": settings.held_out_losses,
        "record": f"{folder}/{RECORD}",
        "section": f"{folder}/{SECTION}",
    }
    return {name: path for name, path in named.items() if path}
