"""How well a checkpoint predicts held-out text: loss, perplexity and bits per byte, by source.

Loss and perplexity are per token, so they compare only models of one tokenizer. Bits per byte
divide by the bytes of the text instead, and compare any two.

Shapes: B rows, T positions.
"""

import json
import logging
import math
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from trainrig import manifest, storage
from trainrig.errors import ConfigError, DataError
from trainrig.evaluate.run_file import Evaluation
from trainrig.manifest import Manifest
from trainrig.models.decoder import Decoder
from trainrig.objectives.cross_entropy import token_nats
from trainrig.posttrain.chat import RefusedConversation
from trainrig.posttrain.sft import open_conversations
from trainrig.tokens.batches import IGNORE, BatchSizes
from trainrig.tokens.encoding.encode import Encoder
from trainrig.tokens.permutation import Integers
from trainrig.tokens.shards.token_shards import HELD_OUT, TokenShards
from trainrig.train import checkpoint

log = logging.getLogger(__name__)
SCORECARD = "scorecard.json"


@dataclass(frozen=True)
class SourceScore:
    """How one source was predicted."""

    loss: float  # nats per token
    perplexity: float  # e to the loss
    bits_per_byte: float  # of text; special tokens count neither as bits nor as bytes
    tokens: int
    bytes: int


def evaluate(run: Evaluation) -> Manifest:
    """Write the scorecard that `run` describes; the manifest of its folder."""
    path = checkpoint.resolve(run.checkpoint)
    inputs = {
        "checkpoint": checkpoint.content_key(path),
        "tokens": manifest.read_input(run.tokens, "tokenize").content,
    }
    if run.conversations:
        if not storage.exists(run.conversations):
            raise DataError(
                f"{run.conversations}: no such file; `conversations` names a JSONL file"
            )
        inputs["conversations"] = storage.content_key(run.conversations)
    stage = manifest.claim(run.output, run, inputs)
    if stage.finished:
        return stage.finished
    torch.set_num_threads(run.threads)
    opened = checkpoint.open_model(path)
    with stage.undone_if_refused():
        scores = score_all(run, opened.build(), Encoder(opened.tokenizer, path))
    card = {"step": opened.step, "scores": {name: asdict(score) for name, score in scores.items()}}
    storage.write(stage.path(SCORECARD), json.dumps(card, indent=1).encode())
    counts = {"step": opened.step, "bits_per_byte": {n: s.bits_per_byte for n, s in scores.items()}}
    return stage.finish(counts, {SCORECARD: manifest.file_sum(stage.path(SCORECARD))})


def score_all(run: Evaluation, model: Decoder, encoder: Encoder) -> dict[str, SourceScore]:
    """The score of each source of the held-out split, and of `conversations` if there are any."""
    if run.sequence_length > model.config.positions:
        raise ConfigError(
            f"sequence_length ({run.sequence_length}) is beyond the model's "
            f"{model.config.positions} positions; lower it"
        )
    shards = TokenShards.open(storage.join(run.tokens, HELD_OUT))
    if shards.vocabulary.fingerprint != encoder.fingerprint:
        raise DataError(f"{run.tokens}: tokens of another tokenizer than the checkpoint's")
    if not shards.sources:
        raise DataError(f"{run.tokens}: nothing is held out; tokenize with a larger `held_out`")
    scores = {}
    for source in shards.sources:
        if shards.tokens(source) < 2:  # the first is no target
            log.warning("%s: source '%s' holds out one token; it gets no score", run.tokens, source)
            continue
        scores[source] = score(model, _windows(shards, source, run), encoder.byte_lengths)
    if run.conversations:
        sizes = BatchSizes(sequence_length=run.sequence_length, global_batch=1, micro_batch=1)
        refused: list[RefusedConversation] = []
        batches = open_conversations(run.conversations, encoder.text, sizes, refuse=refused.append)
        if refused:
            log.warning("%s; %d such rows get no score", refused[0], len(refused))
        if batches.too_long:
            log.warning(
                "%s: %d of %d conversations are longer than sequence_length and get no score",
                run.conversations,
                batches.too_long,
                batches.too_long + len(batches),
            )
        rows = (micro for step in range(len(batches)) for micro in batches.at(step))
        scores["conversations"] = score(
            model, ((micro.ids, micro.targets) for micro in rows), encoder.byte_lengths
        )
    return scores


def score(
    model: Decoder, rows: Iterable[tuple[Integers, Integers]], byte_lengths: NDArray[np.int64]
) -> SourceScore:
    """The score over all `rows` of (ids [B, T], targets [B, T])."""
    nats = text_nats = 0.0
    tokens = text_bytes = 0
    with torch.inference_mode():
        for ids_BT, targets_BT in rows:
            logits_BTV = model(torch.from_numpy(ids_BT)).logits
            nats_BT = token_nats(logits_BTV, torch.from_numpy(targets_BT)).double().numpy()
            trained_BT = targets_BT != IGNORE
            bytes_BT = np.where(trained_BT, byte_lengths[np.where(trained_BT, targets_BT, 0)], 0)
            nats += float(nats_BT.sum())
            text_nats += float(nats_BT[bytes_BT > 0].sum())
            tokens += int(trained_BT.sum())
            text_bytes += int(bytes_BT.sum())
    if not text_bytes:
        raise DataError("held-out text: not one token of text in it; hold out more")
    loss = nats / tokens
    return SourceScore(
        loss=loss,
        perplexity=math.exp(loss),
        bits_per_byte=text_nats / math.log(2) / text_bytes,
        tokens=tokens,
        bytes=text_bytes,
    )


def _windows(
    shards: TokenShards, source: str, run: Evaluation
) -> Iterator[tuple[Integers, Integers]]:
    """All tokens of `source` but its first as targets, once each, in rows of T."""
    length = run.sequence_length
    last = shards.tokens(source) - 1
    if run.tokens_per_source is not None:
        last = min(last, run.tokens_per_source)
    rows: list[tuple[Integers, Integers]] = []
    for start in range(0, last, length):
        held = shards.window(source, start, min(length, last - start) + 1).astype(np.int64)
        ids = np.zeros(length, dtype=np.int64)
        targets = np.full(length, IGNORE, dtype=np.int64)
        ids[: len(held) - 1] = held[:-1]
        targets[: len(held) - 1] = held[1:]
        rows.append((ids, targets))
        if len(rows) == run.micro_batch or start + length >= last:
            yield np.stack([row[0] for row in rows]), np.stack([row[1] for row in rows])
            rows = []
