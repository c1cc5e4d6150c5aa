"""The commands `trainrig tokens …`, which inspect token shards; imports are made when they run."""

import json
from dataclasses import dataclass
from typing import Annotated

import typer

from trainrig import command_line
from trainrig.command_line import (
    CONTEXT,
    DATA,
    Borders,
    HelpGroup,
    Json,
    argument,
    command,
    flag,
    option,
)

tokens_app = typer.Typer(
    cls=HelpGroup,
    context_settings=CONTEXT,
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Inspect token shards.",
)


@dataclass(frozen=True)
class ViewOptions:
    """Options of `tokens inspect` that say what is shown of the shards."""

    documents: Annotated[int, option("N", help="Documents to decode from each source.", min=0)] = 2
    rows: Annotated[int, option("N", help="Rows to show with boundaries and masks.", min=0)] = 1
    sequence_length: Annotated[
        int, option("TOKENS", help="Length of the rows shown, in tokens.", min=1)
    ] = 256
    packing: Annotated[
        str,
        option(
            "KIND",
            help="How rows are packed: Concatenate or BestFit.",
            autocompletion=command_line.make_word_completion("Concatenate", "BestFit"),
        ),
    ] = "Concatenate"
    shuffled: Annotated[bool, flag("--shuffled", help="Order documents by the shuffle plan.")] = (
        False
    )
    seed: Annotated[
        int, option("N", help="Random seed that selects documents and rows.", min=0)
    ] = 0
    borders: Borders = False
    mask: Annotated[
        bool, flag("--mask", help="Show whole documents, with the tokens to train on in colour.")
    ] = False


@command(tokens_app, DATA, "trainrig tokens inspect quickstart/tokens --rows 2")
def inspect(
    shards: Annotated[str, argument("SHARDS", help="Folder of token shards, from `tokenize`.")],
    source: Annotated[
        list[str] | None, option("NAME", help="Show only this source; repeatable.  [default: all]")
    ] = None,
    *,
    shown: ViewOptions,
    verify: Annotated[
        bool, flag("--verify", help="Read every byte, and compare it with the checksums.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Show counts and lengths by source, decoded samples, and rows with boundaries and masks."""
    from rich.console import Console

    from trainrig.tokens.inspection import Inspection, View, choose_packing

    packing = choose_packing(shown.packing, shown.shuffled)
    view = View(
        shown.documents,
        shown.rows,
        shown.sequence_length,
        packing,
        shown.seed,
        shown.borders,
        shown.mask,
    )
    inspected = Inspection.open(shards, verify)
    if as_json:
        print(json.dumps(inspected.build_json(view, source or ())))
        return
    console = Console(highlight=False, soft_wrap=True)
    for text in inspected.render_texts(view, source or ()):
        console.print(text)
