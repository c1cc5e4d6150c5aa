"""The stages of each kind of project, and the values that their run files get."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from trainrig.errors import ConfigError
from trainrig.evaluate.tasks.answer_checks import find_numbers
from trainrig.projects import project_sizes as sizes
from trainrig.projects.project_inputs import Inputs, Source, count_cores
from trainrig.projects.stage_list import ProjectStage

SMALL_BYTES = 16_000_000  # less text than this is encoded in one process
MOST_READERS = 8  # most processes of `curate`, as each may take 2 GiB of memory
CPU_LENGTH = 1_024  # longest sequence without GPUs
GPU_LENGTH = 2_048
LADDER = (10e6, 30e6, 100e6, 300e6, 1e9)  # parameters of the models of a sweep on GPUs
RATIOS = (5.0, 10.0, 20.0, 40.0)  # their tokens for each parameter
NUMERIC = 0.8  # share of answers with a number from which answers are compared as numbers


@dataclass(frozen=True)
class PlannedFile:
    """A run file to write, made by the template of the same name unless another is named."""

    name: str  # without .toml
    template: str
    values: Mapping[str, Any]


@dataclass
class Plan:
    """Stages and run files of a project, in order."""

    stages: list[ProjectStage] = field(default_factory=list)
    files: list[PlannedFile] = field(default_factory=list)
    facts: list[str] = field(default_factory=list)  # decisions that README.md explains

    def add(self, verb: str, name: str, note: str, template: str = "", **values: Any) -> None:
        """Add a stage with a run file."""
        self.stages.append(ProjectStage((verb, f"{name}.toml"), note))
        self.files.append(PlannedFile(name, template or name, values))

    def add_command(self, *words: str, note: str) -> None:
        """Add a stage without a run file."""
        self.stages.append(ProjectStage(words, note))


@dataclass(frozen=True)
class Basis:
    """Choices that all stages of a project share."""

    inputs: Inputs
    gpus: int
    workers: int  # processes that train
    length: int  # tokens of a sequence
    bytes_per_token: float

    @property
    def processes(self) -> int:
        """Processes of stages that read data; 0 works without Ray, which is faster for little."""
        total = sum(source.amount.bytes for source in self.inputs.sources)
        return 0 if total < SMALL_BYTES else count_cores()


ENGLISH = "`curate` keeps pages in English: name other languages in `allowed` of curate.toml."


def make_plan(inputs: Inputs) -> Plan:
    """Return the stages and run files of the project for `inputs`.

    Raises ConfigError for data that are too few.
    """
    plan = Plan()
    if inputs.kind == "crawl":
        _plan_crawl(inputs, plan)
    elif inputs.kind == "sweep":
        _plan_sweep(inputs, plan)
    elif inputs.model:
        _plan_with_model(inputs, plan)
    else:
        _plan_from_scratch(inputs, plan)
    return plan


def _describe_documents(inputs: Inputs, plan: Plan) -> dict[str, Any]:
    """Return the values of the key `documents`; add the stage `curate` if there are raw pages."""
    texts = inputs.select("documents", "pages")
    if not inputs.select("pages"):
        return {"curated": None, "documents": texts}
    plan.facts.append(ENGLISH)
    plan.add(
        "curate", "curate", "pages to documents, each drop with its reason",
        sources=texts, workers=min(MOST_READERS, count_cores()),
    )  # fmt: skip
    return {"curated": "documents", "documents": ()}


def _plan_tokens(
    inputs: Inputs,
    plan: Plan,
    vocabulary: int,
    processes: int,
    tokenizer: str | None = None,
    masked: bool = False,
) -> dict[str, Any]:
    """Add the stages from documents to token shards; return the values of `documents`.

    `tokenizer` is a folder with a tokenizer to use instead of a new one.
    """
    documents = _describe_documents(inputs, plan)
    if tokenizer is None:
        plan.add(
            "tokenizer", "tokenizer", "a vocabulary for these documents",
            vocabulary=vocabulary, masked=masked, **documents,
        )  # fmt: skip
    plan.add(
        "tokenize", "tokenize", "documents to token shards",
        tokenizer=tokenizer or "tokenizer", processes=processes, **documents,
    )  # fmt: skip
    return documents


def _plan_crawl(inputs: Inputs, plan: Plan) -> None:
    cores = min(MOST_READERS, count_cores())
    texts = inputs.select("pages", "documents")
    plan.facts.append(ENGLISH)
    plan.add(
        "curate", "curate", "pages to documents, each drop with its reason",
        sources=texts, workers=cores,
    )  # fmt: skip
    measures = sizes.measure_texts([source.amount for source in texts])
    curated: dict[str, Any] = {"curated": "documents", "documents": ()}
    plan.add(
        "tokenizer", "tokenizer", "a vocabulary for these documents",
        vocabulary=measures.vocabulary, masked=False, **curated,
    )  # fmt: skip
    plan.add(
        "tokenize", "tokenize", "documents to token shards",
        tokenizer="tokenizer", processes=cores, **curated,
    )  # fmt: skip


def _plan_sweep(inputs: Inputs, plan: Plan) -> None:
    amounts = [source.amount for source in inputs.select("documents", "pages")]
    # A large vocabulary would outweigh the smallest models of a laptop.
    measures = sizes.measure_texts(amounts, None if inputs.gpus else 512)
    _check_tokens(measures)
    basis = _make_basis(inputs, measures.bytes_per_token)
    _plan_tokens(inputs, plan, measures.vocabulary, basis.processes)
    shortest = min(128_000, int(0.8 * measures.tokens))
    most = 0.9 * sizes.EPOCHS * measures.tokens / max(RATIOS)
    possible = [size for size in LADDER if size <= most] if inputs.gpus else []
    plan.add(
        "sweep", "sweep", "many small models and their losses",
        sizes=possible if len(possible) >= 3 else [], ratios=RATIOS,
        tokens=[shortest, 2 * shortest, 4 * shortest],
        fewest_steps=max(2, min(120, shortest // 256)),
    )  # fmt: skip
    plan.add_command("fit", "sweep", "--out", "law", note="a scaling law of these losses")


def _plan_from_scratch(inputs: Inputs, plan: Plan) -> None:
    """Plan a new model, trained on the documents, and what follows of its kind."""
    amounts = [source.amount for source in inputs.select("documents", "pages")]
    measures = sizes.measure_texts(amounts)
    _check_tokens(measures)
    basis = _make_basis(inputs, measures.bytes_per_token)
    encodes = inputs.kind == "encoder"
    documents = _plan_tokens(inputs, plan, measures.vocabulary, basis.processes, masked=encodes)
    model = sizes.choose_model(measures.tokens, inputs.gpus)
    batches = sizes.plan_pretraining(
        measures.tokens, basis.length, model, inputs.gpus, basis.workers
    )
    plan.facts.append(
        f"A new model of {model.layers} layers and {model.channels} channels: about "
        f"{float(f'{measures.tokens:.2g}'):,.0f} tokens of documents, {batches.steps} steps of "
        f"{batches.global_batch * batches.length:,} tokens."
    )
    plan.add(
        "pretrain", "pretrain", "a new model, trained on the documents",
        workers=basis.workers, model=model, batches=batches, encodes=encodes, start=None,
        lr=model.lr, gpus=inputs.gpus,
    )  # fmt: skip
    _plan_rest(basis, plan, "model", documents)


def _plan_with_model(inputs: Inputs, plan: Plan) -> None:
    """Plan the training of the given model."""
    assert inputs.model is not None
    given = inputs.model
    texts = [source.amount for source in inputs.select("documents", "pages")]
    tokens = int(sum(amount.bytes for amount in texts) / sizes.USUAL_BYTES_PER_TOKEN)
    basis = _make_basis(inputs, sizes.USUAL_BYTES_PER_TOKEN, given.config.positions)
    plan.facts.append(f"Starts from {given.folder}, which has {given.parameters:,} parameters.")
    documents: dict[str, Any] = {}
    if texts:
        documents = _plan_tokens(inputs, plan, 0, basis.processes, given.folder)
    if inputs.kind not in ("pretrain", "encoder"):
        _plan_rest(basis, plan, given.folder, documents)
        return
    plan.add_command("import", given.folder, "base", "--keep", note="the model to start from")
    batches = sizes.plan_continuation(tokens, basis.length, inputs.gpus, basis.workers)
    plan.add(
        "pretrain", "pretrain", "the model, trained further on the documents",
        workers=basis.workers, model=None, batches=batches, encodes=inputs.kind == "encoder",
        start="base", lr=2e-5, gpus=inputs.gpus,
    )  # fmt: skip
    _plan_rest(basis, plan, "model", documents)


def _plan_rest(basis: Basis, plan: Plan, start: str, documents: Mapping[str, Any]) -> None:
    """Plan the stages after the first model, which is at `start`, and the export of the last."""
    inputs = basis.inputs
    if chats := inputs.select("chats"):
        start = _plan_chats(basis, plan, start, chats, bool(documents))
    elif inputs.kind == "rl" and inputs.model is None:
        # A new model must learn the form of an answer before rewards can teach it more.
        problems = inputs.select("problems")
        if chats := tuple(replace(s, role="chats") for s in problems if "chats" in s.found.roles):
            start = _plan_chats(basis, plan, start, chats, bool(documents))
    if pairs := inputs.select("pairs"):
        start = _plan_pairs(basis, plan, start, pairs)
    if problems := inputs.select("problems"):
        start = _plan_rewards(basis, plan, start, problems)
    if inputs.kind == "encoder":
        plan.add(
            "embed", "embed", "a vector for each document",
            processes=basis.processes, **documents,
        )  # fmt: skip
    plan.add_command("export", start, "exported", "--keep", note="a folder for Transformers")


def _plan_chats(
    basis: Basis, plan: Plan, start: str, chats: tuple[Source, ...], has_tokens: bool
) -> str:
    scratch = basis.inputs.model is None
    plan.add(
        "conversations", "chats", "chats to token shards, with a mask of the answers",
        "conversations", rows="conversations", sources=chats, output="chats", tokenizer=start,
        length=basis.length, processes=basis.processes,
    )  # fmt: skip
    tokens = sum(_estimate_tokens(source, basis.bytes_per_token) for source in chats)
    batches = sizes.plan_tuning(
        tokens / basis.length, basis.length, scratch, basis.gpus, basis.workers
    )
    plan.add(
        "posttrain", "tune", "the model, tuned on the chats",
        "posttrain", checkpoint=start, conversations="chats", output="tuned", pairs=False,
        batches=batches, workers=basis.workers, lora=not scratch, lr=1e-3 if scratch else 2e-4,
        tokens="tokens" if has_tokens else None, gpus=basis.gpus,
    )  # fmt: skip
    return "tuned"


def _plan_pairs(basis: Basis, plan: Plan, start: str, pairs: tuple[Source, ...]) -> str:
    scratch = basis.inputs.model is None
    plan.add(
        "conversations", "pairs", "pairs to token shards",
        "conversations", rows="pairs", sources=pairs, output="pairs", tokenizer=start,
        length=basis.length, processes=basis.processes,
    )  # fmt: skip
    rows = sum(source.amount.rows for source in pairs)
    batches = sizes.plan_tuning(rows, basis.length, scratch, basis.gpus, basis.workers)
    plan.add(
        "posttrain", "align", "the model, trained to prefer the chosen answers",
        "posttrain", checkpoint=start, conversations="pairs", output="aligned", pairs=True,
        batches=batches, workers=basis.workers, lora=not scratch, lr=5e-5 if scratch else 2e-5,
        tokens="tokens" if scratch else None, gpus=basis.gpus,
    )  # fmt: skip
    return "aligned"


def _plan_rewards(basis: Basis, plan: Plan, start: str, problems: tuple[Source, ...]) -> str:
    columns = {tuple(sorted(source.columns.items())) for source in problems}
    if len(columns) > 1:
        raise ConfigError(
            "init rl: the problems have different columns; give files with the same columns, such "
            "as question and answer"
        )
    if any(source.found.format != "JSONL" for source in problems):
        raise ConfigError("init rl: problems are read from JSON lines; convert the Parquet files")
    texts = [text for source in problems for text in source.amount.texts]
    prompts = [text.rpartition("\n")[0] for text in texts]
    answers = [text.rpartition("\n")[2] for text in texts]
    numeric = sum(bool(find_numbers(answer)) for answer in answers) >= NUMERIC * len(answers)
    longest = sizes.choose_length(prompts, basis.bytes_per_token, 64, basis.length // 2)
    plan.add(
        "rl", "rl", "the model, trained on rewards for right answers",
        checkpoint=start, columns=problems[0].columns, numeric=numeric,
        paths=[path for source in problems for path in source.found.paths],
        prompts=max(16, 4 * basis.gpus) if basis.gpus else 4,
        prompt_tokens=longest, answer_tokens=min(256, basis.length - longest),
        workers=basis.workers, lora=basis.inputs.model is not None, gpus=basis.gpus,
    )  # fmt: skip
    return "trained"


def _estimate_tokens(source: Source, bytes_per_token: float) -> float:
    return source.amount.bytes / bytes_per_token + sizes.TURN_TOKENS * source.amount.rows


def _make_basis(inputs: Inputs, bytes_per_token: float, positions: int | None = None) -> Basis:
    """Choose the workers and a sequence length that the rows of the later stages fit in."""
    rows = inputs.select("chats", "pairs", "problems")
    texts = [text for source in rows for text in source.amount.texts]
    most = GPU_LENGTH if inputs.gpus else CPU_LENGTH
    least = 256
    if not rows and inputs.gpus:
        least = GPU_LENGTH // 2
    if inputs.model is not None:
        least = most // 2 if inputs.gpus else 256
        most = min(most, positions or most)
    length = sizes.choose_length(texts, bytes_per_token, min(least, most), most)
    workers = inputs.gpus or min(2, count_cores())
    return Basis(inputs, inputs.gpus, workers, length, bytes_per_token)


def _check_tokens(measures: sizes.TextMeasures) -> None:
    if measures.tokens < sizes.LEAST_TOKENS:
        raise ConfigError(
            f"init: the documents have about {measures.tokens:,} tokens, and a new model needs "
            f"{sizes.LEAST_TOKENS:,} or more; give more documents, or --model HF_DIR"
        )
