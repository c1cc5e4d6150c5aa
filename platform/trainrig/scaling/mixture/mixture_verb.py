"""The command `trainrig mixture`, which imports its dependencies when it runs."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from trainrig import command_line, config
from trainrig.command_line import Json, argument, option
from trainrig.errors import ConfigError

if TYPE_CHECKING:
    from trainrig.scaling.mixture.mixture_proposal import MixtureRecord


OF_RUN_FILE = ("mixtures", "losses", "changes", "as_json")  # parameters that go with a run file
RunStage = Callable[[str, Sequence[str] | None, bool], None]
"""Function that runs the stage of a run file with changes to it, and prints its manifest as JSON if
the last argument is true."""


@dataclass(frozen=True)
class MixtureOptions:
    """Options of `mixture` for two tables; a run file has keys for them."""

    method: Annotated[str, option("METHOD", help="Regression: RegMix or MixingLaw.")] = "RegMix"
    target: Annotated[
        list[str] | None,
        option(
            "COLUMN",
            help="Column of losses to minimise; repeat it for the mean of several.  [default: all]",
        ),
    ] = None
    held_out_mixtures: Annotated[
        str | None,
        option("CSV", help="Shares of runs to test the fit on; not fitted.  [default: none]"),
    ] = None
    held_out_losses: Annotated[
        str | None, option("CSV", help="Losses of those runs.  [default: none]")
    ] = None
    at_most: Annotated[
        list[str] | None,
        option("SOURCE=SHARE", help="Upper limit of a source's share, 0 to 1; repeatable."),
    ] = None
    run: Annotated[
        str | None,
        option(
            "RUN.toml",
            help="Run file to copy with the proposed weights.  [default: none]",
            autocompletion=command_line.run_files,
        ),
    ] = None
    candidates: Annotated[int, option("N", help="Number of mixtures to draw and compare.")] = 50_000
    seed: Annotated[int, option("N", help="Random seed.")] = 0
    out: Annotated[str, option("FOLDER", help="Folder to write.")] = "mixture"


def build_mixture_command(run_stage: RunStage) -> Callable[..., None]:
    """Return the command, which passes a run file on to `run_stage` and fits two tables itself."""

    def mixture(
        context: typer.Context,
        mixtures: Annotated[
            str,
            argument(
                "RUN.toml|MIXTURES.csv",
                help="Run file of the search; or, with LOSSES.csv, CSV of the share of each "
                "source, one run per line.",
                autocompletion=command_line.run_files,
            ),
        ],
        losses: Annotated[
            str | None,
            argument(
                "[LOSSES.csv]", help="CSV of the losses of those runs, instead of a run file."
            ),
        ] = None,
        changes: command_line.Changes = None,
        *,
        tables: MixtureOptions,
        as_json: Json = False,
    ) -> None:
        """Find a better mixture of sources from small runs on many mixtures (RegMix, mixing laws).

        With a run file, the command draws the mixtures, trains the runs, and confirms the proposal;
        run it again to continue after a stop. With two tables, it fits runs that you made. The
        options other than --set and --json are for tables; a run file has keys for them.
        """
        if losses is None:
            _refuse_options(context)
            _refuse_lone_table(mixtures)
            run_stage(mixtures, changes, as_json)
            return
        if changes:
            raise ConfigError("--set: changes a run file, but two tables were given")
        _fit_tables(mixtures, losses, tables, as_json)

    return mixture


def _fit_tables(mixtures: str, losses: str, options: MixtureOptions, as_json: bool) -> None:
    """Fit the two tables, write the folder of the fit, and print the result."""
    from trainrig.scaling.mixture.mixture_fit import MixtureFit
    from trainrig.scaling.mixture.mixture_page import write_mixture

    given = {
        "mixtures": mixtures,
        "losses": losses,
        "method": options.method,
        "targets": options.target or [],
        "held_out_mixtures": options.held_out_mixtures,
        "held_out_losses": options.held_out_losses,
        "run": options.run,
        "search": {
            "candidates": options.candidates,
            "seed": options.seed,
            "at_most": dict(_parse_limit(limit) for limit in options.at_most or ()),
        },
    }
    record = write_mixture(config.build(MixtureFit, given, "mixture"), options.out)
    print_record(record, options.out, as_json)


def _refuse_options(context: typer.Context) -> None:
    """Raise ConfigError if the command line has an option that only tables allow."""
    for param in context.command.params:
        name = param.name or ""
        source = context.get_parameter_source(name)
        if name in OF_RUN_FILE or source is None or source.name != "COMMANDLINE":
            continue
        raise ConfigError(
            f"{param.opts[0]}: is for two tables; with a run file, write it there, or give "
            "LOSSES.csv after MIXTURES.csv"
        )


def _refuse_lone_table(path: str) -> None:
    """Raise ConfigError if `path` is a table of shares without a table of losses."""
    if path.lower().endswith((".csv", ".tsv")):
        raise ConfigError(
            f"{path}: is a table without its losses; give MIXTURES.csv LOSSES.csv, or a run file "
            "that ends in .toml"
        )


def print_result(folder: str) -> None:
    """Print the result that the stage wrote into `folder`, as the command does for tables."""
    from trainrig import storage
    from trainrig.scaling.mixture.mixture_fit import RECORD
    from trainrig.scaling.mixture.mixture_proposal import MixtureRecord

    path = storage.join(folder, RECORD)
    record = config.build(MixtureRecord, json.loads(storage.read(path)), path)
    print_record(record, folder, as_json=False)


def print_record(record: "MixtureRecord", out: str, as_json: bool) -> None:
    """Print the proposed weights, the scores, the warnings and the path of the page."""
    from trainrig import storage
    from trainrig.scaling.laws.law_formats import format_loss_interval
    from trainrig.scaling.mixture.mixture_fit import PAGE, RECORD

    if as_json:
        facts = record.model_dump(mode="json", exclude={"weights", "made_by", "format"})
        weights = {share.source: share.weight for share in record.weights}
        print(json.dumps({"record": storage.join(out, RECORD), "weights": weights, **facts}))
        return
    for share in sorted(record.weights, key=lambda share_of_source: -share_of_source.weight):
        print(f"{share.weight:.4f} {format_loss_interval(share.interval)} {share.source}")
    print(
        f"expected loss {record.loss:.4f} {format_loss_interval(record.loss_interval)} nats per "
        f"token, {record.gain:.4f} {format_loss_interval(record.gain_interval)} below the average "
        "of the runs"
    )
    for score in record.scores:
        print(
            f"{score.regression} on {score.judged_on}: rank correlation "
            f"{score.rank_correlation:.4f}, error {score.error:.4f} nats per token "
            f"({score.baseline_error:.4f} for predicting the mean)"
        )
    for line in record.confirmation.describe() if record.confirmation else ():
        print(line)
    for warning in record.warnings:
        print(f"! {warning}")
    print(storage.join(out, PAGE))


def _parse_limit(text: str) -> tuple[str, float]:
    source, equals, share = text.rpartition("=")
    try:
        return (source, float(share)) if equals and source else _refuse(text)
    except ValueError:
        return _refuse(text)


def _refuse(text: str) -> tuple[str, float]:
    raise ConfigError(f"--at-most {text}: write it as --at-most SOURCE=SHARE, such as web=0.5")
