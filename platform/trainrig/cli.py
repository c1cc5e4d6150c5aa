"""The command line, with one verb for each stage of the data path.

Results are printed to stdout, progress and messages to stderr. Exit codes: 0 done, 1 failed, 2
invalid input, 75 stopped cleanly but unfinished (run the command again), 130 after Ctrl-C. Verbs
import their dependencies when they run, so that `trainrig --help` does not wait for torch.
"""

import json
import os
import platform
import sys
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from trainrig import config, job, storage
from trainrig.attribution import attribution_verbs
from trainrig.attribution.forgetting.forget_verbs import forget
from trainrig.attribution.lineage_verb import lineage
from trainrig.command_line import (
    CLUSTERS,
    CONTEXT,
    DATA,
    MODELS,
    SCALING,
    SECTION_OF,
    START,
    Changes,
    Device,
    HardwareTable,
    HelpGroup,
    Json,
    LogLevel,
    Notify,
    RunPath,
    Utilisation,
    Verb,
    argument,
    command,
    flag,
    option,
)
from trainrig.config import RunFile
from trainrig.errors import ConfigError
from trainrig.evaluate import evaluation_verbs
from trainrig.job import exit_codes
from trainrig.launch import launch_verbs
from trainrig.launch.cluster_verbs import cluster_app
from trainrig.posttrain.generate_verbs import generate
from trainrig.posttrain.huggingface.huggingface_verbs import export, import_folder
from trainrig.projects import project_verbs
from trainrig.runs import run_verbs
from trainrig.scaling.fit.fit_options import fit
from trainrig.scaling.mixture.mixture_verb import build_mixture_command, print_result
from trainrig.scaling.plan.plan_options import plan, predict
from trainrig.tokens.tokens_verbs import tokens_app
from trainrig.verbs import VERBS, suggest_verb
from trainrig.verbs import Verb as VerbEntry

RUNS = "trainrig {0} jobs/configs/{1}/{0}.toml"
TRAIN = {"pretrain", "posttrain", "rl"}  # verbs with alarms, which `--notify` forwards
app = typer.Typer(
    cls=HelpGroup,
    context_settings=CONTEXT,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="Take raw web pages to an aligned language model, on an elastic Ray cluster.",
)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and end the process with its exit code."""
    given = sys.argv[1:] if arguments is None else arguments
    with exit_codes():
        app(args=[storage.resolve(argument) for argument in given])


@app.callback(invoke_without_command=True)
def trainrig(
    version: Annotated[bool, flag("--version", help="Print versions, for bug reports.")] = False,
    log_level: LogLevel = None,
    as_json: Json = False,
) -> None:
    """Take raw web pages to an aligned language model, on an elastic Ray cluster."""
    if log_level is not None:  # processes that this one starts inherit the variable
        os.environ[job.LOG_LEVEL] = log_level
    if os.environ.get(job.LOG_LEVEL):
        job.set_log_level()
    if version:
        from trainrig.manifest import collect_environment

        found = {**collect_environment(), "system": platform.platform()}
        print(json.dumps(found) if as_json else "\n".join(f"{k} {v}" for k, v in found.items()))
        raise typer.Exit


@command(app, START, "trainrig quickstart --out quickstart")
def quickstart(
    out: Annotated[
        str, option("FOLDER", help="Folder for all outputs.", envvar="TRAINRIG_QUICKSTART")
    ] = "quickstart",
    workers: Annotated[
        int, option("N", help="Number of worker processes of each stage.", min=1)
    ] = 2,
    with_sweep: Annotated[
        bool, flag("--sweep", help="Also fit a scaling law and make a plan, in 2 more minutes.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Walk the whole path on this machine, from pages made of the local Python documentation.

    Takes about 5 minutes on 2 cores, needs no network, and ends with a report of every stage.
    """
    from trainrig.quickstart.quickstart_stages import Quickstart, walk
    from trainrig.terminal import Terminal

    terminal = Terminal()
    terminal.listen()
    with terminal.only_results_on_stdout(), job.if_stopped(job.GOES_ON):
        summary = walk(Quickstart(out=out, workers=workers, sweep=with_sweep), terminal)
    if as_json:
        print(json.dumps(summary))


INIT = "trainrig init tune my-model --data notes.jsonl --data chats.jsonl"
command(app, START, INIT)(project_verbs.init)


@command(app, START, "trainrig run my-model")
def run(folder: project_verbs.ProjectFolder, as_json: Json = False) -> None:
    """Run the stages of a project in order; run it again to continue after a stop.

    The stages are the `trainrig` lines of the project's run.sh. A finished stage does nothing. The
    exit code is that of the stage that failed or stopped.
    """
    project_verbs.run_project(
        folder, lambda words: app(args=list(words), standalone_mode=False), as_json
    )


@command(app, START, "trainrig check jobs/configs/quickstart/pretrain.toml --device h100")
def check(
    run_file: RunPath,
    changes: Changes = None,
    changed: Annotated[
        bool, flag("--changed", help="Print only settings that are not the default.")
    ] = False,
    device: Device = None,
    mfu: Utilisation = None,
    hardware: HardwareTable = None,
    preset: Annotated[
        str | None,
        option(
            "PRESET",
            "--preset",
            help="Model of `posttrain` to estimate for while its checkpoint does not exist, such "
            "as llama-3.1-8b.  [default: none]",
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Validate a run file and print every setting and what the run would take.

    Defaults are marked as such, or left out with --changed. For training: parameters and memory;
    for `pretrain` and `posttrain` also FLOPs, time and cost. Inputs that do not exist, patterns
    that match no file, and packages that are not installed are listed as problems.
    """
    model = _load_model(run_file)
    run = config.load(model, run_file, changes or ())
    from trainrig.check import describe
    from trainrig.estimate.cost_estimate import DeviceChoice
    from trainrig.launch.submit.run_paths import find_input_problems

    facts = describe(run, DeviceChoice(device, hardware, mfu), preset)
    problems = list(find_input_problems(run))
    if as_json:
        print(json.dumps({"run": run.model_dump(mode="json"), **facts, "problems": problems}))
        return
    print(config.to_toml(run, changed), end="")
    for name, value in facts.items():
        print(f"# {name}: {_format_figure(name, value)}")
    for problem in problems:
        print(f"# problem: {problem}")


@command(app, START, "trainrig doctor", "trainrig doctor --bucket s3://bucket/runs")
def doctor(
    bucket: Annotated[
        list[str] | None,
        option("URL", help="Bucket or folder to write, read and delete a file in; repeatable."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Check this machine: Python, torch, GPUs, Ray, disks, memory, limits and buckets.

    Prints what is fine, what is wrong, and what to do about it. The exit code is 1 if there is a
    problem; warnings are none. Starts no Ray, and imports torch only where there are GPUs.
    """
    from trainrig.doctor.diagnosis import count_severity, format_table, to_json
    from trainrig.doctor.examination import examine

    diagnoses = examine(bucket or ())
    print(json.dumps(to_json(diagnoses)) if as_json else format_table(diagnoses))
    if count_severity(diagnoses, "problem"):
        raise typer.Exit(1)


def _format_figure(name: str, value: Any) -> str:
    """Format a fact as plans and pages do: money to the cent, large counts also as `427M`."""
    from trainrig.report.number_formats import format_short
    from trainrig.scaling.laws.law_formats import format_usd

    if name == "usd":
        return format_usd(value)
    if isinstance(value, float):
        return f"{value:,.4g}"
    if isinstance(value, int):
        return f"{value:,} ({format_short(value)})" if value >= 1e6 else f"{value:,}"
    return str(value)


def _load_model(run_file: str) -> type[RunFile]:
    """Return the run-file model of the verb that the file's `stage` names."""
    stage = config.parse(config.read_text(run_file), run_file).get("stage")
    if stage == "plan":
        raise ConfigError(f"{run_file}: a run file of `plan`; run `trainrig plan {run_file}`")
    if stage not in VERBS:
        found = "`stage` is missing" if stage is None else f"no stage {stage!r}"
        hint = suggest_verb(str(stage or ""))
        raise ConfigError(f"{run_file}: {found}{hint}")
    return VERBS[stage].load_model()


def _do(
    verb: str,
    run_file: str,
    changes: Sequence[str] | None,
    as_json: bool,
    notify: str | None = None,
) -> str:
    """Run the stage of a run file, print its manifest if it is wanted, and return its output."""
    from trainrig.terminal import Terminal, show
    from trainrig.train.run.alarms import notify_to

    notify_to.set(notify)

    terminal = Terminal()
    terminal.listen()
    run = job.load(VERBS[verb].load_model(), run_file, changes or ())
    with terminal.only_results_on_stdout(), job.if_stopped(job.describe_restart(run)):
        manifest = show(terminal, run, VERBS[verb].load_function())
    if as_json:
        print(json.dumps(manifest.to_figures(run.output)))
    return run.output


def _add(name: str, verb: VerbEntry) -> None:
    """Add the command of a verb that takes a run file."""

    def do(
        run_file: RunPath,
        changes: Changes = None,
        as_json: Json = False,
    ) -> None:
        _do(name, run_file, changes, as_json)

    def train(
        run_file: RunPath,
        changes: Changes = None,
        as_json: Json = False,
        notify: Notify = None,
    ) -> None:
        _do(name, run_file, changes, as_json, notify)

    act = train if name in TRAIN else do
    act.__doc__ = verb.summary
    command(app, SECTION_OF[verb.section], RUNS.format(name, verb.example), name=name)(act)


for _name, _verb in VERBS.items():
    if _name != "mixture":  # takes tables, too
        _add(_name, _verb)


@command(app, START, "trainrig schema pretrain > pretrain.schema.json")
def schema(verb: Verb) -> None:
    """Print the JSON schema of a command's run file, for editors to complete keys by."""
    from trainrig.config.run_file_schema import build_json_schema

    if verb == "plan":  # this command has a run file, but is no stage
        from trainrig.scaling.plan.plan_run_file import PlanFile

        print(json.dumps(build_json_schema(PlanFile), indent=1))
        return
    if verb not in VERBS:
        raise ConfigError(f"schema: no run file for '{verb}'{suggest_verb(verb)}")
    print(json.dumps(build_json_schema(VERBS[verb].load_model()), indent=1))


GENERATE = "trainrig generate quickstart/tuned --chat --prompt 'What does json.dumps do?'"
command(app, MODELS, GENERATE)(generate)
command(
    app,
    MODELS,
    "trainrig chat quickstart/tuned",
    "trainrig chat quickstart/tuned --sources quickstart/index",
)(attribution_verbs.chat)
command(
    app,
    MODELS,
    "trainrig attribute quickstart/tuned --index quickstart/index "
    "--prompt 'What does json.dumps do?' --chat --minimum 4",
)(attribution_verbs.attribute)
command(
    app,
    MODELS,
    "trainrig memorisation --index quickstart/index "
    "--generations quickstart/pages/instructions-held-out.jsonl --tokens 8",
)(attribution_verbs.memorisation)
command(app, MODELS, "trainrig lineage quickstart/aligned")(lineage)
command(
    app,
    MODELS,
    "trainrig forget quickstart/model --urls pages.txt --plan",
    "trainrig forget quickstart/model --urls pages.txt --out quickstart/forgotten",
    "trainrig forget quickstart/forgotten --check",
)(forget)


@command(app, MODELS, "trainrig report quickstart/model")
def report(
    run: Annotated[
        list[str], argument("RUN", help="Folder of a training run; give several with --html.")
    ],
    html: Annotated[
        str | None,
        option("FILE", help="File for a page that compares several runs. [default: none]"),
    ] = None,
    as_json: Json = False,
) -> None:
    """Write report.html of a training run: losses, speed, faults and where the time went.

    Of several runs, with --html: their curves laid over each other. Also works while a run is
    under way.
    """
    if (len(run) > 1) != (html is not None):
        raise ConfigError("name one run, or give several runs and --html with the page to write")
    if html is not None:
        from trainrig.runs.overlay import write_overlay

        path = write_overlay(run, html)
    else:
        from trainrig.train.run_report.run_page import write_report

        path = write_report(run[0].rstrip("/"))
    print(json.dumps({"report": path}) if as_json else path)


command(app, MODELS, "trainrig trace quickstart/model --step 150 --rules")(run_verbs.trace)
command(app, MODELS, "trainrig watch quickstart/model")(run_verbs.watch)
command(app, MODELS, "trainrig runs quickstart")(run_verbs.runs)
command(app, MODELS, "trainrig average quickstart/model averaged --last 2")(run_verbs.average)
command(app, MODELS, "trainrig compare scores/base scores/tuned --html compare.html")(
    evaluation_verbs.compare
)
command(app, MODELS, "trainrig leaderboard scores")(evaluation_verbs.leaderboard)
command(
    app,
    MODELS,
    "trainrig lm-eval --model trainrig --model_args checkpoint=runs/base --tasks arc_easy",
    name="lm-eval",
    passes_on=True,
)(evaluation_verbs.lm_eval)
command(app, SCALING, "trainrig fit runs/sweep --out laws/web")(fit)
command(app, SCALING, "trainrig plan hoffmann --budget-usd 10000 --device h100")(plan)
command(app, SCALING, "trainrig predict laws/web/law.json --params 1.3B --tokens 26B")(predict)


def _find_mixture(run_file: str, changes: Sequence[str] | None, as_json: bool) -> None:
    output = _do("mixture", run_file, changes, as_json)
    if not as_json:
        print_result(output)


command(
    app,
    SCALING,
    RUNS.format("mixture", "mixture"),
    "trainrig mixture shares.csv losses.csv --out mix",
)(build_mixture_command(_find_mixture))
SUBMIT = "trainrig submit pretrain run.toml --address http://127.0.0.1:8265 --max-cost 500"
command(app, CLUSTERS, SUBMIT)(launch_verbs.submit)
command(app, CLUSTERS, "trainrig jobs --home s3://bucket/home")(launch_verbs.jobs)
command(app, CLUSTERS, "trainrig logs pretrain-model-1f6a13 --follow")(launch_verbs.logs)
command(app, CLUSTERS, "trainrig stop pretrain-model-1f6a13")(launch_verbs.stop)
app.add_typer(cluster_app, name="cluster", rich_help_panel=CLUSTERS)
app.add_typer(tokens_app, name="tokens", rich_help_panel=DATA)
command(app, MODELS, "trainrig export runs/tuned hf-folder --dtype bfloat16")(export)
command(app, MODELS, "trainrig import hf-folder runs/imported", name="import")(import_folder)
