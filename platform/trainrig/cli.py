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

from trainrig import config
from trainrig.config import RunFile
from trainrig.errors import ConfigError
from trainrig.job import exit_codes
from trainrig.launch import launch_verbs
from trainrig.launch.cluster_verbs import cluster_app
from trainrig.scaling.fit_verb import fit
from trainrig.scaling.mixture.verb import mixture
from trainrig.scaling.plan_verb import plan
from trainrig.verbs import VERBS

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="Raw web pages to an aligned language model, on an elastic Ray cluster.",
)

RunPath = Annotated[str, typer.Argument(metavar="RUN.toml", help="The run file.")]
Changes = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="a.b=value", help="Change one key of the run file; repeatable."),
]
Json = Annotated[bool, typer.Option("--json", help="Print the result as one JSON object.")]


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and end the process with its exit code."""
    with exit_codes():
        app(args=arguments)


@app.callback(invoke_without_command=True)
def trainrig(
    version: Annotated[bool, typer.Option("--version", help="Versions, for bug reports.")] = False,
    as_json: Json = False,
) -> None:
    """Raw web pages to an aligned language model, on an elastic Ray cluster."""
    if version:
        from trainrig.manifest import environment

        found = {**environment(), "system": platform.platform()}
        print(json.dumps(found) if as_json else "\n".join(f"{k} {v}" for k, v in found.items()))
        raise typer.Exit


@app.command()
def quickstart(
    out: Annotated[str, typer.Option(help="Folder for everything it makes.")] = "quickstart",
    workers: Annotated[int, typer.Option(min=1, help="Processes to work with.")] = 2,
    with_sweep: Annotated[
        bool, typer.Option("--sweep", help="Then a scaling law and a plan: two minutes more.")
    ] = False,
    as_json: Json = False,
) -> None:
    """The whole path on this machine, from pages made of the local Python installation."""
    from trainrig.quickstart.path import Quickstart, walk
    from trainrig.terminal import Terminal

    terminal = Terminal()
    terminal.listen()
    with terminal.only_results_on_stdout():
        summary = walk(Quickstart(out=out, workers=workers, sweep=with_sweep), terminal)
    if as_json:
        print(json.dumps(summary))


@app.command()
def check(
    run_file: RunPath,
    changes: Changes = None,
    device: Annotated[str | None, typer.Option(help="Reckon for this; what is here.")] = None,
    mfu: Annotated[float | None, typer.Option(help="Share of its peak; 0.4.")] = None,
    hardware: Annotated[str | None, typer.Option(help="A table of devices of your own.")] = None,
    as_json: Json = False,
) -> None:
    """Validate a run file; print what would run, every default included, and what it takes."""
    model = _model_for(run_file)
    run = config.load(model, run_file, changes or ())
    from trainrig.check import Machine, describe

    facts = describe(run, Machine(device, hardware, mfu))
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
    run: Any = config.load(VERBS[verb].load_model(), run_file, changes or ())
    with terminal.only_results_on_stdout():
        manifest = show(terminal, run, VERBS[verb].load_function())
    if as_json:
        cost = {"seconds": manifest.seconds, **manifest.cost}
        print(json.dumps({"output": run.output, **manifest.counts, "cost": cost}))


@app.command()
def curate(run_file: RunPath, changes: Changes = None, as_json: Json = False) -> None:
    """Pages to documents: extract, mask personal data, measure, judge, deduplicate."""
    _do("curate", run_file, changes, as_json)


@app.command()
def classifier(run_file: RunPath, changes: Changes = None, as_json: Json = False) -> None:
    """A classifier of texts, from ones that are wanted and ones that are not; a scorer's model."""
    _do("classifier", run_file, changes, as_json)


@app.command()
def ngrams(run_file: RunPath, changes: Changes = None, as_json: Json = False) -> None:
    """An n-gram language model, for the perplexity of documents; a scorer's model."""
    _do("ngrams", run_file, changes, as_json)


@app.command()
def tokenizer(run_file: RunPath, changes: Changes = None, as_json: Json = False) -> None:
    """A tokenizer, trained on a sample of curated documents."""
    _do("tokenizer", run_file, changes, as_json)


@app.command()
def tokenize(run_file: RunPath, changes: Changes = None, as_json: Json = False) -> None:
    """Curated documents to token shards, some of them held out."""
    _do("tokenize", run_file, changes, as_json)


@app.command()
def pretrain(run_file: RunPath, changes: Changes = None, as_json: Json = False) -> None:
    """Train a fresh model on token shards; the same command goes on after a stop."""
    _do("pretrain", run_file, changes, as_json)


@app.command()
def posttrain(run_file: RunPath, changes: Changes = None, as_json: Json = False) -> None:
    """Fine-tune a checkpoint on conversations."""
    _do("posttrain", run_file, changes, as_json)


@app.command()
def evaluate(run_file: RunPath, changes: Changes = None, as_json: Json = False) -> None:
    """Loss, perplexity and bits per byte of a checkpoint, by source."""
    _do("evaluate", run_file, changes, as_json)


@app.command()
def sweep(run_file: RunPath, changes: Changes = None, as_json: Json = False) -> None:
    """Train many small models, for scaling laws; the same command goes on after a stop."""
    _do("sweep", run_file, changes, as_json)


@app.command()
def schema(verb: Annotated[str, typer.Argument(help="A verb that takes a run file.")]) -> None:
    """Print the JSON schema of a verb's run file, for editors."""
    if verb not in VERBS:
        raise ConfigError(f"schema: no run file for '{verb}'{config.did_you_mean(verb, VERBS)}")
    print(json.dumps(VERBS[verb].load_model().model_json_schema(), indent=1))


Checkpoint = Annotated[
    str, typer.Argument(metavar="CKPT", help="A run folder, or one checkpoint in it.")
]


@app.command()
def generate(
    checkpoint: Checkpoint,
    prompt: Annotated[str, typer.Option(help="The text to go on from.")],
    chat: Annotated[bool, typer.Option(help="Put the prompt as a question in a chat.")] = False,
    tokens: Annotated[int, typer.Option(min=1, help="New tokens, at most.")] = 64,
    temperature: Annotated[float, typer.Option(min=0, help="0: always the likeliest.")] = 0.8,
    top_k: Annotated[int, typer.Option(min=1, help="Draw among this many likeliest.")] = 50,
    seed: Annotated[int, typer.Option(min=0, help="The same seed draws the same text.")] = 0,
    as_json: Json = False,
) -> None:
    """Let a checkpoint go on from a prompt."""
    from trainrig.models.generate import Sampling
    from trainrig.posttrain.speak import Speaker

    sampling = Sampling(temperature=temperature, top_k=top_k, seed=seed, maximum_tokens=tokens)
    spoken = Speaker.open(checkpoint).speak(prompt, sampling, chat=chat)
    if as_json:
        print(json.dumps({"prompt": prompt, "text": spoken.text, "stopped": spoken.stopped}))
    else:
        print(spoken.text)


Borders = Annotated[bool, typer.Option("--borders", help="Show where each token ends.")]


@app.command()
def trace(
    run: Annotated[str, typer.Argument(metavar="RUN", help="A run file, or a run folder.")],
    step: Annotated[int, typer.Option(help="The update, from 1, as in metrics.")],
    source: Annotated[str | None, typer.Option(help="Sequences of this source alone.")] = None,
    tokens: Annotated[int, typer.Option(min=1, help="Shown of each end of a document.")] = 60,
    borders: Borders = False,
    as_json: Json = False,
) -> None:
    """The documents, URLs, sources and text that one step of a run was made of."""
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


@app.command()
def report(
    run: Annotated[str, typer.Argument(metavar="RUN", help="The folder of a training run.")],
    as_json: Json = False,
) -> None:
    """Draw report.html of a run: losses, speed, faults, where the time went; also under way."""
    from trainrig.train.run_page import write_report

    path = write_report(run.rstrip("/"))
    print(json.dumps({"report": path}) if as_json else path)


app.command()(fit)
app.command()(mixture)
app.command()(plan)
app.command()(launch_verbs.submit)
app.command()(launch_verbs.jobs)
app.command()(launch_verbs.logs)
app.command()(launch_verbs.stop)
app.add_typer(cluster_app, name="cluster")
tokens_app = typer.Typer(no_args_is_help=True, help="Look into token shards.")
app.add_typer(tokens_app, name="tokens")


@tokens_app.command()
def inspect(
    shards: Annotated[str, typer.Argument(metavar="SHARDS", help="What `tokenize` wrote.")],
    source: Annotated[list[str] | None, typer.Option(help="Of this alone; repeatable.")] = None,
    documents: Annotated[int, typer.Option(min=0, help="Decoded, of each source.")] = 2,
    rows: Annotated[int, typer.Option(min=0, help="Rows with boundaries and masks.")] = 1,
    sequence_length: Annotated[int, typer.Option(min=1, help="Of those rows.")] = 256,
    packing: Annotated[str, typer.Option(help="Concatenate or BestFit.")] = "Concatenate",
    shuffled: Annotated[bool, typer.Option("--shuffled", help="By the shuffle plan.")] = False,
    seed: Annotated[int, typer.Option(min=0, help="Of what is drawn.")] = 0,
    borders: Borders = False,
    verify: Annotated[bool, typer.Option("--verify", help="Read all, compare sums.")] = False,
    as_json: Json = False,
) -> None:
    """Counts by source, lengths, decoded samples, and rows with their boundaries and masks."""
    from rich.console import Console

    from trainrig.tokens.inspection import Inspection, View, packing_of

    view = View(documents, rows, sequence_length, packing_of(packing, shuffled), seed, borders)
    inspected = Inspection.open(shards, verify)
    if as_json:
        print(json.dumps(inspected.as_json(view, source or ())))
        return
    console = Console(highlight=False, soft_wrap=True)
    for text in inspected.texts(view, source or ()):
        console.print(text)


@app.command()
def export(
    checkpoint: Checkpoint,
    out: Annotated[str, typer.Argument(metavar="OUT", help="The folder to write.")],
    dtype: Annotated[str, typer.Option(help="float32, bfloat16 or float16.")] = "float32",
    as_json: Json = False,
) -> None:
    """Write a checkpoint as a Hugging Face folder that Transformers loads as it is."""
    from trainrig.models.hf import HubFolder
    from trainrig.posttrain.exchange import export_checkpoint

    settings = config.build(HubFolder, {"dtype": dtype}, "export --dtype")
    facts = export_checkpoint(checkpoint, out, settings)
    print(json.dumps(facts) if as_json else f"{out}: step {facts['step']} of {facts['checkpoint']}")


@app.command("import")
def import_folder(
    folder: Annotated[str, typer.Argument(metavar="HF_DIR", help="A Hugging Face Llama folder.")],
    out: Annotated[str, typer.Argument(metavar="OUT", help="The run folder to write.")],
    as_json: Json = False,
) -> None:
    """Read a Hugging Face Llama folder into a checkpoint to train on or evaluate."""
    from trainrig.posttrain.exchange import import_checkpoint

    facts = import_checkpoint(folder, out)
    print(json.dumps(facts) if as_json else f"{out}: {facts['parameters']:,} parameters")
