"""`trainrig plan`: its options. What they need is imported when it runs."""

import json
from typing import Annotated, Any

import typer


def plan(
    law: Annotated[str, typer.Argument(metavar="LAW.json|NAME", help="Of `fit`, or published.")],
    flops: Annotated[float | None, typer.Option(help="Compute to divide, by 6ND.")] = None,
    gpu_days: Annotated[float | None, typer.Option(help="Days of one device.")] = None,
    budget_usd: Annotated[float | None, typer.Option(help="Money, on demand.")] = None,
    parameters: Annotated[float | None, typer.Option(help="The size, as the law counts.")] = None,
    tokens: Annotated[float | None, typer.Option(help="The tokens to train on.")] = None,
    tokens_available: Annotated[
        float | None, typer.Option(help="Different tokens there are: beyond, they repeat.")
    ] = None,
    tokens_served: Annotated[
        float | None, typer.Option(help="Tokens that it will read and write in use.")
    ] = None,
    device: Annotated[str | None, typer.Option(help="What to train on; h100.")] = None,
    devices: Annotated[int | None, typer.Option(help="How many; a machine's, or more.")] = None,
    instance: Annotated[str | None, typer.Option(help="What to rent; the cheapest.")] = None,
    mfu: Annotated[float | None, typer.Option(help="Share of the peak; 0.4.")] = None,
    hardware: Annotated[str | None, typer.Option(help="A table of your own.")] = None,
    compute: Annotated[str | None, typer.Option(help="float32, tf32, bfloat16.")] = None,
    vocabulary: Annotated[int | None, typer.Option(help="Entries; 32,768.")] = None,
    sequence_length: Annotated[int | None, typer.Option(help="Tokens; 2,048.")] = None,
    rule: Annotated[str | None, typer.Option(help="Of batch and rate; DeepSeek.")] = None,
    table: Annotated[bool, typer.Option("--table", help="What is best for each size.")] = False,
    out: Annotated[str | None, typer.Option(help="Run file to write, the plan beside it.")] = None,
    tokens_folder: Annotated[str | None, typer.Option(help="What `tokenize` wrote.")] = None,
    output: Annotated[str | None, typer.Option(help="The folder of that run.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """How large, on how many tokens, how well, on what and for how much, by a law of scaling."""
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
    from trainrig.scaling.plan_answer import RunWanted, answer, sizes

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
