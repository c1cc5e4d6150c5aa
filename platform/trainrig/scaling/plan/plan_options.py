"""Options of `trainrig plan` and `trainrig predict`; dependencies are imported when they run."""

import json
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer

from trainrig import command_line
from trainrig.command_line import HardwareTable, Json, Utilisation, make_quantity_parser
from trainrig.errors import ConfigError

Degree = Annotated[
    int | None,
    typer.Option(metavar="N", min=1, help="With --layout: fix this degree.  [default: any]"),
]


def plan(
    law: Annotated[
        str | None,
        typer.Argument(
            metavar="[LAW.json|NAME]",
            help="Law of `trainrig fit`, or a published one (hoffmann). Or give --layout instead.",
            show_default=False,
        ),
    ] = None,
    layout: Annotated[
        str | None,
        typer.Option(
            metavar="RUN.toml",
            help="Find the fastest layouts of this run file over --nodes or --devices instead.",
            autocompletion=command_line.run_files,
        ),
    ] = None,
    flops: Annotated[
        float | None,
        typer.Option(
            metavar="FLOP",
            parser=make_quantity_parser("--flops"),
            help="Budget: compute, counted as 6ND FLOPs.",
        ),
    ] = None,
    gpu_days: Annotated[
        float | None,
        typer.Option(
            metavar="DAYS",
            parser=make_quantity_parser("--gpu-days"),
            help="Budget: days of one device.",
        ),
    ] = None,
    budget_usd: Annotated[
        float | None,
        typer.Option(
            metavar="USD",
            parser=make_quantity_parser("--budget-usd"),
            help="Budget: money, at on-demand prices.",
        ),
    ] = None,
    parameters: Annotated[
        float | None,
        typer.Option(
            metavar="N",
            parser=make_quantity_parser("--parameters"),
            help="Plan for this model size, in parameters, instead.",
        ),
    ] = None,
    tokens: Annotated[
        float | None,
        typer.Option(
            metavar="N",
            parser=make_quantity_parser("--tokens"),
            help="Plan for this many tokens instead.",
        ),
    ] = None,
    tokens_available: Annotated[
        float | None,
        typer.Option(
            metavar="N",
            parser=make_quantity_parser("--tokens-available"),
            help="Number of unique tokens; a run with more repeats them.  [default: any]",
        ),
    ] = None,
    tokens_served: Annotated[
        float | None,
        typer.Option(
            metavar="N",
            parser=make_quantity_parser("--tokens-served"),
            help="Tokens that the model will process in use, to count its cost.  [default: none]",
        ),
    ] = None,
    device: Annotated[
        str | None,
        typer.Option(
            metavar="DEVICE",
            help="Device to train on.  [default: h100]",
            autocompletion=command_line.complete_devices,
        ),
    ] = None,
    devices: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="Number of devices.  [default: one machine, or more to finish in 30 days]",
        ),
    ] = None,
    nodes: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, help="With --layout: machines.  [default: by --devices]"),
    ] = None,
    interconnect: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="With --layout: link between machines.  [default: the machine's own]",
            autocompletion=command_line.complete_interconnects,
        ),
    ] = None,
    tensor: Degree = None,
    pipeline: Degree = None,
    context: Degree = None,
    expert: Degree = None,
    instance: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Machine to rent.  [default: the cheapest with that device]",
            autocompletion=command_line.complete_instances,
        ),
    ] = None,
    mfu: Utilisation = None,
    hardware: HardwareTable = None,
    compute: Annotated[
        str | None,
        typer.Option(
            metavar="FORMAT",
            help="Number format to compute in: float32, tf32 or bfloat16.  [default: bfloat16]",
            autocompletion=command_line.make_word_completion("float32", "tf32", "bfloat16"),
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
            autocompletion=command_line.make_word_completion(
                "DeepSeek", "Porian", "StepLaw", "Kaplan"
            ),
        ),
    ] = None,
    optimizer: Annotated[
        str | None,
        typer.Option(
            metavar="KIND",
            help="Optimizer of the run, such as Muon; the rate rules were fitted on AdamW.  "
            "[default: AdamW]",
        ),
    ] = None,
    table: Annotated[
        bool, typer.Option("--table", help="Print the best tokens for a range of sizes instead.")
    ] = False,
    out: Annotated[
        str | None,
        typer.Option(
            metavar="RUN.toml",
            help="Run file to write, with the plan next to it.  [default: none]",
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

    Give exactly one of --flops, --gpu-days, --budget-usd, --parameters and --tokens. To find the
    fastest layout of an existing run file instead, give --layout RUN.toml without a law.
    """
    fixed = {"tensor": tensor, "pipeline": pipeline, "context": context, "expert": expert}
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
        "optimizer": {"kind": optimizer} if optimizer else None,
        "assumptions": {"utilisation": mfu} if mfu is not None else None,
    }
    given = {name: value for name, value in request.items() if value is not None}
    by_layout = {"--nodes": nodes, "--interconnect": interconnect}
    by_layout |= {f"--{name}": value for name, value in fixed.items()}
    check_kind(law, layout, given, [name for name, value in by_layout.items() if value is not None])
    if layout is not None:
        device_options = {"device": device, "devices": devices, "instance": instance}
        cluster_options = device_options | {"nodes": nodes, "interconnect": interconnect}
        _print_layouts(layout, cluster_options, fixed, hardware, out, as_json)
        return
    assert law is not None  # `check_kind` requires a law here
    from trainrig.scaling.plan.plan_verb import RunWanted, answer, describe_best_sizes

    if table:
        for line in describe_best_sizes(law):
            print(line)
        return
    wanted = RunWanted(out, tokens_folder, output)
    found, lines = answer(law, given, hardware, wanted)
    if as_json:
        print(json.dumps(found.model_dump(mode="json")))
        return
    for line in lines:
        print(line)


def check_kind(
    law: str | None, layout: str | None, given: Mapping[str, Any], of_layouts: Sequence[str]
) -> None:
    """Raise ConfigError unless the command names either a law or a run file with --layout.

    Each of the two has options of its own, and must not be combined with those of the other.
    `given` has the options of laws, keyed by field name; `of_layouts` lists those of layouts.
    """
    if layout is None and law is None:
        raise ConfigError("plan: give LAW.json or NAME, such as hoffmann, or --layout RUN.toml")
    if layout is not None and law is not None:
        raise ConfigError(
            f"plan: '{law}' is a law, and --layout plans an existing run file; give only one of "
            "the two"
        )
    shared = ("device", "devices", "instance")
    of_laws = [f"--{name.replace('_', '-')}" for name in given if name not in shared]
    if layout is not None and of_laws:
        found = "--mfu" if of_laws[0] == "--assumptions" else of_laws[0]
        raise ConfigError(
            f"plan: {found} is an option of plans by a law; leave it out with --layout"
        )
    if layout is None and of_layouts:
        raise ConfigError(
            f"plan: {of_layouts[0]} is an option of --layout; leave it out, or add "
            "--layout RUN.toml"
        )


def _print_layouts(
    path: str,
    cluster: Mapping[str, Any],
    fixed: Mapping[str, int | None],
    table: str | None,
    out: str | None,
    as_json: bool,
) -> None:
    from trainrig.estimate.layout.layout_search import FixedDegrees
    from trainrig.scaling.plan import layout_text
    from trainrig.scaling.plan.layout_verb import ClusterWanted, answer

    found, lines = answer(path, ClusterWanted(**cluster), FixedDegrees(**fixed), table, out)
    if as_json:
        print(json.dumps(layout_text.build_plan_data(found)))
        return
    for line in lines:
        print(line)


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
