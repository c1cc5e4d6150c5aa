"""Command-line verbs for evaluations: compare, leaderboard and lm-eval.

The command line of lm-evaluation-harness runs in this process, with trainrig's model.
"""

import json
import sys
from collections.abc import Sequence
from typing import Annotated
from unittest import mock

import typer

from trainrig.command_line import Json, argument, option
from trainrig.errors import ConfigError
from trainrig.optional_packages import describe_install


def run_harness(arguments: Sequence[str]) -> None:
    """Run `lm-eval ARGUMENTS`. Raises ConfigError if the harness is not installed."""
    try:
        from lm_eval.__main__ import cli_evaluate
    except ImportError as error:
        raise ConfigError(
            f"lm-eval: {error}; install lm-evaluation-harness: `{describe_install('lm-eval')}`"
        ) from None
    from trainrig.evaluate.harness import model  # noqa: F401 - registers the model by name

    with mock.patch.object(sys, "argv", ["lm-eval", *arguments]):
        cli_evaluate()


Page = Annotated[
    str | None,
    option("FILE", "--html", help="Also write a page to read in a browser.  [default: none]"),
]


def compare(
    folders: Annotated[
        list[str], argument("FOLDER", help="Folders that `evaluate` wrote; A first.")
    ],
    html: Page = None,
    as_json: Json = False,
) -> None:
    """Compare evaluations on the same rows: paired differences with intervals.

    The first folder is A, and each other folder is compared with it. A difference is within noise
    if its 95% interval contains 0.
    """
    from trainrig import storage
    from trainrig.evaluate.paired_comparison import compare as compare_evaluations
    from trainrig.storage.writable import check_file

    if html:
        check_file(html)
    found = compare_evaluations(folders)
    if html:
        from trainrig.evaluate.paired_comparison import build_comparison_page

        storage.write(html, build_comparison_page(found).encode())
    if as_json:
        print(json.dumps([pair.to_json() for pair in found]))
        return
    for pair in found:
        print(f"A {pair.a}\nB {pair.b}")
        rows = [
            (
                task.task,
                task.metric,
                f"{task.a:.4f}",
                f"{task.b:.4f}",
                f"{task.paired.difference.value:+.4f}",
                _format_interval(task.paired.difference.interval),
                task.verdict,
            )
            for task in pair.tasks
        ]
        _print_table(("task", "metric", "A", "B", "B - A", "95% interval", "verdict"), rows)
        for name in pair.left_out:
            print(f"{name}: only in one of the two evaluations")


def leaderboard(
    folder: Annotated[str, argument("DIR", help="Folder that contains evaluations.")],
    html: Page = None,
    as_json: Json = False,
) -> None:
    """Rank all evaluations in a folder by their mean score on the common tasks."""
    from trainrig import storage
    from trainrig.evaluate.leaderboard import (
        build_leaderboard_page,
        list_board_cells,
        read_leaderboard,
    )
    from trainrig.storage.writable import check_file

    if html:
        check_file(html)
    board = read_leaderboard(folder)
    if html:
        storage.write(html, build_leaderboard_page(board, folder).encode())
    if as_json:
        print(json.dumps(board.to_json()))
        return
    columns, cells = list_board_cells(board)
    _print_table(columns, [tuple(_format_cell(cell) for cell in row) for row in cells])
    print(board.describe_best()[1])


def lm_eval(context: typer.Context) -> None:
    """Run lm-evaluation-harness on checkpoints of trainrig.

    All arguments are passed to its command line. `--model trainrig --model_args checkpoint=RUN`
    reads a run folder or a checkpoint, without an export. Needs the extra `lm-eval`:
    `pip install -e '.[lm-eval]'`.
    """
    run_harness(context.args)


def _format_interval(bounds: tuple[float, float] | None) -> str:
    return "–" if bounds is None else f"{bounds[0]:+.4f} to {bounds[1]:+.4f}"


def _format_cell(cell: str | int | float | None) -> str:
    if cell is None:
        return "–"
    return f"{cell:.4f}" if isinstance(cell, float) else str(cell)


def _print_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    widths = [max(map(len, column)) for column in zip(columns, *rows, strict=True)]
    for row in (columns, *rows):
        print(
            "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        )
