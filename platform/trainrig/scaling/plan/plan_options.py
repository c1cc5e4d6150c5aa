"""Options of `trainrig plan` and `trainrig predict`; dependencies are imported when they run."""

import json
from dataclasses import asdict, dataclass
from typing import Annotated

from trainrig import command_line
from trainrig.command_line import HardwareTable, Json, argument, flag, option, quantity
from trainrig.errors import ConfigError


@dataclass(frozen=True)
class PlanOptions:
    """Options of `plan` that are keys of a PLAN.toml, which they replace."""

    flops: Annotated[
        float | None, quantity("FLOP", "--flops", help="Budget: compute, counted as 6ND FLOPs.")
    ] = None
    gpu_days: Annotated[
        float | None, quantity("DAYS", "--gpu-days", help="Budget: days of one device.")
    ] = None
    budget_usd: Annotated[
        float | None, quantity("USD", "--budget-usd", help="Budget: money, at on-demand prices.")
    ] = None
    device: Annotated[
        str | None,
        option(
            "DEVICE",
            help="Device to train on.  [default: h100]",
            autocompletion=command_line.complete_devices,
        ),
    ] = None
    layout: Annotated[
        str | None,
        option(
            "RUN.toml",
            help="Find the fastest layouts of this run file instead.",
            autocompletion=command_line.run_files,
        ),
    ] = None
    nodes: Annotated[
        int | None, option("N", help="With --layout: machines.  [default: by its workers]", min=1)
    ] = None
    out: Annotated[
        str | None,
        option("RUN.toml", help="Run file to write, with the plan next to it.  [default: none]"),
    ] = None
    extrapolate: Annotated[
        bool, flag("--extrapolate", help="Plan even beyond 5 times the range of the law's runs.")
    ] = False


def plan(
    what: Annotated[
        str | None,
        argument(
            "[LAW.json|NAME|PLAN.toml]",
            help="Law (hoffmann, or of `trainrig fit`), a run file of `plan`, or --layout instead.",
            show_default=False,
            autocompletion=command_line.run_files,
        ),
    ] = None,
    changes: command_line.Changes = None,
    *,
    given: PlanOptions,
    hardware: HardwareTable = None,
    table: Annotated[
        bool, flag("--table", help="Print the best tokens for a range of sizes instead.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Plan a training run by a scaling law: model size, tokens, loss, hardware, time and cost.

    Give one budget: --flops, --gpu-days or --budget-usd. Other keys of a plan, such as the number
    of tokens there are, stand in a PLAN.toml or follow --set: `--set tokens_available=2e9`. To find
    the fastest layout of an existing run file instead, give --layout RUN.toml without a law.
    """
    if table:
        from trainrig.scaling.laws.published_laws import find_law
        from trainrig.scaling.plan.plan_text import describe_size_table

        if what is None:
            raise ConfigError("plan: --table needs a law; give LAW.json or NAME, such as hoffmann")
        for line in describe_size_table(find_law(what)):
            print(line)
        return
    from trainrig.scaling.plan.plan_answer import answer_plan
    from trainrig.scaling.plan.plan_run_file import load_plan_file

    options = {**asdict(given), "extrapolate": given.extrapolate or None}
    request = load_plan_file(what, options, changes or ())
    found = answer_plan(request, hardware)
    if as_json:
        print(json.dumps(found.to_json()))
        return
    for line in found.lines:
        print(line)


@dataclass(frozen=True)
class SizeOptions:
    """Options of `predict` for the prediction of a law."""

    params: Annotated[
        float | None,
        quantity(
            "N",
            "--params",
            help="Parameters, as the law counts them: 1.3B, 1.3e9.  [default: from --csv]",
        ),
    ] = None
    tokens: Annotated[
        float | None,
        quantity(
            "D", "--tokens", help="Tokens trained on, repeats included: 26B.  [default: from --csv]"
        ),
    ] = None
    table: Annotated[
        str | None,
        option(
            "FILE",
            "--csv",
            help="Predict each row of this table instead, and print CSV.  [default: none]",
        ),
    ] = None
    epochs: Annotated[
        float | None, option("N", help="How often each token is seen, on average.  [default: 1]")
    ] = None
    unique_tokens: Annotated[
        float | None,
        quantity(
            "U",
            "--unique-tokens",
            help="Unique tokens among them, instead of --epochs.  [default: all]",
        ),
    ] = None


@dataclass(frozen=True)
class CurveOptions:
    """Options of `predict` for the prediction of a learning curve."""

    curves: Annotated[
        list[str] | None,
        option(
            "RUN|CSV",
            help="Further run of the same model and text, whose losses are fitted too; repeatable.",
        ),
    ] = None
    decay: Annotated[
        int | None,
        option(
            "STEPS",
            help="Steps of a decay that begins now.  [default: a quarter of the steps so far]",
            min=1,
        ),
    ] = None
    changes: Annotated[
        list[str] | None,
        option(
            "a.b=value",
            "--set",
            help="Predict a new run, too, with this key of the run file changed: training.steps or "
            "training.schedule; repeatable.",
        ),
    ] = None
    out: Annotated[
        str | None,
        option("FOLDER", help="Folder to write curve.json and its page to.  [default: none]"),
    ] = None


def predict(
    law: Annotated[
        str,
        argument(
            "LAW.json|NAME|RUN|CSV",
            help="Law file of `trainrig fit`, or the name of a published law; or a training run's "
            "folder, or a CSV with columns step, loss and learning_rate.",
        ),
    ],
    *,
    sizes: SizeOptions,
    curve: CurveOptions,
    as_json: Json = False,
) -> None:
    """Predict the loss of N parameters on D tokens by a law, or the end of a run by its curve.

    For a law, give --params and --tokens, or with --csv a CSV or TSV file with a column for each.
    Its rows are printed as CSV, or with --json as a list.

    The interval is that of the law's expected loss under its bootstrap draws, without the noise of
    a single run. Published laws, such as hoffmann and besiroglu, have no draws and so no interval.
    A warning with the factor shows where N or D lie outside of the law's runs.

    A run's folder, or a CSV of its losses, is predicted by the annealing law of its learning curve:
    its end, and the loss after a decay that begins now.
    """
    from trainrig.scaling.regression.curve_prediction import is_curve

    along = is_curve(law)
    if unfit := _list_given(sizes if along else curve):
        kind = "a run or a CSV of losses" if along else "a law"
        raise ConfigError(f"predict: --{unfit[0]} does not go with {kind}; leave it out")
    if along:
        _predict_curve(law, curve, as_json)
        return
    from trainrig.scaling.laws.published_laws import find_law
    from trainrig.scaling.plan.loss_prediction import describe_prediction, predict_loss

    if sizes.table is not None:
        from trainrig.scaling.plan.prediction_table import format_csv, predict_table

        if _list_given(sizes) != ["csv"]:
            raise ConfigError(
                "predict: --csv has the sizes of each row; leave out --params, --tokens, --epochs "
                "and --unique-tokens"
            )
        rows = predict_table(find_law(law), sizes.table)
        as_data = [row.model_dump(mode="json") for row in rows]
        print(json.dumps(as_data) if as_json else format_csv(rows))
        return
    if sizes.params is None or sizes.tokens is None:
        raise ConfigError(
            "predict: give --params and --tokens, or a table of them with --csv FILE; or a run's "
            f"folder, and {law} has no run.toml"
        )
    found = predict_loss(
        find_law(law), sizes.params, sizes.tokens, sizes.epochs, sizes.unique_tokens
    )
    if as_json:
        print(json.dumps(found.model_dump(mode="json")))
        return
    for line in describe_prediction(found):
        print(line)


def _list_given(options: SizeOptions | CurveOptions) -> list[str]:
    """Return the names of the options that were given, as on the command line."""
    names = {"table": "csv", "changes": "set", "unique_tokens": "unique-tokens"}
    return [
        names.get(name, name) for name, value in vars(options).items() if value not in (None, [])
    ]


def _predict_curve(run: str, options: CurveOptions, as_json: bool) -> None:
    from trainrig.scaling.regression.curve_prediction import describe_curve, predict_curve

    answer = predict_curve(run, options.curves or (), options.decay, options.changes or ())
    written: tuple[str, ...] = ()
    if options.out is not None:
        # Imported here because plotting is slow to import, and a prediction alone needs none.
        from trainrig.scaling.plan.curve_page import write_curve

        written = write_curve(answer, options.out)
    if as_json:
        print(json.dumps({**answer.found.model_dump(mode="json"), "written": written}))
        return
    for line in (*describe_curve(answer.found), *(f"wrote {path}" for path in written)):
        print(line)
