"""Command-line verbs that inspect training runs: trace, watch, runs, average."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

from trainrig import command_line
from trainrig.command_line import Borders, Instance, Json, argument, flag, option
from trainrig.errors import ConfigError, DataError
from trainrig.report.number_formats import format_short
from trainrig.storage.missing_folders import describe_origin, is_missing

if TYPE_CHECKING:
    from trainrig.runs.run_list import BestScore

Folder = Annotated[
    str, argument("RUN", help="Folder of a training run.", autocompletion=command_line.run_files)
]
TracedRun = Annotated[
    str, argument("RUN", help="Run folder, or a run file.", autocompletion=command_line.run_files)
]


def trace(
    run: TracedRun,
    step: Annotated[
        int | None, option("N", help="Step to trace, from 1 as in metrics.jsonl. [default: none]")
    ] = None,
    data_step: Annotated[
        int | None, option("N", help="Batch to trace, from 0, instead of a step. [default: none]")
    ] = None,
    url: Annotated[
        str | None,
        option(
            "URL",
            help="URL of a page: list the steps and checkpoints that saw it, instead of a step.",
        ),
    ] = None,
    rules: Annotated[
        bool, flag("--rules", help="List documents with the filter rules that they break.")
    ] = False,
    source: Annotated[
        str | None, option("NAME", help="Show only sequences of this source.  [default: all]")
    ] = None,
    tokens: Annotated[
        int, option("N", help="Number of tokens to show at each end of a document.", min=1)
    ] = 60,
    borders: Borders = False,
    as_json: Json = False,
) -> None:
    """Show the documents, URLs and text that one training step learned from.

    Or, with --url, the steps that learned from one page.
    """
    if url is not None:
        if (step, data_step) != (None, None):
            raise ConfigError("give exactly one of --step, --data-step and --url")
        from trainrig.runs.culprits import find_url

        seen = find_url(run, url)
        print(json.dumps(seen.to_json()) if as_json else seen)
    elif rules:
        from trainrig.runs.culprits import find_culprits

        found = [
            culprit
            for culprit in find_culprits(run, step, data_step)
            if source in (None, culprit.source)
        ]
        print(
            json.dumps([asdict(culprit) for culprit in found])
            if as_json
            else "\n".join(map(str, found))
        )
    else:
        _show_step(run, step, data_step, source, tokens, borders, as_json)


def _show_step(
    run: str,
    step: int | None,
    data_step: int | None,
    source: str | None,
    tokens: int,
    borders: bool,
    as_json: bool,
) -> None:
    from rich.console import Console

    from trainrig.runs.step_trace import trace as trace_step

    traced = trace_step(run, step, source, data_step)
    if as_json:
        print(json.dumps(traced.to_json()))
        return
    console = Console(highlight=False, soft_wrap=True)
    for text in traced.render_texts(tokens, borders):
        console.print(text)
    console.print(traced.verdict)


def watch(
    run: Annotated[
        list[str],
        argument(
            "RUN",
            help="Folder of a training run; give several to compare them.",
            autocompletion=command_line.run_files,
        ),
    ],
    port: Annotated[
        int, option("N", help="Port to listen on; 0 takes a free one.", min=0, max=65535)
    ] = 0,
) -> None:
    """Serve the live report of training runs to a browser on this machine. Ctrl-C ends it.

    Only the address that it prints, which holds a token, opens the page; it changes nothing.
    """
    from trainrig.runs.watch import PageServer, build_live_page
    from trainrig.storage import exists, join

    folders = [path.rstrip("/") for path in run]
    for folder in folders:
        if not exists(join(folder, "run.toml")):
            if is_missing(folder):
                raise DataError(f"{folder}: no such folder{describe_origin(folder)}")
            raise DataError(f"{folder}: no run.toml in it; name the folder of a training run")
    with PageServer(lambda: build_live_page(*folders), port) as server:
        print(server.url, flush=True)
        server.serve_forever()


def runs(
    folder: Annotated[str, argument("DIR", help="Folder to search for training runs.")],
    instance: Instance = None,
    as_json: Json = False,
) -> None:
    """List the training runs below a folder: state, progress, losses, best scores, hours and cost.

    Hours are workers times the time that attempts lasted, with starting up and what restarts lost.
    """
    from trainrig.runs.run_list import list_runs, shorten_name

    found = list_runs(folder, instance)
    if as_json:
        print(json.dumps([asdict(listed) for listed in found]))
        return
    header = (
        *("run", "state", "step", "loss", "best held-out", "best score", "tokens"),
        *("worker hours", "cost (USD)"),
    )
    rows: list[tuple[str, ...]] = [header]
    for listed in found:
        best = "-"
        if listed.best_held_out is not None:
            best = f"{listed.best_held_out:.4f} at {listed.best_step:,}"
        rows.append(
            (
                shorten_name(listed, folder),
                listed.state,
                f"{listed.step:,}/{listed.steps:,}",
                "-" if listed.loss is None else f"{listed.loss:.4f}",
                best,
                _format_first_score(listed.best_scores),
                format_short(listed.tokens).replace("\u00a0", " "),
                f"{listed.paid_hours:.2f}",
                "-" if listed.usd is None else f"{listed.usd:,.2f}",
            )
        )
    widths = [max(len(row[column]) for row in rows) for column in range(len(header))]
    for row in rows:
        print(
            "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        )


def _format_first_score(scores: "Sequence[BestScore]") -> str:
    """Format the best score of the first task, with the number of other tasks."""
    if not scores:
        return "-"
    first, *others = scores
    error = "" if first.error is None else f" +- {first.error:.3f}"
    more = f", and {len(others)} more" if others else ""
    return f"{first.task} {first.value:.3f}{error} at {first.step:,}{more}"


def average(
    run: Folder,
    out: Annotated[str, argument("OUT", help="Run folder to write; must be new.")],
    last: Annotated[
        int | None, option("N", help="Average the last N checkpoints. [default: none]", min=1)
    ] = None,
    horizon: Annotated[
        int | None,
        option("N", help="Use the average over N updates that the run kept, instead.", min=2),
    ] = None,
    as_json: Json = False,
) -> None:
    """Write averaged weights of a training run as a new checkpoint."""
    from trainrig.storage import list_files
    from trainrig.storage.writable import check_folder
    from trainrig.train.checkpoint.stored_model import write_average, write_mean_of_last

    if (last is None) == (horizon is None):
        raise ConfigError("give exactly one of --last and --horizon")
    check_folder(out)
    if list_files(out):
        raise ConfigError(f"{out}: not empty; name a new folder")
    if last is not None:
        path, steps = write_mean_of_last(run.rstrip("/"), last, out)
    else:
        assert horizon is not None
        path = write_average(run.rstrip("/"), horizon, out)
        steps = []
    print(json.dumps({"checkpoint": path, "steps": steps}) if as_json else path)
