"""Content of a folder of token shards, for `trainrig tokens inspect`.

Counts and lengths are exact. They come from the arrays that training reads, of which only a part is
in memory at a time. A few texts, chosen by a random seed, are shown.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from rich.text import Text

from trainrig import manifest, storage
from trainrig.config import suggest_choice
from trainrig.errors import ConfigError, DataError
from trainrig.report.number_formats import escape_invisible
from trainrig.tokens.batches import IGNORE
from trainrig.tokens.document_formats import name_place
from trainrig.tokens.permutation import Integers, permute_indices
from trainrig.tokens.row_view import RowPiece, render_row
from trainrig.tokens.rows.packing import BestFit, Concatenate, Packing, open_layout
from trainrig.tokens.shards.shard_files import LABELS
from trainrig.tokens.shards.token_shards import HELD_OUT, TRAIN, TokenShards
from trainrig.tokens.tokenizers.encode import Encoder

CHUNK = 2**20  # documents whose lengths are in memory at a time: 8 MiB
BAR = 40  # characters of the longest bar
SHOWN_TOKENS = 60  # tokens shown at each end of a text, in samples and rows


@dataclass(frozen=True)
class View:
    """Options for what is shown of each source of each split, in addition to its counts."""

    documents: int  # number of decoded documents
    rows: int  # number of rows with boundaries and masks
    sequence_length: int
    packing: Packing
    seed: int
    borders: bool  # mark where each token of a row ends
    mask: bool = False  # show documents with their loss mask instead of as text


@dataclass(frozen=True)
class SourceCounts:
    """Counts of one source of one split; lengths are in tokens and include end-of-text."""

    documents: int
    tokens: int
    shortest: int
    longest: int
    lengths: tuple[int, ...]  # entry i: number of documents of 2^i to 2^(i+1) - 1 tokens

    @property
    def mean(self) -> float:
        """Mean number of tokens of a document."""
        return self.tokens / self.documents


@dataclass(frozen=True)
class Inspection:
    """An opened folder of token shards: its splits, and the tokenizer that made them."""

    folder: str
    splits: Mapping[str, TokenShards]
    encoder: Encoder

    @classmethod
    def open(cls, folder: str, verify: bool = False) -> "Inspection":
        """Open a folder that `tokenize` or `conversations` wrote, or one split in it.

        `verify` reads all files and compares them with the checksums in the manifest. Raises
        DataError if a file is missing, has the wrong size or, with `verify`, wrong content.
        """
        below = [
            name for name in (TRAIN, HELD_OUT) if storage.find_first(storage.join(folder, name))
        ]
        name = folder.rstrip("/").rpartition("/")[2]
        opened = {split: TokenShards.open(storage.join(folder, split)) for split in below} or {
            name: TokenShards.open(folder)
        }
        base = folder if below else folder.rstrip("/").rpartition("/")[0] or "."
        made = next(iter(opened.values())).rows
        written = manifest.read_input(base, "tokenize" if made == "documents" else "conversations")
        if verify:
            manifest.verify_files(base, written)
        manifest.read_file(base, "tokenizer.json")  # checks its sum
        encoder = Encoder.load(storage.join(base, "tokenizer.json"))
        for split, shards in opened.items():
            if shards.vocabulary.fingerprint != encoder.fingerprint:
                raise DataError(
                    f"{folder}: {split} was made with a tokenizer other than the tokenizer.json "
                    f"in the folder; tokenize again"
                )
        return cls(folder, opened, encoder)

    def count_sources(self) -> dict[str, dict[str, SourceCounts]]:
        """Return the counts by split, then by source."""
        return {
            split: {source: count_source(shards, source) for source in shards.sources}
            for split, shards in self.splits.items()
        }

    def render_texts(self, view: "View", sources: Sequence[str] = ()) -> Iterator[Text]:
        """Yield all that `view` selects as text for a terminal; `sources` limits it to these.

        Rows are shown only for the training split, because the held-out split has no plans.
        """
        for split, source, counts in self._choose_sources(sources):
            yield Text(_format_headline(split, source, counts, self.splits[split]), style="bold")
            yield Text(render_histogram(counts))
            if view.mask:
                yield from self.show_loss_mask(split, source, view)
                continue
            for document in self.sample_documents(split, source, view.documents, view.seed):
                title = f"{document['url'] or document['id']}: {document['tokens']:,} tokens"
                yield Text(f"┃ {escape_invisible(title)}", style="bold")
                yield Text(cut_excerpt(document["text"]))
            if split != HELD_OUT and self.splits[split].rows == "documents":
                yield from self.render_rows(split, source, view)

    def build_json(self, view: "View", sources: Sequence[str] = ()) -> dict[str, Any]:
        """Return counts and sampled documents by split, then by source, as JSON values."""
        found: dict[str, Any] = {}
        for split, source, counts in self._choose_sources(sources):
            samples = self.sample_documents(split, source, view.documents, view.seed)
            found.setdefault(split, {})[source] = asdict(counts) | {"samples": samples}
        return found

    def _choose_sources(self, sources: Sequence[str]) -> list[tuple[str, str, SourceCounts]]:
        """Return the splits and sources to show; raise ConfigError if a source does not exist."""
        counts = self.count_sources()
        there = sorted({source for by_source in counts.values() for source in by_source})
        for source in sources:
            if source not in there:
                raise ConfigError(
                    f"{self.folder}: no source '{source}'{suggest_choice(source, there)}"
                )
        return [
            (split, source, source_counts)
            for split, by_source in counts.items()
            for source, source_counts in by_source.items()
            if not sources or source in sources
        ]

    def find_split(self, split: str, source: str | None = None) -> TokenShards:
        """Return the shards of a split. Raises ConfigError if it, or its `source`, is missing."""
        if split not in self.splits:
            raise ConfigError(
                f"{self.folder}: no split '{split}'{suggest_choice(split, self.splits)}"
            )
        shards = self.splits[split]
        if source is not None and source not in shards.sources:
            raise ConfigError(
                f"{self.folder}: no source '{source}' in {split}"
                f"{suggest_choice(source, shards.sources)}"
            )
        return shards

    def iterate_documents(self, split: str, source: str) -> Iterator[dict[str, Any]]:
        """Yield all documents of a source in order, with their ids and decoded text.

        Raises ConfigError if the split or the source does not exist.
        """
        shards = self.find_split(split, source)
        start = 0
        for document in shards.iterate_index(source):
            ids = shards.read_window(source, start, document.length)
            start += document.length
            yield {
                "id": document.id,
                "url": document.url,
                "tokens": document.length,
                "ids": ids,
                "text": self.encoder.decode(ids.tolist()),
            }

    def sample_documents(
        self, split: str, source: str, count: int, seed: int
    ) -> list[dict[str, Any]]:
        """Return `count` random documents with their id, URL, number of tokens and decoded text."""
        shards = self.splits[split]
        numbers = _draw_numbers(shards.count_documents(source), count, seed)
        starts = shards.find_document_starts(source, numbers)
        found = []
        for number, start in zip(numbers.tolist(), starts.tolist(), strict=True):
            document = shards.document(source, number)
            text = self.encoder.decode(shards.read_window(source, start, document.length).tolist())
            found.append(
                {"id": document.id, "url": document.url, "tokens": document.length, "text": text}
            )
        return found

    def show_loss_mask(self, split: str, source: str, view: "View") -> Iterator[Text]:
        """Yield random documents with what is trained on in colour, the rest between ‹ and ›.

        In shards of pairs, each chosen answer is followed by its rejected answer.
        """
        shards = self.splits[split]
        together = 2 if shards.rows == "pairs" else 1
        drawn = _draw_numbers(shards.count_documents(source) // together, view.documents, view.seed)
        for number in (drawn[:, None] * together + np.arange(together)).ravel().tolist():
            document = shards.document(source, number)
            start = int(shards.find_document_starts(source, np.array([number]))[0])
            ids = shards.read_window(source, start, document.length).astype(np.int64)
            weights = np.empty_like(ids)
            shards.read_weights(source, start, weights)
            following = np.append(np.where(weights > 0, ids, IGNORE)[1:], IGNORE)
            title = name_place(document.corpus_file, document.corpus_row)
            title += _describe_answer(shards, source, number)
            pieces = [RowPiece(0, title)]
            yield render_row(ids, following, pieces, self.encoder, borders=view.borders)

    def render_rows(self, split: str, source: str, view: "View") -> Iterator[Text]:
        """Yield random rows as training would read them, with their boundaries and masks."""
        if not view.rows:
            return
        shards = self.splits[split]
        layout = open_layout(view.packing, shards, view.sequence_length)
        windows = layout.windows(source)
        if not windows:
            tokens = f"{shards.tokens(source):,} tokens are less than a row of"
            yield Text(f"no row: {tokens} {view.sequence_length + 1:,}; lower --sequence-length")
        ids, targets = np.empty((2, view.sequence_length), np.int64)
        for window in _draw_numbers(windows, view.rows, view.seed).tolist():
            pieces = [
                RowPiece(place, name_document(shards, source, number))
                for place, number in layout.read(source, window, 1, ids, targets).tolist()
            ]
            yield Text(f"row {window:,} of {windows:,}", style="bold")
            yield render_row(
                ids, targets, pieces, self.encoder, tokens=SHOWN_TOKENS, borders=view.borders
            )


def _describe_answer(shards: TokenShards, source: str, number: int) -> str:
    """Return a suffix that says which answer a document is, in pairs and labelled answers."""
    if shards.rows == "pairs":
        return ", rejected" if number % 2 else ", chosen"
    if shards.rows == "labelled":
        liked = shards.read_document_values(LABELS, source, np.array([number]))[0]
        return ", liked" if liked else ", not liked"
    return ""


def choose_packing(kind: str, shuffled: bool) -> Packing:
    """Return the packing of this `kind`; raise ConfigError if there is none."""
    kinds: dict[str, Packing] = {
        "Concatenate": Concatenate(shuffle_documents=shuffled),
        "BestFit": BestFit(),
    }
    if kind not in kinds:
        raise ConfigError(f"--packing: no packing '{kind}'{suggest_choice(kind, kinds)}")
    if shuffled and kind == "BestFit":
        raise ConfigError("--shuffled: best-fit rows ignore the shuffle plan; leave it out")
    return kinds[kind]


def count_source(shards: TokenShards, source: str) -> SourceCounts:
    """Count documents and lengths exactly, in one pass over the starts of the documents."""
    documents = shards.count_documents(source)
    lengths = np.zeros(64, np.int64)
    shortest = shards.tokens(source)
    longest = 0
    for first in range(0, documents, CHUNK):
        numbers = np.arange(first, min(first + CHUNK, documents) + 1, dtype=np.int64)
        found = np.diff(shards.find_document_starts(source, numbers))
        # The exponent of the float is exact, because lengths are far below 2^53.
        lengths += np.bincount(np.frexp(found)[1] - 1, minlength=64)
        shortest = min(shortest, int(found.min()))
        longest = max(longest, int(found.max()))
    filled = int(np.flatnonzero(lengths)[-1]) + 1
    return SourceCounts(
        documents, shards.tokens(source), shortest, longest, tuple(lengths[:filled].tolist())
    )


def _format_headline(split: str, source: str, counts: SourceCounts, shards: TokenShards) -> str:
    share = counts.tokens / sum(shards.tokens(source) for source in shards.sources)
    return (
        f"{split} · {source}: {counts.documents:,} documents, {counts.tokens:,} tokens "
        f"({share:.1%}), {counts.mean:,.0f} a document ({counts.shortest:,} to {counts.longest:,})"
    )


def render_histogram(counts: SourceCounts) -> str:
    """Return the distribution of lengths as text bars, one line for each power of two."""
    first = next(index for index, documents in enumerate(counts.lengths) if documents)
    most = max(counts.lengths)
    lines = []
    for power in range(first, len(counts.lengths)):
        documents = counts.lengths[power]
        bar = "█" * round(BAR * documents / most) or ("▏" if documents else "")
        span = f"{2**power:,} to {2 ** (power + 1) - 1:,}"
        lines.append(f"  {span:>22} tokens  {bar} {documents:,}")
    return "\n".join(lines)


def cut_excerpt(text: str, characters: int = 400) -> str:
    """Return the beginning and the end of `text`, with control characters made visible."""
    if len(text) <= characters:
        return escape_invisible(text)
    half = characters // 2
    left_out = len(text) - 2 * half
    begin = escape_invisible(text[:half])
    end = escape_invisible(text[-half:])
    return f"{begin} … {left_out:,} characters … {end}"


def name_document(shards: TokenShards, source: str, number: int) -> str:
    """Return the URL or the id of a document, as its title."""
    document = shards.document(source, number)
    return document.url or document.id


def _draw_numbers(size: int, count: int, seed: int) -> Integers:
    """Return `count` different random numbers below `size`, or all of them."""
    return permute_indices(np.arange(min(count, size), dtype=np.int64), size, f"{seed}\ninspect")
