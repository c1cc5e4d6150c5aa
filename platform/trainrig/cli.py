"""The command line: one verb for each arrow of the data path.

Results go to stdout, talk to stderr. Exit codes: 0 done, 1 failed, 2 your input, 75 ended whole but
unfinished (run it again), 130 after Ctrl-C. Verbs import what they need when they run, so that
`trainrig --help` does not wait for torch.
"""

import json
import platform
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from trainrig import config, job
from trainrig.command_line import completion
from trainrig.command_line.help import (
    CLUSTERS,
    CONTEXT,
    DATA,
    MODELS,
    SCALING,
    START,
    HelpGroup,
    command,
)
from trainrig.command_line.options import (
    Borders,
    Changes,
    Checkpoint,
    Device,
    HardwareTable,
    Json,
    RunPath,
    Utilisation,
    Verb,
)
from trainrig.config import RunFile
from trainrig.errors import ConfigError
from trainrig.job import exit_codes
from trainrig.launch import launch_verbs
from trainrig.launch.cluster_verbs import cluster_app
from trainrig.scaling.laws.fit_options import fit
from trainrig.scaling.mixture.verb import mixture
from trainrig.scaling.plan.plan_options import plan
from trainrig.scaling.plan.predict_options import predict
from trainrig.tokens.tokens_verbs import tokens_app
from trainrig.verbs import VERBS

RUNS = "trainrig {0} jobs/configs/{1}/{0}.toml"
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
    with exit_codes():
        app(args=arguments)


@app.callback(invoke_without_command=True)
def trainrig(
    version: Annotated[
        bool, typer.Option("--version", help="Print versions, for bug reports.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Take raw web pages to an aligned language model, on an elastic Ray cluster."""
    if version:
        from trainrig.manifest import environment

        found = {**environment(), "system": platform.platform()}
        print(json.dumps(found) if as_json else "\n".join(f"{k} {v}" for k, v in found.items()))
        raise typer.Exit


@command(app, START, "trainrig quickstart --out quickstart")
def quickstart(
    out: Annotated[
        str, typer.Option(metavar="FOLDER", help="Folder for everything that it makes.")
    ] = "quickstart",
    workers: Annotated[
        int, typer.Option(metavar="N", min=1, help="Worker processes of each stage.")
    ] = 2,
    with_sweep: Annotated[
        bool, typer.Option("--sweep", help="Also fit a scaling law and a plan: 2 minutes more.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Walk the whole path on this machine, from pages made of the local Python documentation.

    Takes about 5 minutes on 2 cores, needs no network, and ends with a report of every stage.
    """
    from trainrig.quickstart.path import Quickstart, walk
    from trainrig.terminal import Terminal

    terminal = Terminal()
    terminal.listen()
    with terminal.only_results_on_stdout(), job.if_stopped(job.GOES_ON):
        summary = walk(Quickstart(out=out, workers=workers, sweep=with_sweep), terminal)
    if as_json:
        print(json.dumps(summary))


@command(app, START, "trainrig check jobs/configs/quickstart/pretrain.toml --device h100")
def check(
    run_file: RunPath,
    changes: Changes = None,
    device: Device = None,
    mfu: Utilisation = None,
    hardware: HardwareTable = None,
    as_json: Json = False,
) -> None:
    """Validate a run file and print every setting and what the run would take.

    Defaults are marked as such. For training: parameters, FLOPs, memory, time and cost.
    """
    model = _model_for(run_file)
    run = config.load(model, run_file, changes or ())
    from trainrig.check import DeviceChoice, describe

    facts = describe(run, DeviceChoice(device, hardware, mfu))
    if as_json:
        print(json.dumps({"run": run.model_dump(mode="json"), **facts}))
        return
    print(config.to_toml(run), end="")
    for name, value in facts.items():
        print(f"# {name}: {_shown(value)}")


def _shown(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:,.4g}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def _model_for(run_file: str) -> type[RunFile]:
    """The model that the file's `stage` asks for."""
    stage = config.parse(config.read_text(run_file), run_file).get("stage")
    if stage not in VERBS:
        found = "`stage` is missing" if stage is None else f"no stage {stage!r}"
        hint = config.did_you_mean(str(stage or ""), VERBS)
        raise ConfigError(f"{run_file}: {found}{hint}")
    return VERBS[stage].load_model()


def _do(verb: str, run_file: str, changes: Sequence[str] | None, as_json: bool) -> None:
    from trainrig.terminal import Terminal, show

    terminal = Terminal()
    terminal.listen()
    run: Any = job.load(VERBS[verb].load_model(), run_file, changes or ())
    with terminal.only_results_on_stdout(), job.if_stopped(job.what_next(run)):
        manifest = show(terminal, run, VERBS[verb].load_function())
    if as_json:
        cost = {"seconds": manifest.seconds, **manifest.cost}
        print(json.dumps({"output": run.output, **manifest.counts, "cost": cost}))


@command(app, DATA, RUNS.format("curate", "quickstart"))
def curate(run_file: RunPath, changes: Changes = None, as_json: Json = False) -> None:
    """Turn web pages into documents: extract, mask personal data, filter and deduplicate."""
    _do("curate", run_file, changes, as_json)


@command(app, DATA, RUNS.format("classifier", "crawl"))
def classifier(run_file: RunPath, changes: Changes = None, as_json: Json = False) -> None:
    """Train a text classifier on wanted and unwanted texts, for `curate` to score by."""
    _do("classifier", run_file, changes, as_json)


@command(app, DATA, RUNS.format("ngrams", "crawl"))
def ngrams(run_file: RunPath, changes: Changes = None, as_json: Json = False) -> None:
    """Train an n-gram language model, for `curate` to compute perplexities by."""
    _do("ngrams", run_file, changes, as_json)


@command(app, DATA, RUNS.format("tokenizer", "quickstart"))
def tokenizer(run_file: RunPath, changes: Changes = None, as_json: Json = False) -> None:
    """Train a tokenizer on a sample of documents."""
    _do("tokenizer", run_file, changes, as_json)


@command(app, DATA, RUNS.format("tokenize", "quickstart"))
def tokenize(run_file: RunPath, changes: Changes = None, as_json: Json = False) -> None:
    """Encode documents into token shards, holding some of them out for evaluation."""
    _do("tokenize", run_file, changes, as_json)


@command(app, MODELS, RUNS.format("pretrain", "quickstart"))
def pretrain(run_file: RunPath, changes: Changes = None, as_json: Json = False) -> None:
    """Train a model on token shards; run it again to continue after a stop."""
    _do("pretrain", run_file, changes, as_json)


@command(app, MODELS, RUNS.format("posttrain", "quickstart"))
def posttrain(run_file: RunPath, changes: Changes = None, as_json: Json = False) -> None:
    """Fine-tune a checkpoint on conversations; run it again to continue after a stop."""
    _do("posttrain", run_file, changes, as_json)


@command(app, MODELS, RUNS.format("evaluate", "quickstart"))
def evaluate(run_file: RunPath, changes: Changes = None, as_json: Json = False) -> None:
    """Measure the loss, perplexity and bits per byte of a checkpoint, by source."""
    _do("evaluate", run_file, changes, as_json)


@command(app, SCALING, RUNS.format("sweep", "quickstart"))
def sweep(run_file: RunPath, changes: Changes = None, as_json: Json = False) -> None:
    """Train many small models to fit scaling laws to; run it again to continue after a stop."""
    _do("sweep", run_file, changes, as_json)


@command(app, START, "trainrig schema pretrain > pretrain.schema.json")
def schema(verb: Verb) -> None:
    """Print the JSON schema of a command's run file, for editors to complete keys by."""
    from trainrig.config.run_file_schema import json_schema

    if verb not in VERBS:
        raise ConfigError(f"schema: no run file for '{verb}'{config.did_you_mean(verb, VERBS)}")
    print(json.dumps(json_schema(VERBS[verb].load_model()), indent=1))


@command(
    app, MODELS, "trainrig generate quickstart/tuned --chat --prompt 'What does json.dumps do?'"
)
def generate(
    checkpoint: Checkpoint,
    prompt: Annotated[str, typer.Option(metavar="TEXT", help="Text to continue, or to answer.")],
    chat: Annotated[
        bool, typer.Option("--chat", help="Answer the prompt as a chat assistant would.")
    ] = False,
    tokens: Annotated[int, typer.Option(metavar="N", min=1, help="Most tokens to generate.")] = 64,
    temperature: Annotated[
        float,
        typer.Option(metavar="T", min=0, help="Randomness; 0 always takes the likeliest token."),
    ] = 0.8,
    top_k: Annotated[
        int, typer.Option(metavar="N", min=1, help="Draw among the N likeliest tokens.")
    ] = 50,
    seed: Annotated[
        int, typer.Option(metavar="N", min=0, help="Random seed; the same one gives the same text.")
    ] = 0,
    as_json: Json = False,
) -> None:
    """Generate text with a checkpoint, from a prompt."""
    from trainrig.models.generate import Sampling
    from trainrig.posttrain.text_generator import TextGenerator

    sampling = Sampling(temperature=temperature, top_k=top_k, seed=seed, maximum_tokens=tokens)
    generator = TextGenerator.open(checkpoint)
    if chat and generator.tuned is False:
        said = "not tuned on conversations, so expect no answer; `trainrig posttrain` tunes it"
        typer.echo(f"trainrig: {checkpoint}: {said}", err=True)
    spoken = generator.speak(prompt, sampling, chat=chat)
    if as_json:
        print(json.dumps({"prompt": prompt, "text": spoken.text, "stopped": spoken.stopped}))
    else:
        print(spoken.text)


@command(app, MODELS, "trainrig trace quickstart/model --step 150")
def trace(
    run: Annotated[
        str,
        typer.Argument(
            metavar="RUN",
            help="Run folder, or the run file of one.",
            autocompletion=completion.run_files,
        ),
    ],
    step: Annotated[
        int, typer.Option(metavar="N", help="Step to trace, counted from 1 as in metrics.jsonl.")
    ],
    source: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Show only sequences of this source.  [default: all]"),
    ] = None,
    tokens: Annotated[
        int,
        typer.Option(metavar="N", min=1, help="Tokens to show of each end of a document."),
    ] = 60,
    borders: Borders = False,
    as_json: Json = False,
) -> None:
    """Show the documents, URLs and text that one training step learned from."""
    from rich.console import Console

    from trainrig.trace import trace as trace_step

    traced = trace_step(run, step, source)
    if as_json:
        print(json.dumps(traced.as_json()))
        return
    console = Console(highlight=False, soft_wrap=True)
    for text in traced.texts(tokens, borders):
        console.print(text)
    console.print(traced.verdict)


@command(app, MODELS, "trainrig report quickstart/model")
def report(
    run: Annotated[str, typer.Argument(metavar="RUN", help="Folder of a training run.")],
    as_json: Json = False,
) -> None:
    """Write report.html of a training run: losses, speed, faults and where the time went.

    Also works while the run is under way.
    """
    from trainrig.train.run.run_page import write_report

    path = write_report(run.rstrip("/"))
    print(json.dumps({"report": path}) if as_json else path)


command(app, SCALING, "trainrig fit runs/sweep --out laws/web")(fit)
command(app, SCALING, "trainrig plan hoffmann --budget-usd 10000 --device h100")(plan)
command(app, SCALING, "trainrig predict laws/web/law.json --params 1.3B --tokens 26B")(predict)
command(app, SCALING, "trainrig mixture shares.csv losses.csv --out mix")(mixture)
SUBMIT = "trainrig submit pretrain run.toml --address http://127.0.0.1:8265 --max-cost 500"
command(app, CLUSTERS, SUBMIT)(launch_verbs.submit)
command(app, CLUSTERS, "trainrig jobs --home s3://bucket/home")(launch_verbs.jobs)
command(app, CLUSTERS, "trainrig logs pretrain-model-1f6a13 --follow")(launch_verbs.logs)
command(app, CLUSTERS, "trainrig stop pretrain-model-1f6a13")(launch_verbs.stop)
app.add_typer(cluster_app, name="cluster", rich_help_panel=CLUSTERS)
app.add_typer(tokens_app, name="tokens", rich_help_panel=DATA)


@command(app, MODELS, "trainrig export quickstart/tuned llama-folder --dtype bfloat16")
def export(
    checkpoint: Checkpoint,
    out: Annotated[str, typer.Argument(metavar="OUT", help="Folder to write; must be new.")],
    dtype: Annotated[
        str,
        typer.Option(
            metavar="DTYPE",
            help="Number format of the weights: float32, bfloat16 or float16.",
            autocompletion=completion.words("float32", "bfloat16", "float16"),
        ),
    ] = "float32",
    as_json: Json = False,
) -> None:
    """Export a checkpoint as a Hugging Face folder that Transformers can load."""
    from trainrig.models.hf import HubFolder
    from trainrig.posttrain.huggingface import export_checkpoint

    settings = config.build(HubFolder, {"dtype": dtype}, "export --dtype")
    facts = export_checkpoint(checkpoint, out, settings)
    print(json.dumps(facts) if as_json else f"{out}: step {facts['step']} of {facts['checkpoint']}")


@command(app, MODELS, "trainrig import llama-folder runs/imported", name="import")
def import_folder(
    folder: Annotated[
        str, typer.Argument(metavar="HF_DIR", help="Hugging Face folder of a Llama model.")
    ],
    out: Annotated[str, typer.Argument(metavar="OUT", help="Run folder to write; must be new.")],
    as_json: Json = False,
) -> None:
    """Import a Hugging Face Llama folder as a checkpoint to train, evaluate or fine-tune."""
    from trainrig.posttrain.huggingface import import_checkpoint

    facts = import_checkpoint(folder, out)
    print(json.dumps(facts) if as_json else f"{out}: {facts['parameters']:,} parameters")
