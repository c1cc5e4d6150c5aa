"""Command-line options and arguments that several commands share."""

from typing import Annotated

import typer

from trainrig.command_line import completion

RunPath = Annotated[
    str,
    typer.Argument(
        metavar="RUN.toml", help="Run file of the command.", autocompletion=completion.run_files
    ),
]
Changes = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="a.b=value",
        help="Change one key of the run file; repeatable.",
    ),
]
Verb = Annotated[
    str,
    typer.Argument(
        metavar="COMMAND",
        help="Command that takes a run file.",
        autocompletion=completion.complete_verbs,
    ),
]
Checkpoint = Annotated[
    str,
    typer.Argument(metavar="CKPT", help="Run folder (its newest checkpoint), or one checkpoint."),
]
Notify = Annotated[
    str | None,
    typer.Option(
        metavar="TARGET", help="Command or URL to send the run's alarms to.  [default: none]"
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print the result as one JSON object.")]
Borders = Annotated[bool, typer.Option("--borders", help="Mark where each token ends.")]

Device = Annotated[
    str | None,
    typer.Option(
        metavar="DEVICE",
        help="Device to estimate for, such as h100.  [default: this machine's]",
        autocompletion=completion.complete_devices,
    ),
]
Utilisation = Annotated[
    float | None,
    typer.Option(
        metavar="SHARE", help="Share of the device's peak FLOP/s that is reached.  [default: 0.4]"
    ),
]
HardwareTable = Annotated[
    str | None,
    typer.Option(
        metavar="FILE",
        help="Table of devices, machines and prices.  [default: trainrig's hardware.toml]",
        autocompletion=completion.run_files,
    ),
]
RecordsHome = Annotated[
    str | None,
    typer.Option(
        "--home",
        metavar="URL",
        help="Folder or s3:// URL of the runs' records.  "
        "[default: $TRAINRIG_HOME, else ~/.local/state/trainrig]",
    ),
]
