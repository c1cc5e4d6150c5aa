"""Supervised fine-tuning: the same loop as pretraining, on conversations."""

import functools
import hashlib
import itertools
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from trainrig import manifest, storage
from trainrig.errors import ConfigError, DataError
from trainrig.manifest import Manifest, Stage
from trainrig.models.decoder_config import DecoderConfig
from trainrig.posttrain.chat import (
    Message,
    RefusedConversation,
    Rendered,
    read_conversations,
    render,
)
from trainrig.posttrain.run_file import FineTuning
from trainrig.tokens.batches import IGNORE, TOKENS, BatchSizes, MicroBatch, token_arrays
from trainrig.tokens.encoding.encode import Encoder
from trainrig.tokens.permutation import Integers, permuted
from trainrig.tokens.special import PAD
from trainrig.train import checkpoint
from trainrig.train.held_out import HeldOutSets, nothing_held_out
from trainrig.train.job import TrainingJob
from trainrig.train.pretrain import drive
from trainrig.train.run_file import check_positions

QUARANTINE = "quarantine/conversations.jsonl"  # rows that are none: file, line and reason
log = logging.getLogger(__name__)


class ConversationBatches:
    """One conversation a row; each once an epoch, in a seeded order."""

    sources = ("conversations",)

    def __init__(
        self, conversations: Sequence[Sequence[Message]], encoder: Encoder, sizes: BatchSizes
    ) -> None:
        """Those longer than a row are left out, and counted. Raises DataError if all are."""
        rendered = [render(messages, encoder) for messages in conversations]
        self._sizes = sizes
        self._pad = encoder.special(PAD)
        # T + 1 ids: each position's target is the next one's id.
        self._kept = [each for each in rendered if len(each.ids) <= sizes.sequence_length + 1]
        self.too_long = len(rendered) - len(self._kept)
        if not self._kept:
            shortest = min((len(each.ids) for each in rendered), default=0)
            raise DataError(
                f"conversations: none of {len(rendered)} fits sequence_length "
                f"({sizes.sequence_length}); the shortest has {shortest} tokens"
            )
        # The first id is nobody's target.
        self._targets = np.array([sum(each.trained[1:]) for each in self._kept], dtype=np.int64)
        content = "\n".join(str(each) for each in self._kept)
        self.fingerprint = hashlib.sha256(
            f"{encoder.fingerprint}\n{sizes.seed}\n{sizes.sequence_length}\n{content}".encode()
        ).hexdigest()

    @property
    def counts(self) -> dict[str, int]:
        """How many conversations there are to train on, and how many were too long for a row."""
        return {"conversations": len(self), "conversations_too_long": self.too_long}

    def __len__(self) -> int:
        """Conversations in an epoch."""
        return len(self._kept)

    def micro_batches(self, step: int) -> int:
        """How many micro-batches make up a global batch: the same at each step."""
        return self._sizes.global_batch // self._sizes.micro_batch

    def targets(self, step: int) -> int:
        """Targets of the whole global batch of `step`."""
        first = step * self._sizes.global_batch
        samples = np.arange(first, first + self._sizes.global_batch, dtype=np.int64)
        return int(self._targets[self._chosen(samples)].sum())

    def denominators(self, step: int) -> dict[str, int]:
        """What losses of the global batch of `step` are divided by."""
        return {TOKENS: self.targets(step)}

    def micro_batch(self, step: int, index: int) -> MicroBatch:
        """Micro-batch `index` of `step`, as wide as its longest conversation: padding costs what
        text does and teaches nothing."""
        first = step * self._sizes.global_batch + index * self._sizes.micro_batch
        samples = np.arange(first, first + self._sizes.micro_batch, dtype=np.int64)
        chosen = self._chosen(samples)
        conversations = [self._kept[number] for number in chosen.tolist()]
        shape = (len(samples), max(len(each.ids) for each in conversations) - 1)
        ids = np.full(shape, self._pad, dtype=np.int64)
        targets = np.full(shape, IGNORE, dtype=np.int64)
        for row, conversation in enumerate(conversations):
            self._fill(ids[row], targets[row], conversation)
        nought = np.zeros_like(samples)
        pieces = np.stack([np.arange(len(samples)), nought, chosen], axis=1)
        return MicroBatch(token_arrays(ids, targets), samples, nought, pieces)

    def at(self, step: int) -> tuple[MicroBatch, ...]:
        """The whole global batch of `step`."""
        return tuple(self.micro_batch(step, index) for index in range(self.micro_batches(step)))

    def data_before(self, step: int) -> dict[str, Any]:
        """All that the samples before `step` depend on, by name, as JSON has it."""
        return {"conversations": self.fingerprint, "samples": step * self._sizes.global_batch}

    def _chosen(self, samples: Integers) -> Integers:
        """[B] which of the kept conversations each of `samples` is."""
        epochs, chosen = np.divmod(samples, len(self._kept))
        for epoch in set(epochs.tolist()):
            of = epochs == epoch
            key = f"{self._sizes.seed}\n{epoch}\nconversations"
            chosen[of] = permuted(chosen[of], len(self._kept), key)
        return chosen

    @staticmethod
    def _fill(ids_T: Integers, targets_T: Integers, conversation: Rendered) -> None:
        length = len(conversation.ids) - 1
        ids_T[:length] = conversation.ids[:-1]
        following = np.array(conversation.ids[1:], dtype=np.int64)
        targets_T[:length] = np.where(conversation.trained[1:], following, IGNORE)


def posttrain(run: FineTuning) -> Manifest:
    """Fine-tune to the end of `run`, going on where an earlier call stopped.

    Raises InputError for what cannot work, before any worker starts; ClusterError when workers
    fail more often than the run allows.
    """
    job, inputs, counted = prepare(run)
    stage = manifest.claim(job.folder, run, inputs)
    if stage.finished:
        return stage.finished
    _set_aside(run, stage, counted)
    return drive(stage, run, job, run.workers, counted)


def prepare(run: FineTuning) -> tuple[TrainingJob, dict[str, str], dict[str, int]]:
    """The job that `run` describes, the fingerprints of its inputs, and what is in them."""
    path = checkpoint.resolve(storage.absolute(run.checkpoint))
    model, tokenizer = checkpoint.describe(path)
    _check(run, model)
    conversations = storage.absolute(run.conversations)
    refused: list[RefusedConversation] = []
    batches = open_conversations(conversations, tokenizer, run.batches, refuse=refused.append)
    job = TrainingJob(
        folder=storage.absolute(run.output),
        model=model,
        training=run.training,
        make_batches=functools.partial(
            open_conversations, conversations, tokenizer, run.batches, batches.fingerprint
        ),
        tokenizer=tokenizer,
        objective=run.objective,
        initial_weights=path,
        make_held_out=_held_out(run, tokenizer),
    )
    inputs = {"checkpoint": checkpoint.content_key(path), "conversations": batches.fingerprint}
    counted = {"conversations_refused": len(refused)} if refused else {}
    return job, inputs, batches.counts | counted


def _set_aside(run: FineTuning, stage: Stage, counted: Mapping[str, int]) -> None:
    """Put on record, with place and reason, which rows were no conversations."""
    if not counted.get("conversations_refused"):
        return
    refused: list[RefusedConversation] = []
    with stage.undone_if_refused():
        read = list(read_conversations(storage.absolute(run.conversations), refused.append))
    lines = [json.dumps(vars(each), ensure_ascii=False) + "\n" for each in refused]
    path = stage.path(QUARANTINE)
    storage.write(path, "".join(lines).encode("utf-8", "replace"))
    log.warning(
        "%s: %d of %d rows set aside in %s: no conversations; the first, line %d: %s",
        run.conversations,
        len(refused),
        len(refused) + len(read),
        path,
        refused[0].line,
        refused[0].reason,
    )


def _check(run: FineTuning, model: DecoderConfig) -> None:
    try:
        check_positions(run.batches.sequence_length, model)
    except ValueError as error:
        raise ConfigError(f"batches: {error}") from None
    run.training.schedule.warmup_steps(run.training.steps)
    run.training.check_workers(run.workers)


def _held_out(run: FineTuning, tokenizer: str) -> Callable[[], HeldOutSets | None]:
    if run.held_out_conversations is None or run.training.held_out.rows == 0:
        return nothing_held_out
    path = storage.absolute(run.held_out_conversations)
    refused: list[RefusedConversation] = []
    open_held_out_conversations(path, tokenizer, run, refused.append)  # raises for every worker
    if refused:
        log.warning("%s; %d such rows are not held out", refused[0], len(refused))
    return functools.partial(open_held_out_conversations, path, tokenizer, run)


def open_held_out_conversations(
    path: str,
    tokenizer: str,
    run: FineTuning,
    refuse: Callable[[RefusedConversation], None] = lambda row: None,
) -> HeldOutSets:
    """The first conversations of the JSONL file at `path`, but those too long, one at a time."""
    first = list(itertools.islice(read_conversations(path, refuse), run.training.held_out.rows))
    alone = run.batches.model_copy(update={"global_batch": 1, "micro_batch": 1})
    batches = ConversationBatches(first, Encoder(tokenizer), alone)
    return HeldOutSets(("conversations",), tuple(batches.at(n)[0] for n in range(len(batches))))


def open_conversations(
    path: str,
    tokenizer: str,
    sizes: BatchSizes,
    fingerprint: str | None = None,
    refuse: Callable[[RefusedConversation], None] = lambda row: None,
) -> ConversationBatches:
    """The batches of the JSONL file at `path`; rows that are no conversations go to `refuse`.

    Raises DataError if they are to have a `fingerprint` and have another: the file has changed.
    """
    conversations = list(read_conversations(path, refuse))
    batches = ConversationBatches(conversations, Encoder(tokenizer), sizes)
    if fingerprint not in (None, batches.fingerprint):
        raise DataError(
            f"{path}: holds other conversations than when the run began; restore the file, or "
            "name another `output`"
        )
    return batches
