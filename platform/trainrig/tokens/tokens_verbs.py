"""The commands `trainrig tokens …`, which inspect token shards; imports are made when they run."""

import json
from typing import Annotated

import typer

from trainrig import command_line
from trainrig.command_line import CONTEXT, DATA, Borders, HelpGroup, Json, command

tokens_app = typer.Typer(
    cls=HelpGroup,
    context_settings=CONTEXT,
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Inspect token shards.",
)


@command(tokens_app, DATA, "trainrig tokens inspect quickstart/tokens --rows 2")
def inspect(
    shards: Annotated[
        str, typer.Argument(metavar="SHARDS", help="Folder of token shards, from `tokenize`.")
    ],
    source: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Show only this source; repeatable.  [default: all]"),
    ] = None,
    documents: Annotated[
        int, typer.Option(metavar="N", min=0, help="Documents to decode from each source.")
    ] = 2,
    rows: Annotated[
        int, typer.Option(metavar="N", min=0, help="Rows to show with boundaries and masks.")
    ] = 1,
    sequence_length: Annotated[
        int, typer.Option(metavar="TOKENS", min=1, help="Length of the rows shown, in tokens.")
    ] = 256,
    packing: Annotated[
        str,
        typer.Option(
            metavar="KIND",
            help="How rows are packed: Concatenate or BestFit.",
            autocompletion=command_line.make_word_completion("Concatenate", "BestFit"),
        ),
    ] = "Concatenate",
    shuffled: Annotated[
        bool, typer.Option("--shuffled", help="Order documents by the shuffle plan.")
    ] = False,
    seed: Annotated[
        int, typer.Option(metavar="N", min=0, help="Random seed that selects documents and rows.")
    ] = 0,
    borders: Borders = False,
    mask: Annotated[
        bool,
        typer.Option("--mask", help="Show whole documents, with the tokens to train on in colour."),
    ] = False,
    verify: Annotated[
        bool, typer.Option("--verify", help="Read every byte, and compare it with the checksums.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Show counts and lengths by source, decoded samples, and rows with boundaries and masks."""
    from rich.console import Console

    from trainrig.tokens.inspection import Inspection, View, choose_packing

    view = View(
        documents, rows, sequence_length, choose_packing(packing, shuffled), seed, borders, mask
    )
    inspected = Inspection.open(shards, verify)
    if as_json:
        print(json.dumps(inspected.build_json(view, source or ())))
        return
    console = Console(highlight=False, soft_wrap=True)
    for text in inspected.render_texts(view, source or ()):
        console.print(text)
