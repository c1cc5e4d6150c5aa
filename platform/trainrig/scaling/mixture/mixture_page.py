"""Output of `trainrig mixture`: the record, the run file, and the HTML page `report.html`."""

import json

from trainrig import config, storage
from trainrig.errors import ConfigError
from trainrig.report import page_rendering, plots
from trainrig.report.plots import ChartFacts
from trainrig.scaling import law_plots
from trainrig.scaling.laws import law_formats
from trainrig.scaling.laws.law_formats import format_loss, format_loss_interval
from trainrig.scaling.mixture import mixture_fit, mixture_proposal
from trainrig.storage.writable import check_folder
from trainrig.tokens.shards.token_shards import TRAIN, TokenShards
from trainrig.train.run_file.run_files import Pretraining

TABLE_ROWS = 60


def build_mixture_page(
    settings: mixture_fit.MixtureFit, result: mixture_fit.MixtureResult, folder: str
) -> str:
    """Return the page as HTML text, which depends on the arguments alone."""
    record = result.record
    files = {
        "mixtures": settings.mixtures,
        "losses": settings.losses,
        "held-out mixtures": settings.held_out_mixtures,
        "held-out losses": settings.held_out_losses,
        "record": f"{folder}/{mixture_fit.RECORD}",
        "section": f"{folder}/{mixture_fit.SECTION}",
    }
    return page_rendering.render_page(
        __name__,
        settings=settings,
        record=record,
        warnings=record.warnings,
        interval=format_loss_interval,
        loss=law_formats.format_loss,
        score=mixture_proposal.choose_score(record),
        shares=_draw_shares(record),
        agreement=_draw_proof(result),
        scores=[
            (
                score.regression,
                score.judged_on,
                score.rows,
                f"{score.rank_correlation:.4f}",
                format_loss(score.error),
                "–" if score.baseline_error is None else format_loss(score.baseline_error),
            )
            for score in record.scores
        ],
        confirmed=_list_confirmed(record),
        folder=folder,
        files={name: path for name, path in files.items() if path},
    )


def _list_confirmed(record: mixture_proposal.MixtureRecord) -> list[tuple[str, ...]]:
    """Return a row of text for each mixture of the confirmation."""
    mixtures = record.confirmation.mixtures if record.confirmation else ()
    return [
        (
            mixture.name,
            ", ".join(f"{source} {share:.4f}" for source, share in mixture.weights.items()),
            format_loss(mixture.predicted),
            format_loss_interval(mixture.interval),
            format_loss(mixture.measured),
            ", ".join(format_loss(loss) for loss in mixture.losses),
        )
        for mixture in mixtures
    ]


def _draw_shares(record: mixture_proposal.MixtureRecord) -> ChartFacts:
    """Draw the share of each source with its interval, and its share in the average run."""
    ordered = sorted(record.weights, key=lambda share: -share.weight)
    shared = _find_common_prefix([share.source for share in ordered])
    rows = [
        plots.IntervalRow(
            share.source[len(shared) :],
            share.weight,
            share.interval.low or 0.0,
            share.interval.high or 0.0,
            share.average,
        )
        for share in ordered
    ]
    x = plots.Axis("share of the samples", "percent", low=0)
    return {
        "plot": plots.Intervals(rows, x, ("proposed", "average of the runs")),
        "columns": ("source", "weight", "low", "high", "average run"),
        "rows": [
            (
                share.source,
                f"{share.weight:.4f}",
                *format_loss_interval(share.interval).strip("[]").split(", "),
                f"{share.average:.4f}",
            )
            for share in ordered
        ],
        "prefix": shared,
        "raised": max(ordered, key=lambda share: share.weight - share.average),
    }


def _find_common_prefix(names: list[str]) -> str:
    """Return the words, each ended by an underscore, with which all names begin."""
    words = [name.split("_")[:-1] for name in names]
    shared = 0
    while (
        all(len(parts) > shared for parts in words) and len({parts[shared] for parts in words}) == 1
    ):
        shared += 1
    return "".join(f"{word}_" for word in words[0][:shared]) if len(names) > 1 else ""


def _draw_proof(result: mixture_fit.MixtureResult) -> ChartFacts:
    """Draw predicted over measured losses, of fitted and of held-out runs."""
    fitted = result.left_out
    held = result.held_out
    held_out = None if held is None else (held.predicted, held.actual)
    names = ("fitted, from the other runs", "held out")
    judged = fitted if held is None else held
    rows = list(zip(judged.actual.tolist(), judged.predicted.tolist(), strict=True))
    return {
        "plot": law_plots.draw_agreement(fitted.predicted, fitted.actual, held_out, names),
        "columns": ("measured", "predicted"),
        "rows": rows[:TABLE_ROWS],
        "cut": f", {TABLE_ROWS} of {len(rows):,}" if len(rows) > TABLE_ROWS else "",
        "correlation": judged.rank_correlation,
        "fitted": len(fitted.actual),
        "held_out": None if held is None else len(held.actual),
    }


def write_mixture(settings: mixture_fit.MixtureFit, out: str) -> mixture_proposal.MixtureRecord:
    """Fit the mixture, write its files into the folder `out`, and return the record."""
    check_folder(out)
    # Read before the fit, so that a wrong file is refused at once.
    run = None if settings.run is None else config.load(Pretraining, settings.run)
    result = mixture_fit.fit_mixture(settings)
    record = result.record
    if run is not None:
        _check_sources(run, settings, record)
        storage.write(
            storage.join(out, mixture_fit.RUN), mixture_fit.apply_weights(run, record).encode()
        )
    write_result(settings, result, out)
    return record


def write_result(
    settings: mixture_fit.MixtureFit, result: mixture_fit.MixtureResult, out: str
) -> tuple[str, ...]:
    """Write the record, the weights and the page into `out`, and return the names of the files."""
    record = result.record
    data = json.dumps(record.model_dump(mode="json"), indent=2, ensure_ascii=False)
    texts = {
        mixture_fit.RECORD: f"{data}\n",
        mixture_fit.SECTION: mixture_fit.format_section(record),
        mixture_fit.PAGE: build_mixture_page(settings, result, out),
    }
    for name, text in texts.items():
        storage.write(storage.join(out, name), text.encode())
    return tuple(texts)


def _check_sources(
    run: Pretraining, settings: mixture_fit.MixtureFit, record: mixture_proposal.MixtureRecord
) -> None:
    """Raise ConfigError if the tokens of `run` have other sources than the record.

    Tokens that do not exist yet are not checked.
    """
    folder = storage.join(run.tokens, TRAIN)
    if not storage.find_first(folder):
        return
    wanted = sorted(share.source for share in record.weights)
    there = sorted(TokenShards.open(folder).sources)
    if wanted != there:
        raise ConfigError(
            f"{settings.run}: {run.tokens} has the sources {', '.join(there)}, but "
            f"{settings.mixtures} has shares of {', '.join(wanted)}; name the run file of tokens "
            "with the same"
        )
