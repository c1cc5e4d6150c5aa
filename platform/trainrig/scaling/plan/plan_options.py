"""`trainrig plan`: its options. What they need is imported when it runs."""

import json
from typing import Annotated, Any

import typer

from trainrig.command_line import completion
from trainrig.command_line.options import HardwareTable, Json, Utilisation
from trainrig.command_line.quantity import quantity_of


def plan(
    law: Annotated[
        str,
        typer.Argument(
            metavar="LAW.json|NAME",
            help="Law of `trainrig fit`, or a published one, such as hoffmann.",
        ),
    ],
    flops: Annotated[
        float | None,
        typer.Option(
            metavar="FLOP",
            parser=quantity_of("--flops"),
            help="Budget: compute, counted as 6ND FLOPs.",
        ),
    ] = None,
    gpu_days: Annotated[
        float | None,
        typer.Option(
            metavar="DAYS",
            parser=quantity_of("--gpu-days"),
            help="Budget: days of one device.",
        ),
    ] = None,
    budget_usd: Annotated[
        float | None,
        typer.Option(
            metavar="USD",
            parser=quantity_of("--budget-usd"),
            help="Budget: money, at on-demand prices.",
        ),
    ] = None,
    parameters: Annotated[
        float | None,
        typer.Option(
            metavar="N",
            parser=quantity_of("--parameters"),
            help="Plan for this model size, in parameters, instead.",
        ),
    ] = None,
    tokens: Annotated[
        float | None,
        typer.Option(
            metavar="N",
            parser=quantity_of("--tokens"),
            help="Plan for this many tokens instead.",
        ),
    ] = None,
    tokens_available: Annotated[
        float | None,
        typer.Option(
            metavar="N",
            parser=quantity_of("--tokens-available"),
            help="Unique tokens that there are; beyond, they repeat.  [default: any]",
        ),
    ] = None,
    tokens_served: Annotated[
        float | None,
        typer.Option(
            metavar="N",
            parser=quantity_of("--tokens-served"),
            help="Tokens that the model will process in use, to count its cost.  [default: none]",
        ),
    ] = None,
    device: Annotated[
        str | None,
        typer.Option(
            metavar="DEVICE",
            help="Device to train on.  [default: h100]",
            autocompletion=completion.devices,
        ),
    ] = None,
    devices: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="Number of devices.  [default: one machine's, or more to end in 30 days]",
        ),
    ] = None,
    instance: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Machine to rent.  [default: the cheapest with that device]",
            autocompletion=completion.instances,
        ),
    ] = None,
    mfu: Utilisation = None,
    hardware: HardwareTable = None,
    compute: Annotated[
        str | None,
        typer.Option(
            metavar="FORMAT",
            help="Number format to compute in: float32, tf32 or bfloat16.  [default: bfloat16]",
            autocompletion=completion.words("float32", "tf32", "bfloat16"),
        ),
    ] = None,
    vocabulary: Annotated[
        int | None, typer.Option(metavar="N", help="Vocabulary entries.  [default: 32,768]")
    ] = None,
    sequence_length: Annotated[
        int | None, typer.Option(metavar="TOKENS", help="Sequence length.  [default: 2,048]")
    ] = None,
    rule: Annotated[
        str | None,
        typer.Option(
            metavar="RULE",
            help="Rule for batch size and learning rate: DeepSeek, Porian, StepLaw or Kaplan.  "
            "[default: DeepSeek]",
            autocompletion=completion.words("DeepSeek", "Porian", "StepLaw", "Kaplan"),
        ),
    ] = None,
    table: Annotated[
        bool, typer.Option("--table", help="Print the best tokens for a range of sizes instead.")
    ] = False,
    out: Annotated[
        str | None,
        typer.Option(
            metavar="RUN.toml",
            help="Run file to write, with the plan beside it.  [default: none]",
        ),
    ] = None,
    tokens_folder: Annotated[
        str | None,
        typer.Option(
            metavar="FOLDER",
            help="Token shards for that run file.  [default: none; required by --out]",
        ),
    ] = None,
    output: Annotated[
        str | None,
        typer.Option(
            metavar="FOLDER", help="Run folder for that run file.  [default: named as the run file]"
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Plan a training run by a scaling law: model size, tokens, loss, hardware, time and cost.

    Give one of --flops, --gpu-days, --budget-usd, --parameters and --tokens.
    """
    request: dict[str, Any] = {
        "flops": flops,
        "gpu_days": gpu_days,
        "budget_usd": budget_usd,
        "parameters": parameters,
        "tokens": tokens,
        "tokens_available": tokens_available,
        "tokens_served": tokens_served,
        "device": device,
        "devices": devices,
        "instance": instance,
        "compute": compute,
        "vocabulary": vocabulary,
        "sequence_length": sequence_length,
        "rule": {"kind": rule} if rule else None,
        "assumptions": {"utilisation": mfu} if mfu is not None else None,
    }
    from trainrig.scaling.plan.plan_verb import RunWanted, answer, sizes

    if table:
        for line in sizes(law):
            print(line)
        return
    wanted = RunWanted(out, tokens_folder, output)
    given = {name: value for name, value in request.items() if value is not None}
    found, lines = answer(law, given, hardware, wanted)
    if as_json:
        print(json.dumps(found.model_dump(mode="json")))
        return
    for line in lines:
        print(line)
