"""Output of `trainrig mixture`: the record, the run file, and the HTML page `report.html`."""

import json
from functools import partial

from trainrig import figures, report, storage
from trainrig.errors import ConfigError
from trainrig.report import Chart, Details, KeyFigure, ReportTable, Section, Text
from trainrig.scaling.law_plots import Agreement, plot_agreement
from trainrig.scaling.laws.law_formats import format_loss
from trainrig.scaling.mixture import mixture_fit, mixture_proposal
from trainrig.scaling.plan_plots import Share, plot_shares
from trainrig.storage.writable import check_folder
from trainrig.tokens.shards.token_shards import TRAIN, TokenShards
from trainrig.train.run_file.run_files import Pretraining

TABLE_ROWS = 60


def build_mixture_page(
    settings: mixture_fit.MixtureFit, result: mixture_fit.MixtureResult, folder: str
) -> str:
    """Return the page as HTML text, which depends on the arguments alone."""
    record = result.record
    page = report.ReportPage(
        title="Mixture",
        verdict=_build_verdict(record),
        figures=_build_key_figures(record),
        sections=(
            Section("mixture", "Proposed weights", (_chart_shares(record),)),
            Section("proof", "How well mixtures are ranked", _build_proof(result)),
        ),
        commands=_list_commands(settings, folder),
        provenance={
            "Files": _list_files(settings, folder),
            "Search": {name: str(value) for name, value in record.search.model_dump().items()},
            "Made by": dict(record.made_by),
        },
    )
    return page.render_html()


def _build_verdict(record: mixture_proposal.MixtureRecord) -> report.Verdict:
    sentence = (
        f"The proposed mixture is expected to reach {format_loss(record.loss)} nats per token, "
        f"{format_loss(record.gain)} "
        f"{mixture_proposal.format_loss_interval(record.gain_interval)} below the average of "
        "the runs."
    )
    return report.Verdict(sentence, "warning" if record.warnings else "done", record.warnings)


def _build_key_figures(record: mixture_proposal.MixtureRecord) -> tuple[KeyFigure, ...]:
    score = mixture_proposal.choose_score(record)
    targets = len(record.targets)
    interval = mixture_proposal.format_loss_interval(record.gain_interval)
    gain = f"over the average of the runs; {interval}"
    what = f"mean of {targets} targets" if targets > 1 else record.targets[0]
    return (
        KeyFigure("Expected loss", format_loss(record.loss), "nats per token", what),
        KeyFigure(
            "95% interval", mixture_proposal.format_loss_interval(record.loss_interval), "",
            "given the uncertainty of the fit",
        ),
        KeyFigure("Gain", format_loss(record.gain), "nats per token", gain),
        KeyFigure(
            "Rank correlation", f"{score.rank_correlation:.4f}", "", f"on {score.judged_on}"
        ),
        KeyFigure("Error", format_loss(score.error), "nats per token", _describe_baseline(score)),
        KeyFigure(
            "Runs", f"{record.runs:,}", "", f"on mixtures of {len(record.weights)} sources"
        ),
    )  # fmt: skip


def _describe_baseline(score: mixture_proposal.RegressionScore) -> str:
    """Return the number of runs and the baseline's error, which put the error in perspective."""
    count = f"n = {score.rows:,}"
    if score.baseline_error is None:
        return count
    return f"{format_loss(score.baseline_error)} for predicting the mean, {count}"


def _chart_shares(record: mixture_proposal.MixtureRecord) -> Chart:
    ordered = sorted(record.weights, key=lambda share: -share.weight)
    shared = _find_common_prefix([share.source for share in ordered])
    shares = [
        Share(
            share.source[len(shared) :],
            share.weight,
            share.interval.low or 0.0,
            share.interval.high or 0.0,
            share.average,
        )
        for share in ordered
    ]
    prefix = f"Names begin with {shared}. " if shared else ""
    raised = max(ordered, key=lambda share: share.weight - share.average)
    return Chart(
        f"{raised.source} is raised most, from {raised.average:.2%} to {raised.weight:.2%}",
        figures.draw(partial(plot_shares, shares=shares), 70 + 24 * len(shares)),
        label="Share of each source with its interval, and its share in the average run.",
        caption=f"n = {record.runs:,} runs. {prefix}The proposal is the average of the "
        f"{record.search.best} best of {record.search.candidates:,} drawn mixtures. A line "
        f"contains 95% of the proposals for {record.search.draws} loss functions that agree "
        "with the runs.",
        table=ReportTable(
            "Weights for the run file",
            ("source", "weight", "low", "high", "average run"),
            tuple(
                (
                    share.source,
                    f"{share.weight:.4f}",
                    *mixture_proposal.format_loss_interval(share.interval).strip("[]").split(", "),
                    f"{share.average:.4f}",
                )
                for share in ordered
            ),
        ),
    )


def _find_common_prefix(names: list[str]) -> str:
    """Return the words, each ended by an underscore, with which all names begin."""
    words = [name.split("_")[:-1] for name in names]
    shared = 0
    while (
        all(len(parts) > shared for parts in words) and len({parts[shared] for parts in words}) == 1
    ):
        shared += 1
    return "".join(f"{word}_" for word in words[0][:shared]) if len(names) > 1 else ""


def _build_proof(
    result: mixture_fit.MixtureResult,
) -> tuple[Chart | ReportTable | Text | Details, ...]:
    record = result.record
    fitted = Agreement(result.left_out.predicted, result.left_out.actual)
    held = result.held_out
    held_out = None if held is None else Agreement(held.predicted, held.actual)
    judged = result.left_out if held is None else held
    rows = list(zip(judged.actual.tolist(), judged.predicted.tolist(), strict=True))
    chart = Chart(
        f"Predicted and measured losses have a rank correlation of {judged.rank_correlation:.4f}",
        figures.draw(
            partial(
                plot_agreement,
                fitted=fitted,
                held_out=held_out,
                names=("fitted, each predicted from the others", "held out"),
            ),
            330,
        ),
        label="Measured loss of each run against its predicted loss.",
        caption=f"n = {len(fitted.actual):,} fitted runs, each predicted from the others"
        + ("." if held is None else f", and {len(held.actual):,} held-out runs."),
        table=ReportTable(
            f"Losses, nats per token{_describe_cut(len(rows))}",
            ("measured", "predicted"),
            tuple(rows[:TABLE_ROWS]),
        ),
    )
    scores = ReportTable(
        "Regressions compared",
        (
            "regression",
            "evaluated on",
            "runs",
            "rank correlation",
            "error (nats per token)",
            "error of predicting the mean",
        ),
        tuple(
            (
                score.regression,
                score.judged_on,
                score.rows,
                f"{score.rank_correlation:.4f}",
                format_loss(score.error),
                "–" if score.baseline_error is None else format_loss(score.baseline_error),
            )
            for score in record.scores
        ),
    )
    note = Text(
        f"The expected loss of the proposal is {record.law_loss:.4f} nats per token by mixing "
        f"laws and {record.loss:.4f} by Gaussian processes. The lowest measured loss is "
        f"{record.lowest_measured:.4f}, which includes chance."
    )
    if not record.by_target:
        return chart, scores, note
    by_target = ReportTable(
        "Rank correlation on the held-out runs",
        ("target", "rank correlation"),
        tuple(record.by_target.items()),
    )
    return chart, scores, note, Details("Rank correlation of each target", (by_target,))


def _describe_cut(rows: int) -> str:
    return f", {TABLE_ROWS} of {rows:,}" if rows > TABLE_ROWS else ""


def _list_commands(settings: mixture_fit.MixtureFit, folder: str) -> tuple[report.PageCommand, ...]:
    if settings.run is not None:
        return (
            report.PageCommand(
                f"trainrig pretrain {folder}/pretrain.toml", "Train on the proposed mixture"
            ),
        )
    return (
        report.PageCommand(
            f"cat {folder}/{mixture_fit.SECTION} >> RUN.toml",
            "Add the weights to a run file of pretrain",
        ),
    )


def _list_files(settings: mixture_fit.MixtureFit, folder: str) -> dict[str, str]:
    named = {
        "mixtures": settings.mixtures,
        "losses": settings.losses,
        "held-out mixtures": settings.held_out_mixtures,
        "held-out losses": settings.held_out_losses,
        "record": f"{folder}/{mixture_fit.RECORD}",
        "section": f"{folder}/{mixture_fit.SECTION}",
    }
    return {name: path for name, path in named.items() if path}


def write_mixture(settings: mixture_fit.MixtureFit, out: str) -> mixture_proposal.MixtureRecord:
    """Fit the mixture, write its files into the folder `out`, and return the record."""
    check_folder(out)
    run = mixture_fit.read_run(settings)
    result = mixture_fit.fit_mixture(settings)
    record = result.record
    if run is not None:
        _check_sources(run, settings, record)
    data = json.dumps(record.model_dump(mode="json"), indent=2, ensure_ascii=False)
    storage.write(storage.join(out, mixture_fit.RECORD), f"{data}\n".encode())
    storage.write(
        storage.join(out, mixture_fit.SECTION), mixture_fit.format_section(record).encode()
    )
    if run is not None:
        storage.write(
            storage.join(out, mixture_fit.RUN), mixture_fit.apply_weights(run, record).encode()
        )
    storage.write(
        storage.join(out, mixture_fit.PAGE), build_mixture_page(settings, result, out).encode()
    )
    return record


def _check_sources(
    run: Pretraining, settings: mixture_fit.MixtureFit, record: mixture_proposal.MixtureRecord
) -> None:
    """Raise ConfigError if the tokens of `run` have other sources than the record.

    Tokens that do not exist yet are not checked.
    """
    folder = storage.join(run.tokens, TRAIN)
    if not storage.list_files(folder):
        return
    wanted = sorted(share.source for share in record.weights)
    there = sorted(TokenShards.open(folder).sources)
    if wanted != there:
        raise ConfigError(
            f"{settings.run}: {run.tokens} has the sources {', '.join(there)}, but "
            f"{settings.mixtures} has shares of {', '.join(wanted)}; name the run file of tokens "
            "with the same"
        )
