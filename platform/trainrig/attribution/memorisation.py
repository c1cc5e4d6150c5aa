"""How much generations copy training pages, and how far injected texts are learned by heart.

The first measure is the share of generations with at least k tokens in a row that stand in one
training document, by the source of the document. The second is the exposure of canaries (Carlini
et al. 2019, arXiv:1802.08232): texts that were injected into the training data, ranked by loss
among texts of the same form that were not. A canary of rank r among R texts has the exposure
log2 R - log2 r; of texts that were never seen, half have less than 1 bit.

Shapes: N generations, C canaries, R reference texts.
"""

import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from trainrig import storage
from trainrig.attribution.corpus_index import CorpusIndex
from trainrig.attribution.verbatim_spans import find_spans
from trainrig.errors import DataError

FIELDS = ("text", "completion", "response", "answer")  # fields of a row, the first that is there
MOST_PLACES = 100  # places of a span whose sources are looked up


@dataclass(frozen=True)
class CopiedShare:
    """Share of generations that copy at least `tokens` tokens in a row from a training document."""

    tokens: int
    generations: int
    copies: int
    by_source: Mapping[str, int]  # generations that copy from the source; several may count one

    @property
    def share(self) -> float:
        """Share of the generations that copy, from 0 to 1."""
        return self.copies / self.generations

    def to_json(self) -> dict[str, Any]:
        """Return the counts and the share as a JSON object."""
        return asdict(self) | {"share": self.share}


def count_copies(
    index: CorpusIndex, generations: Sequence[str], lengths: Sequence[int]
) -> list[CopiedShare]:
    """Return for each of `lengths` the share of `generations` that copy as many tokens.

    Raises DataError if there is no generation.
    """
    if not generations:
        raise DataError("no generation to look for; give at least one")
    copies: dict[int, int] = dict.fromkeys(lengths, 0)
    sources: dict[int, Counter[str]] = {length: Counter() for length in lengths}
    for text in generations:
        ids = index.encode(text)
        spans = find_spans(index, ids, min(lengths)) if ids else []
        of_span = [
            {found.source for found in index.find(ids[span.begin : span.end], MOST_PLACES)}
            for span in spans
        ]
        for length in lengths:
            own = [
                there
                for span, there in zip(spans, of_span, strict=True)
                if span.end - span.begin >= length
            ]
            copies[length] += bool(own)
            sources[length].update(set().union(*own))
    return [
        CopiedShare(length, len(generations), copies[length], dict(sorted(sources[length].items())))
        for length in lengths
    ]


def read_texts(path: str) -> list[str]:
    """Return the texts of a JSONL file, one a row, such as `trainrig generate --prompts` writes.

    A row is a text, has it in the first of FIELDS that it has, or ends with it as a conversation.
    Raises DataError that names the line of a row without a text.
    """
    return list(_iterate_texts(path))


def _iterate_texts(path: str) -> Iterator[str]:
    try:
        # JSON strings may hold other separators of lines than these, such as U+2028.
        lines = storage.decode_utf8(storage.read(path)).split("\n")
    except FileNotFoundError:
        raise DataError(f"{path}: no such file") from None
    except IsADirectoryError:
        raise DataError(f"{path}: is a folder; name a JSONL file in it") from None
    except storage.NotUtf8 as error:
        raise DataError(f"{path}: {error}; save the file as UTF-8") from None
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError as error:
            raise DataError(f"{path}: line {number}: not JSON ({error})") from None
        except RecursionError:
            raise DataError(
                f"{path}: line {number}: brackets are nested too deeply; give a JSON string"
            ) from None
        if (text := _find_text(row)) is None:
            raise DataError(
                f"{path}: line {number}: has no text; give a JSON string, or an object with one of "
                f"{', '.join(FIELDS)}, messages"
            )
        yield text


def _find_text(row: Any) -> str | None:
    """Return the text of a row, or the last message of a conversation."""
    if isinstance(row, Mapping):
        if isinstance(messages := row.get("messages"), list) and messages:
            last = messages[-1]
            content = last.get("content") if isinstance(last, Mapping) else None
            return content if isinstance(content, str) else None
        row = next((row[name] for name in FIELDS if isinstance(row.get(name), str)), None)
    return row if isinstance(row, str) else None


@dataclass(frozen=True)
class Exposure:
    """Exposure of one canary."""

    text: str
    loss: float  # nats, summed over the tokens of the text
    rank: int  # place among itself and the references, by loss; 1 is the lowest loss
    bits: float


def compute_exposures(
    score: Callable[[Sequence[str]], Sequence[float]],
    canaries: Sequence[str],
    references: Sequence[str],
) -> list[Exposure]:
    """Return the exposure [C] of `canaries` among the `references` [R], which were never seen.

    `score` returns the loss of each text. Of equal losses, half of the references count as lower,
    so a model that gives all texts one loss gives each about 1 bit. Raises DataError for too few
    references, an empty text, or a loss that is no finite number.
    """
    if len(references) < 2 or not canaries:
        raise DataError(
            f"{len(canaries)} canaries and {len(references)} references; give at least one canary, "
            "and two references of the same form that were never in the training data"
        )
    for name, texts in (("canary", canaries), ("reference", references)):
        if "" in texts:
            raise DataError(
                f"{name} {texts.index('') + 1} is empty, so it has no loss; give it some text"
            )
    losses = list(score([*canaries, *references]))
    if not all(map(math.isfinite, losses)):
        wrong = next(loss for loss in losses if not math.isfinite(loss))
        raise DataError(
            f"a loss is {wrong}, so texts cannot be ranked; name a checkpoint whose weights are "
            "finite numbers"
        )
    of_references = losses[len(canaries) :]
    found = []
    for text, loss in zip(canaries, losses[: len(canaries)], strict=True):
        lower = sum(other < loss for other in of_references)
        equal = sum(other == loss for other in of_references)
        rank = 1 + lower + equal // 2
        bits = math.log2(len(of_references) + 1) - math.log2(rank)
        found.append(Exposure(text, loss, rank, bits))
    return found


def summarise_exposures(exposures: Iterable[Exposure]) -> dict[str, float]:
    """Return the mean, the least and the largest exposure in bits."""
    bits = [exposure.bits for exposure in exposures]
    return {"mean": sum(bits) / len(bits), "least": min(bits), "largest": max(bits)}
