"""Options of `trainrig predict`, which imports its dependencies when it runs."""

import json
from typing import Annotated

import typer

from trainrig.command_line import Json, make_quantity_parser


def predict(
    law: Annotated[
        str,
        typer.Argument(
            metavar="LAW.json|NAME",
            help="Law file of `trainrig fit`, or the name of a published law.",
        ),
    ],
    params: Annotated[
        float,
        typer.Option(
            metavar="N",
            parser=make_quantity_parser("--params"),
            help="Parameters, as the law counts them: 1.3B, 1.3e9.",
        ),
    ],
    tokens: Annotated[
        float,
        typer.Option(
            metavar="D",
            parser=make_quantity_parser("--tokens"),
            help="Tokens trained on, repeats included: 26B.",
        ),
    ],
    epochs: Annotated[
        float | None,
        typer.Option(metavar="N", help="How often each token is seen, on average.  [default: 1]"),
    ] = None,
    unique_tokens: Annotated[
        float | None,
        typer.Option(
            metavar="U",
            parser=make_quantity_parser("--unique-tokens"),
            help="Unique tokens among them, instead of --epochs.  [default: all]",
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Predict the loss of N parameters trained on D tokens by a scaling law, with its interval.

    The interval is that of the law's expected loss under its bootstrap draws, without the noise of
    a single run. Published laws, such as hoffmann and besiroglu, have no draws and so no interval.
    A warning with the factor shows where N or D lie outside of the law's runs.
    """
    from trainrig.scaling.plan.loss_prediction import describe_prediction, predict_loss
    from trainrig.scaling.plan.plan_verb import find_law

    found = predict_loss(find_law(law), params, tokens, epochs, unique_tokens)
    if as_json:
        print(json.dumps(found.model_dump(mode="json")))
        return
    for line in describe_prediction(found):
        print(line)
