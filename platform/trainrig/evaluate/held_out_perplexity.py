"""Loss, perplexity and bits per byte of a checkpoint on held-out text, by source.

Loss and perplexity are per token, so they can be compared only between models with the same
tokenizer. Bits per byte are per byte of text, and can be compared between any two models.

Encoders have a pseudo-perplexity: each token is masked alone, once, and the loss is the mean of the
negative log-likelihoods of the original tokens (Salazar et al. 2020, "Masked Language Model
Scoring", arXiv:1910.14659, section 2). This is not a probability of the text, so it compares only
encoders. Each token of a row costs one forward pass of the row: limit the cost with
`tokens_per_source`.

Shapes: B rows of a forward pass, T positions, V entries of the vocabulary.
"""

import functools
import logging
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import torch

from trainrig import storage
from trainrig.corpus.array_types import Int64s
from trainrig.errors import ConfigError, DataError
from trainrig.evaluate.engine.opened_models import OpenedModel
from trainrig.evaluate.evaluation_run_file import Evaluation
from trainrig.evaluate.scorecards import SourceScore
from trainrig.manifest import FileSum
from trainrig.models.decoder import Decoder
from trainrig.objectives.cross_entropy import token_nats
from trainrig.splits import Split, Work
from trainrig.tokens.batches import IGNORE
from trainrig.tokens.permutation import Integers
from trainrig.tokens.shards.token_shards import HELD_OUT, TokenShards
from trainrig.tokens.tokenizers.encode import Encoder
from trainrig.train.held_out_loss import open_held_out_conversations


def score_masked_source(
    run: Evaluation, model: Decoder, encoder: Encoder, source: str
) -> SourceScore:
    """Compute the score of one source of the held-out split.

    Raises DataError if the tokenizer has no mask token.
    """
    shards = TokenShards.open(storage.join(str(run.tokens), HELD_OUT))
    last = shards.tokens(source)
    length = run.sequence_length
    assert length is not None  # the run file's validator requires it
    if run.tokens_per_source is not None:
        last = min(last, run.tokens_per_source)
    windows = (
        shards.read_window(source, start, min(length, last - start)).astype(np.int64)
        for start in range(0, last, length)
    )
    mask = encoder.special_tokens.of("mask").id
    special = list(encoder.special_ids.values())
    return score_masked_windows(
        model, windows, mask, special, encoder.byte_lengths, run.micro_batch
    )


def score_masked_windows(
    model: Decoder,
    windows: Iterator[Integers],
    mask: int,
    special: list[int],
    byte_lengths: Int64s,
    micro_batch: int,
) -> SourceScore:
    """Compute the score over all `windows` [T] of token ids.

    Special tokens are part of the context, but are not predicted.
    """
    nats = 0.0
    tokens = text_bytes = right = 0
    device = model.embedding.weight.device
    with torch.inference_mode():
        for ids_T in windows:
            asked = np.flatnonzero(~np.isin(ids_T, special))
            for begin in range(0, len(asked), micro_batch):
                places_B = asked[begin : begin + micro_batch]
                rows_B = np.arange(len(places_B))
                ids_BT = np.repeat(ids_T[None], len(places_B), axis=0)
                ids_BT[rows_B, places_B] = mask
                flat = torch.from_numpy(rows_B * len(ids_T) + places_B).to(device)
                logits_BV = model(torch.from_numpy(ids_BT).to(device), places_N=flat).logits.float()
                there_B = torch.from_numpy(ids_T[places_B]).to(device)
                nats += float(token_nats(logits_BV, there_B).double().sum())
                right += int((logits_BV.argmax(-1) == there_B).sum())
                tokens += len(places_B)
                text_bytes += int(byte_lengths[ids_T[places_B]].sum())
    return replace(_build_score(nats, nats, tokens, text_bytes), accuracy=right / tokens)


def _build_score(nats: float, text_nats: float, tokens: int, text_bytes: int) -> SourceScore:
    """Return the score of `tokens`; `text_nats` are the nats of those that are text.

    Raises DataError if there is no text.
    """
    if not text_bytes:
        raise DataError("held-out text: it contains no token of text; hold out more")
    loss = nats / tokens
    return SourceScore(
        loss=loss,
        perplexity=math.exp(loss),
        bits_per_byte=text_nats / math.log(2) / text_bytes,
        tokens=tokens,
        bytes=text_bytes,
    )


log = logging.getLogger(__name__)
CONVERSATIONS = "conversations"


@dataclass(frozen=True)
class HeldOutPlan:
    """The held-out text of an evaluation, as plain data that can be sent to workers."""

    run: Evaluation

    def list_splits(self) -> list[Split]:
        """Return a split for each source of tokens, and one for the conversations.

        Raises DataError if no tokens are held out.
        """
        found = []
        if self.run.tokens:
            sources = _list_scored_sources(self.run.tokens)
            found = [Split(f"held-out-{source}", {"source": source}) for source in sources]
        if self.run.conversations:
            found.append(Split(f"held-out-{CONVERSATIONS}", {}))
        return found

    def make_work(self) -> Work:
        """Load the model and return the function that a worker calls for each split.

        Raises ConfigError or DataError if the checkpoint cannot read the held-out text.
        """
        opened = OpenedModel.load(self.run)
        check_fit(self.run, opened.model, opened.encoder)
        return functools.partial(self._do, opened)

    def _do(
        self, opened: OpenedModel, given: Mapping[str, Any]
    ) -> tuple[dict[str, Any], dict[str, FileSum]]:
        source = given.get("source")
        if source is None:
            found = score_conversations(self.run, opened.model, opened.encoder)
        elif opened.model.config.bidirectional:
            found = score_masked_source(self.run, opened.model, opened.encoder, source)
        else:
            found = score_source(self.run, opened.model, opened.encoder, source)
        return asdict(found), {}


def check_fit(run: Evaluation, model: Decoder, encoder: Encoder) -> None:
    """Raise ConfigError or DataError if the model cannot read the held-out text of `run`."""
    length = run.sequence_length or 0
    if length > model.config.positions:
        raise ConfigError(
            f"sequence_length ({length}) exceeds the model's {model.config.positions} positions; "
            "lower it"
        )
    if model.config.bidirectional:
        encoder.special_tokens.of("mask")
    if run.tokens:
        shards = TokenShards.open(storage.join(run.tokens, HELD_OUT))
        if shards.vocabulary.fingerprint != encoder.fingerprint:
            raise DataError(
                f"{run.tokens}: these tokens are not from the checkpoint's tokenizer; tokenize "
                "with that one"
            )


def score_source(run: Evaluation, model: Decoder, encoder: Encoder, source: str) -> SourceScore:
    """Compute the score of one source of the held-out split."""
    shards = TokenShards.open(storage.join(str(run.tokens), HELD_OUT))
    return score(model, _iterate_windows(shards, source, run), encoder.byte_lengths)


def score_conversations(run: Evaluation, model: Decoder, encoder: Encoder) -> SourceScore:
    """Compute the score of the assistant's answers in the held-out conversations."""
    folder = str(run.conversations)
    padding = encoder.special_tokens.padding
    sets = open_held_out_conversations(folder, _require_length(run), padding)
    if not sets.batches:
        raise DataError(
            f"{folder}: no conversation is held out; set `held_out` to a share and prepare them "
            "again"
        )
    return score(model, ((m.ids, m.targets) for m in sets.batches), encoder.byte_lengths)


def _list_scored_sources(tokens: str) -> list[str]:
    shards = TokenShards.open(storage.join(tokens, HELD_OUT))
    if not shards.sources:
        raise DataError(f"{tokens}: no text is held out; tokenize with a larger `held_out`")
    found = []
    for source in shards.sources:
        if shards.tokens(source) < 2:  # the first token is not a target
            log.warning(
                "%s: source '%s' gets no score, because it holds out only one token", tokens, source
            )
        else:
            found.append(source)
    return found


def _require_length(run: Evaluation) -> int:
    if run.sequence_length is None:
        raise ValueError("held-out text needs sequence_length")
    return run.sequence_length


def score(
    model: Decoder, rows: Iterable[tuple[Integers, Integers]], byte_lengths: Int64s
) -> SourceScore:
    """Compute the score over all `rows` of (ids [B, T], targets [B, T]).

    Raises DataError if no target is a token of text.
    """
    nats = text_nats = 0.0
    tokens = text_bytes = 0
    device = model.embedding.weight.device
    with torch.inference_mode():
        for ids_BT, targets_BT in rows:
            logits_BTV = model(torch.from_numpy(ids_BT).to(device)).logits.float()
            targets = torch.from_numpy(targets_BT).to(device)
            nats_BT = token_nats(logits_BTV, targets).double().cpu().numpy()
            trained_BT = targets_BT != IGNORE
            bytes_BT = np.where(trained_BT, byte_lengths[np.where(trained_BT, targets_BT, 0)], 0)
            nats += float(nats_BT.sum())
            text_nats += float(nats_BT[bytes_BT > 0].sum())
            tokens += int(trained_BT.sum())
            text_bytes += int(bytes_BT.sum())
    return _build_score(nats, text_nats, tokens, text_bytes)


def _iterate_windows(
    shards: TokenShards, source: str, run: Evaluation
) -> Iterator[tuple[Integers, Integers]]:
    """Yield (ids [B, T], targets [B, T]); each token of `source` but the first is a target once."""
    length = _require_length(run)
    last = shards.tokens(source) - 1
    if run.tokens_per_source is not None:
        last = min(last, run.tokens_per_source)
    rows: list[tuple[Integers, Integers]] = []
    for start in range(0, last, length):
        held = shards.read_window(source, start, min(length, last - start) + 1).astype(np.int64)
        ids = np.zeros(length, dtype=np.int64)
        targets = np.full(length, IGNORE, dtype=np.int64)
        ids[: len(held) - 1] = held[:-1]
        targets[: len(held) - 1] = held[1:]
        rows.append((ids, targets))
        if len(rows) == run.micro_batch or start + length >= last:
            yield np.stack([row[0] for row in rows]), np.stack([row[1] for row in rows])
            rows = []
