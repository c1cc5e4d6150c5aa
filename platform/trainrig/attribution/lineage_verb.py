"""Command-line verb that shows what a checkpoint was made from: lineage."""

import json
from typing import Annotated

import typer

from trainrig.command_line import Checkpoint, Json, Search

VerifyFiles = Annotated[
    bool,
    typer.Option(
        "--verify", help="Read all files that are found, and compare them with their sums."
    ),
]


def lineage(
    checkpoint: Checkpoint,
    search: Search = None,
    verify: VerifyFiles = False,
    as_json: Json = False,
) -> None:
    """Show the runs, shards, documents and sources behind a checkpoint, with their sums.

    Inputs are recognised by the fingerprints in manifests. They are looked for at the paths in run
    files, next to the run, and in --search.
    """
    from trainrig.evaluate.data_lineage import render_lineage, trace_lineage

    root = trace_lineage(checkpoint, search or (), verify)
    print(json.dumps(root.to_json()) if as_json else "\n".join(render_lineage(root)))
