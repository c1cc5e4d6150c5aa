"""The verb `fit`. It imports what it needs when it runs."""

import logging
from typing import Annotated

import typer


def fit(
    runs: Annotated[
        list[str],
        typer.Argument(metavar="RUNS_DIR|CSV...", help="A sweep, or a table; one a recipe."),
    ],
    recipe: Annotated[
        list[str] | None, typer.Option(help="Of those in the table; several are compared.")
    ] = None,
    share: Annotated[
        str | None, typer.Option(help="Between recipes: exponents, or nothing.")
    ] = None,
    column: Annotated[
        list[str] | None, typer.Option(metavar="OURS=HEADER", help="A CSV's column; repeatable.")
    ] = None,
    form: Annotated[
        str | None, typer.Option(help="Parametric, Kaplan, DataConstrained or OverTraining.")
    ] = None,
    delta: Annotated[
        float | None, typer.Option(min=0, help="Of Huber's loss; 0: least absolute deviations.")
    ] = None,
    drop_highest: Annotated[int | None, typer.Option(help="Leave out so many losses.")] = None,
    hold_out: Annotated[
        float | None, typer.Option(help="Share kept back to judge by; 0.1.")
    ] = None,
    hold_out_by: Annotated[str | None, typer.Option(help="flops, parameters or tokens.")] = None,
    counts: Annotated[str | None, typer.Option(help="Of N: non-embedding or total.")] = None,
    tokenizer: Annotated[str | None, typer.Option(help="Of a table that does not say.")] = None,
    nearest: Annotated[int | None, typer.Option(help="Sizes of each isoFLOP parabola.")] = None,
    draws: Annotated[int | None, typer.Option(help="Of the bootstrap; 1000.")] = None,
    seed: Annotated[int | None, typer.Option(help="Of what is drawn; 0.")] = None,
    out: Annotated[str | None, typer.Option(help="The folder to write law.json into.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """A law of the losses of many runs, and how far to trust it; of several recipes, which wins."""
    from trainrig.scaling import fitting

    logging.basicConfig(format="trainrig: %(message)s")
    tables = fitting.Tables(
        tuple(runs), fitting.columns_of(column or ()), tuple(recipe or ()), share
    )
    options = {
        "form": form,
        "delta": delta,
        "drop_highest": drop_highest,
        "hold_out": hold_out,
        "hold_out_by": hold_out_by,
        "counts": counts,
        "tokenizer": tokenizer,
        "nearest": nearest,
        "draws": draws,
        "seed": seed,
    }
    print(fitting.fit(tables, fitting.settings_of(options), out, as_json))
