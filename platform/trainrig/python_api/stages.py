"""The stages as functions: each runs as its command does, and returns what its folder holds.

Each function takes a run file, as a path or as the model of the run file, or the keys of the run
file as keyword arguments. `docs/run-files.md` describes the keys. Tables are dictionaries, arrays
are lists or tuples, and a path may also be a `pathlib.Path` or the output of an earlier stage.

A stage that is finished returns at once, and one that was stopped resumes. A mistake in the run
file or in an input raises `ConfigError` or `DataError` with the message that the command prints.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trainrig import config, job, storage
from trainrig.config import RunFile
from trainrig.errors import ConfigError
from trainrig.manifest import Manifest
from trainrig.processes.child_process import ensure_home
from trainrig.python_api.html_tables import render_html_table
from trainrig.terminal import Terminal, show
from trainrig.verbs import VERBS

REPORT = "report.html"

AnyRun = str | os.PathLike[str] | RunFile | None


@dataclass(frozen=True)
class StageOutput:
    """Finished output of a stage: its folder, its counts and its files.

    Pass it where a later stage takes the folder, as in
    `trainrig.tokenize(documents=documents, …)`.
    """

    verb: str  # name of the command
    output: str  # folder that the stage wrote
    manifest: Manifest  # content of `manifest.json`

    @property
    def counts(self) -> dict[str, Any]:
        """The counts of the stage, as in `manifest.json`."""
        return self.manifest.counts

    @property
    def figures(self) -> dict[str, Any]:
        """The folder, the counts and the cost, as the command prints them with `--json`."""
        return self.manifest.to_figures(self.output)

    @property
    def paths(self) -> tuple[str, ...]:
        """Paths of the files that the stage wrote, in alphabetical order."""
        return tuple(self.list_files())

    @property
    def seconds(self) -> float:
        """Duration in seconds of the process that finished the stage."""
        return self.manifest.seconds

    @property
    def report(self) -> str | None:
        """Path of the stage's HTML report, or None if the stage writes none."""
        path = storage.join(self.output, REPORT)
        return path if storage.exists(path) else None

    def list_files(self, ending: str = "") -> list[str]:
        """Return the paths of the stage's files that end with `ending`, in alphabetical order."""
        names = sorted(name for name in self.manifest.files if name.endswith(ending))
        return [storage.join(self.output, name) for name in names]

    def __fspath__(self) -> str:
        return self.output

    def _repr_html_(self) -> str:
        report = {"report": self.report} if self.report else {}
        return render_html_table(f"{self.verb}: {self.output}", {**self.counts, **report})


def curate(
    run: AnyRun = None, /, *, changes: Sequence[str] = (), progress: bool = True, **keys: Any
) -> StageOutput:
    """Turn web pages into documents: extract, mask personal data, filter and deduplicate.

    >>> documents = trainrig.curate(
    ...     sources=[{"name": "web", "paths": ["pages/*.warc.gz"]}], output="documents", workers=2
    ... )
    >>> documents.counts["documents_kept"]
    """
    return _run_stage("curate", run, changes, progress, keys)


def train_tokenizer(
    run: AnyRun = None, /, *, changes: Sequence[str] = (), progress: bool = True, **keys: Any
) -> StageOutput:
    """Train a tokenizer on a sample of documents.

    >>> tokenizer = trainrig.train_tokenizer(
    ...     documents="documents",
    ...     output="tokenizer",
    ...     tokenizer={"kind": "ByteLevelBPE", "vocabulary": 32_000},
    ... )
    """
    return _run_stage("tokenizer", run, changes, progress, keys)


def tokenize(
    run: AnyRun = None, /, *, changes: Sequence[str] = (), progress: bool = True, **keys: Any
) -> StageOutput:
    """Encode documents into token shards, holding some of them out for evaluation.

    >>> tokens = trainrig.tokenize(documents="documents", tokenizer="tokenizer", output="tokens")
    >>> tokens.counts["train_tokens"]
    """
    return _run_stage("tokenize", run, changes, progress, keys)


def encode_conversations(
    run: AnyRun = None, /, *, changes: Sequence[str] = (), progress: bool = True, **keys: Any
) -> StageOutput:
    """Turn conversations, preference pairs, or texts with labels into token shards.

    >>> trainrig.encode_conversations(
    ...     sources=[{"source": "chats", "paths": ["chats.jsonl"]}],
    ...     tokenizer="model",
    ...     output="conversations",
    ... )
    """
    return _run_stage("conversations", run, changes, progress, keys)


def pretrain(
    run: AnyRun = None, /, *, changes: Sequence[str] = (), progress: bool = True, **keys: Any
) -> StageOutput:
    """Train a model on token shards; call it again to continue after a stop.

    >>> trainrig.pretrain("pretrain.toml", changes=["training.steps=1000"])
    """
    return _run_stage("pretrain", run, changes, progress, keys)


def posttrain(
    run: AnyRun = None, /, *, changes: Sequence[str] = (), progress: bool = True, **keys: Any
) -> StageOutput:
    """Fine-tune a checkpoint on conversations; call it again to continue after a stop.

    >>> trainrig.posttrain(
    ...     checkpoint="model",
    ...     conversations="conversations",
    ...     output="tuned",
    ...     training={"steps": 300, "optimizer": {"kind": "AdamW", "lr": 1e-4}},
    ... )
    """
    return _run_stage("posttrain", run, changes, progress, keys)


def rl(
    run: AnyRun = None, /, *, changes: Sequence[str] = (), progress: bool = True, **keys: Any
) -> StageOutput:
    """Train a checkpoint by reinforcement learning; call it again to continue after a stop.

    >>> trainrig.rl("grpo.toml", changes=["workers=8"])
    """
    return _run_stage("rl", run, changes, progress, keys)


def evaluate(
    run: AnyRun = None, /, *, changes: Sequence[str] = (), progress: bool = True, **keys: Any
) -> StageOutput:
    """Score a checkpoint on benchmarks, and on held-out text in bits per byte.

    >>> scores = trainrig.evaluate(checkpoint="model", tokens="tokens", output="scores")
    >>> scores.report
    """
    return _run_stage("evaluate", run, changes, progress, keys)


def sweep(
    run: AnyRun = None, /, *, changes: Sequence[str] = (), progress: bool = True, **keys: Any
) -> StageOutput:
    """Train many small models, to fit scaling laws; call it again to continue after a stop.

    >>> runs = trainrig.sweep("sweep.toml")
    >>> trainrig.fit(runs, out="law")
    """
    return _run_stage("sweep", run, changes, progress, keys)


def _run_stage(
    verb: str, given: AnyRun, changes: Sequence[str], progress: bool, keys: Mapping[str, Any]
) -> StageOutput:
    """Run the stage `verb` as its command does; with `progress`, show its progress on stderr."""
    run = build_run(verb, given, changes, keys)
    job.check_output(run)
    ensure_home()
    stage = VERBS[verb].load_function()
    if not progress:
        return StageOutput(verb, run.output, stage(run))
    terminal = Terminal()
    with terminal.listening(), terminal.only_results_on_stdout():
        return StageOutput(verb, run.output, show(terminal, run, stage))


def build_run(verb: str, given: AnyRun, changes: Sequence[str], keys: Mapping[str, Any]) -> RunFile:
    """Return the run file of `verb` that `given` names or is, or that `keys` hold.

    `changes` have the form `a.b=value`, and change the run file at a path. Raises ConfigError for
    an invalid key, and unless exactly one of `given` and `keys` is given.
    """
    model = VERBS[verb].load_model()
    if (given is None) == (not keys):
        raise ConfigError(
            f"{verb}: give a run file, or its keys as keyword arguments, and not both; to change a "
            'key of a run file, use changes=["a.b=value"]'
        )
    if isinstance(given, RunFile) and not isinstance(given, model):
        raise ConfigError(
            f"{verb}: the run file is a {type(given).__name__}, for `{given.verb}`; "
            f"give a {model.__name__}"
        )
    if given is not None and not isinstance(given, RunFile):
        return config.load(model, os.fspath(given), changes)
    if changes:
        raise ConfigError(
            f"{verb}: `changes` apply to a run file that is named by its path; without one, give "
            "the changed values themselves"
        )
    return given or config.build(model, convert_paths(keys), verb)


def convert_paths(value: Any) -> Any:
    """Return `value` with path objects as strings, also in its tables and lists."""
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, Mapping):
        return {key: convert_paths(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return tuple(convert_paths(inner) for inner in value)
    return value
