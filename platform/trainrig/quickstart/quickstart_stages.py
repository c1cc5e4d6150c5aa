"""The quickstart's stages, from pages to an aligned model and its report.

The order is pages → documents → tokens → model → tuned → aligned → scores → report. Each stage runs
from its file in `jobs/configs/quickstart`, as a cluster job does. This module sets only the
folders, the workers and, for a smaller quickstart, some sizes.
"""

import importlib.resources
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, cast

import trainrig
from trainrig import config, manifest, storage
from trainrig.config import NOT_IDENTITY, OUTPUT, Field, Run, RunFile
from trainrig.corpus.curate import Curation, curate
from trainrig.errors import ConfigError
from trainrig.evaluate.evaluation import evaluate
from trainrig.evaluate.evaluation_run_file import Evaluation
from trainrig.manifest import FileSum, Manifest
from trainrig.posttrain.conversations import encode_conversations
from trainrig.posttrain.row_run_files import ConversationEncoding
from trainrig.posttrain.tuning.fine_tuning import posttrain
from trainrig.posttrain.tuning.tuning_run_file import FineTuning
from trainrig.quickstart.collect_results import collect_results, summarise
from trainrig.quickstart.folders import Folders
from trainrig.quickstart.injected_faults import kill_one_worker
from trainrig.quickstart.quickstart_page import build_quickstart_page
from trainrig.quickstart.site.site_pages import build_pages
from trainrig.quickstart.site.site_plan import PagesSettings
from trainrig.ray_runtime import ray_session
from trainrig.scaling.sweep.sweep import Sweep, sweep
from trainrig.storage.writable import check_folder
from trainrig.terminal import Terminal, show
from trainrig.tokens.prepare import Tokenization, tokenize
from trainrig.tokens.tokenizer import TokenizerTraining, make_tokenizer
from trainrig.train.pretrain import pretrain
from trainrig.train.run_file.run_files import Pretraining


class PageMaking(RunFile):
    """Run file of the quickstart's first stage, which archives the local Python installation."""

    verb: ClassVar[str] = "pages"
    output_format: ClassVar[int] = 3  # 3: two models identify the language of short pages

    stage: Literal["pages"] = "pages"
    output: Annotated[str, OUTPUT]  # Folder to write.
    workers: Annotated[int, NOT_IDENTITY] = Field(default=2, ge=1)  # Number of worker processes.
    pages: PagesSettings = PagesSettings()  # Number of pages of each kind.


@dataclass(frozen=True)
class Quickstart:
    """The command-line options of a quickstart."""

    out: str
    workers: int = 2
    sweep: bool = False  # Whether to also run a sweep and fit a scaling law.
    # Changes of run files as `a.b=value`, by file name.
    changes: Mapping[str, Sequence[str]] = field(default_factory=dict)

    def load(self, model: type[Run], file: str = "", **places: Any) -> Run:
        """Load the run file of one stage, with this quickstart's folders and workers.

        `file` is the file's name without its ending; the default is the verb. `places` are values
        of keys, where `__` stands for a dot.
        """
        if "workers" in model.model_fields:
            places["workers"] = self.workers
        changes = [
            f"{key.replace('__', '.')}={config.format_toml_value(value)}"
            for key, value in places.items()
        ]
        name = file or model.verb
        path = str(find_configs_folder() / f"{name}.toml")
        return config.load(model, path, [*changes, *self.changes.get(name, ())])


def find_configs_folder() -> Path:
    """Return the folder of the quickstart's run files, in the package or the repository."""
    packed = Path(str(importlib.resources.files(trainrig))) / "configs"
    folder = packed if packed.is_dir() else Path(__file__).parents[3] / "jobs" / "configs"
    return folder / "quickstart"


def walk(wanted: Quickstart, terminal: Terminal) -> dict[str, Any]:
    """Run every stage that is not finished, write the report and return the JSON summary.

    Raises InputError for a folder that something else wrote, and for more workers than CPUs.
    """
    if storage.is_remote(wanted.out):
        raise ConfigError(
            f"--out {wanted.out}: the quickstart runs on this machine; name a local folder"
        )
    check_folder(wanted.out)
    ray_session.connect(wanted.workers, "--workers")
    at = Folders(wanted.out)

    def do(
        stage: Callable[[Run], Manifest], model: type[Run], file: str = "", **places: Any
    ) -> None:
        run = wanted.load(model, file, **places)
        show(terminal, run, cast(Callable[..., Manifest], stage))

    do(make_pages, PageMaking, output=at.pages)
    sources: dict[str, Any] = {"sources__0__paths": (at.docs,), "sources__1__paths": (at.code,)}
    do(curate, Curation, output=at.documents, **sources)
    do(make_tokenizer, TokenizerTraining, documents=at.documents, output=at.tokenizer)
    do(tokenize, Tokenization, documents=at.documents, tokenizer=at.tokenizer, output=at.tokens)
    with kill_one_worker(at.model, after_step=_choose_kill_step(wanted.load(Pretraining))):
        do(pretrain, Pretraining, tokens=at.tokens, output=at.model)
    rows: dict[str, Any] = {
        "sources__0__paths": (at.lessons,),
        "sources__1__paths": (at.questions,),
    }
    places = {"tokenizer": at.model, "output": at.conversations}
    do(encode_conversations, ConversationEncoding, **rows, **places)
    places = {"checkpoint": at.model, "conversations": at.conversations}
    do(posttrain, FineTuning, output=at.tuned, comparison__text=at.tokens, **places)
    _align(do, at)
    for checkpoint, scores in at.list_scored().items():
        places = {"tokens": at.tokens, "conversations": at.conversations}
        do(evaluate, Evaluation, checkpoint=checkpoint, output=scores, **places)
    if wanted.sweep:
        do(sweep, Sweep, tokens=at.tokens, output=at.sweep, trials__at_once=wanted.workers)
    terminal.say("report: collecting results and generating text with the models")
    results = collect_results(at, with_law=wanted.sweep)
    storage.write(at.report, build_quickstart_page(results).encode())
    summary = summarise(at, results)
    terminal.print_table(_format_closing(summary))
    return summary


def _align(do: Callable[..., None], at: Folders) -> None:
    """Train the tuned model to prefer right answers to wrong ones."""
    rows: dict[str, Any] = {
        "sources__0__paths": (at.right_and_wrong,),
        "sources__1__paths": (at.right_and_wrong_held_out,),
    }
    places = {"tokenizer": at.tuned, "output": at.pairs}
    do(encode_conversations, ConversationEncoding, "pairs", **rows, **places)
    places = {"checkpoint": at.tuned, "conversations": at.pairs, "output": at.aligned}
    do(posttrain, FineTuning, "dpo", comparison__text=at.tokens, **places)


def _choose_kill_step(run: Pretraining) -> int:
    """Return the step at which to kill a worker: after a checkpoint past half of the run.

    Some steps after the checkpoint, so that there is work to lose and a checkpoint to resume from.
    """
    every = run.training.checkpoints.every
    checkpoint = -(-(run.training.steps // 2) // every) * every
    return checkpoint + max(1, every // 6)


def _format_closing(summary: Mapping[str, Any]) -> dict[str, str]:
    """Return the figures of the closing table, by label."""
    seconds = sum(summary["seconds"].values())
    found = summary.get("scaling")
    law = {"scaling law": f"{found['points']} runs; {_describe_law(found)}"} if found else {}
    return {
        "documents": f"{summary['documents_kept']:,} kept of {summary['documents_in']:,}",
        "injected duplicates": f"{summary['duplicates_caught']} caught of "
        f"{summary['duplicates_planted']}",
        "injected personal data": f"{summary['pii_caught']} masked of {summary['pii_planted']}",
        "model": f"{summary['parameters']:,} parameters, {summary['train_tokens']:,} tokens",
        "loss": f"{summary['loss_first']:.2f} → {summary['loss_last']:.2f} nats per token",
        "preferences": f"{summary['pairs_right']:.0%} of held-out pairs ranked correctly",
        "workers killed": f"{summary['restarts']}, {summary['samples_lost']} samples lost, "
        f"{summary['samples_repeated']} repeated",
        **law,
        "time": f"{seconds:.0f} s in the stages",
        "report": summary["report"],
    }


def _describe_law(found: Mapping[str, Any]) -> str:
    if "problem" in found:
        return f"none ({found['problem']})"
    return (
        f"at {found['flops']:.2g} FLOPs, {found['parameters']:,.0f} parameters on "
        f"{found['tokens']:,.0f} tokens are best, loss {found['loss']:.2f}"
    )


def make_pages(run: PageMaking) -> Manifest:
    """Write the archives that `run` describes and return the manifest of their folder."""
    installed = sorted((d.name, d.version) for d in metadata.distributions())
    stage = manifest.claim(run.output, run, {"installation": manifest.digest(installed)})
    if stage.finished:
        return stage.finished
    with stage.undo_if_refused():
        counts = build_pages(run.output, run.pages, run.workers)
    files: dict[str, FileSum] = {
        path.removeprefix(f"{run.output}/"): manifest.compute_file_sum(path)
        for path in storage.list_files(run.output)
        if not path.endswith(manifest.CLAIM)
    }
    return stage.finish(counts, files)
