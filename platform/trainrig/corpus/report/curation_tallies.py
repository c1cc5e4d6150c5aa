"""Tallies of a curation as Parquet tables, for each step by source and language.

tallies/steps.parquet       documents and bytes that each step dropped first, and by itself
tallies/sources.parquet     documents and bytes seen and kept
tallies/histograms.parquet  documents by the value of each signal that a rule bounds
tallies/hosts.parquet       pages of each host, and how much of them was extracted
tallies/quarantine.parquet  records that gave no document, by reason
tallies/samples.parquet     a few documents that fell, for each step

`LikePairs` samples near-duplicates in a split, with the documents kept in their place.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from trainrig import manifest, storage
from trainrig.corpus.array_files import load_arrays
from trainrig.corpus.dedup.dedup_decisions import BY_LIKENESS, KEPT
from trainrig.corpus.dedup.document_refs import format_ids
from trainrig.corpus.filters.rule_verdicts import NO_LANGUAGE, choose_edges
from trainrig.corpus.report.host_tallies import build_host_table
from trainrig.manifest import FileSum

MOST_PAIRS = 3  # pairs in a report
EXCERPT = 2000  # characters of each text


@dataclass(frozen=True)
class PairRow:
    """A near-duplicate, and the document kept in its place, as they were compared."""

    id: str  # id of the dropped document
    url: str
    text: str
    kept_url: str
    kept_text: str
    similarity: float  # Jaccard similarity of their shingles


class LikePairs:
    """Pairs of a dropped document and its kept duplicate within one split.

    Those with the lowest ids are chosen: ids are digests, so this is a random sample, and it needs
    no data of other splits.
    """

    def __init__(self, settled: str) -> None:
        there = load_arrays(settled, ["ids", "kinds", "repeated", "similarities"])
        fell = np.flatnonzero(there["kinds"] == BY_LIKENESS)
        kept = there["ids"][there["kinds"] == KEPT]
        fell = fell[np.isin(there["repeated"][fell, 0], kept[:, 0])]
        order = np.lexsort((there["ids"][fell, 1], there["ids"][fell, 0]))
        chosen = fell[order][:MOST_PAIRS]
        ids = format_ids(there["ids"][chosen])
        partners = format_ids(there["repeated"][chosen])
        self._partners = dict(zip(ids, partners, strict=True))
        self._similarities = dict(zip(ids, there["similarities"][chosen].tolist(), strict=True))
        self._rows: dict[str, dict[str, str]] = {}

    def add(self, rows: pa.Table) -> None:
        """Collect the texts of the pairs from some rows of the split, before any span removal."""
        wanted = pa.array([*self._partners, *self._partners.values()], pa.string())
        found = rows.select(["id", "url", "text"]).filter(pc.is_in(rows["id"], wanted))
        for row in found.to_pylist():
            self._rows[row["id"]] = row | {"text": row["text"][:EXCERPT]}

    def to_json(self) -> list[dict[str, Any]]:
        """Return the pairs as JSON objects."""
        return [
            asdict(
                PairRow(
                    **self._rows[fell],
                    kept_url=self._rows[kept]["url"],
                    kept_text=self._rows[kept]["text"],
                    similarity=self._similarities[fell],
                )
            )
            for fell, kept in self._partners.items()
            if fell in self._rows and kept in self._rows
        ]


TALLIES = "tallies"
# A rule of thumb for English and byte-pair encodings of 32,000 or more entries; a tokenizer's
# report has the figure for its vocabulary.
BYTES_PER_TOKEN = 4.3


@dataclass(frozen=True)
class StepRow:
    """Counts of one source's documents in one language that one step dropped."""

    step: str  # "GopherQuality.word_count", "near_duplicate"
    source: str
    language: str
    first_documents: int  # not dropped by an earlier step
    first_bytes: int
    any_documents: int  # would be dropped by this step alone
    any_bytes: int


@dataclass(frozen=True)
class SourceRow:
    """Documents and bytes of one source in one language."""

    source: str
    language: str
    seen_documents: int
    seen_bytes: int
    kept_documents: int
    kept_bytes: int


@dataclass(frozen=True)
class BinRow:
    """Number of documents of a source with a signal from `least` to below `below`."""

    signal: str
    source: str
    least: float
    below: float | None
    documents: int


@dataclass(frozen=True)
class QuarantineRow:
    """Number of records that gave no document, for one reason."""

    reason: str
    records: int


@dataclass(frozen=True)
class SampleRow:
    """A dropped document, shown as an excerpt."""

    step: str
    id: str
    url: str
    language: str
    text: str


@dataclass(frozen=True)
class CurationTallies:
    """The tables of one curation."""

    steps: tuple[StepRow, ...]
    sources: tuple[SourceRow, ...]
    bins: tuple[BinRow, ...]
    quarantine: tuple[QuarantineRow, ...]
    samples: tuple[SampleRow, ...]
    pairs: tuple[PairRow, ...]
    hosts: pa.Table  # table of HOSTS in `host_tallies`

    def save(self, folder: str) -> dict[str, FileSum]:
        """Write the tables below `folder`; return file sums by relative name."""
        files = {}
        for name, table in (
            ("steps", _build_table(StepRow, self.steps)),
            ("sources", _build_table(SourceRow, self.sources)),
            ("histograms", _build_table(BinRow, self.bins)),
            ("quarantine", _build_table(QuarantineRow, self.quarantine)),
            ("samples", _build_table(SampleRow, self.samples)),
            ("pairs", _build_table(PairRow, self.pairs)),
            ("hosts", self.hosts),
        ):
            below = f"{TALLIES}/{name}.parquet"
            path = storage.join(folder, below)
            with storage.atomic_file(path) as temporary:
                pq.write_table(table, temporary, compression="zstd")
            files[below] = manifest.compute_file_sum(path)
        return files


_TYPES = {
    "str": pa.string(),
    "int": pa.int64(),
    "float": pa.float64(),
    "float | None": pa.float64(),
}


def _build_table(model: type[Any], rows: Sequence[Any]) -> pa.Table:
    schema = pa.schema(
        [(name, _TYPES[_read_name(kind)]) for name, kind in model.__annotations__.items()]
    )
    return pa.Table.from_pylist([asdict(row) for row in rows], schema)


def _read_name(kind: Any) -> str:
    return kind.__name__ if isinstance(kind, type) else str(kind)


def tally_curation(
    rules: Mapping[str, Any],
    written: Mapping[str, Any],
    samples: Mapping[str, Sequence[Mapping[str, Any]]],
    pairs: Sequence[Mapping[str, Any]],
    hosts: pa.Table,
    integers: frozenset[str],
) -> CurationTallies:
    """Build the tallies of a curation from the counts of its passes.

    Args:
        rules: counts of the rules pass: "tally" and "histograms" by source.
        written: counts of the write pass: "kept" and "copies" by source and language;
        "quarantined".
        samples: dropped documents, by step.
        pairs: near-duplicates with the documents kept in their place.
        hosts: documents by host and by the percentage extracted, a table of HOST_COUNTS.
        integers: the signals whose histograms have bins for counts.
    """
    return CurationTallies(
        steps=tuple(_build_step_rows(rules["tally"], written["copies"])),
        sources=tuple(_build_source_rows(rules["tally"], written["kept"])),
        bins=tuple(_build_bin_rows(rules["histograms"], integers)),
        quarantine=tuple(
            QuarantineRow(reason, records)
            for reason, records in sorted(
                written["quarantined"].items(), key=lambda item: (-item[1], item[0])
            )
        ),
        samples=tuple(
            SampleRow(step, document["id"], document["url"], document["language"], document["text"])
            for step, found in samples.items()
            for document in found
        ),
        pairs=tuple(PairRow(**pair) for pair in pairs),
        hosts=build_host_table(hosts),
    )


def _build_step_rows(tally: Mapping[str, Any], copies: Mapping[str, Any]) -> list[StepRow]:
    rows = [
        StepRow(
            rule,
            source,
            language,
            found.get("first_documents", 0),
            found.get("first_bytes", 0),
            found.get("any_documents", 0),
            found.get("any_bytes", 0),
        )
        for source, of_source in tally.items()
        for rule, languages in of_source["rules"].items()
        for language, found in (languages or {NO_LANGUAGE: {}}).items()
    ]
    # Duplicates are searched only among documents that passed, so both counts are equal.
    return rows + [
        StepRow(step, source, language, *(found["documents"], found["bytes"]) * 2)
        for source, steps in copies.items()
        for step, languages in steps.items()
        for language, found in languages.items()
    ]


def _build_source_rows(tally: Mapping[str, Any], kept: Mapping[str, Any]) -> list[SourceRow]:
    rows = []
    for source, of_source in tally.items():
        for language, seen in of_source["seen"].items():
            stays = kept.get(source, {}).get(language, {"documents": 0, "bytes": 0})
            sizes = (seen["documents"], seen["bytes"], stays["documents"], stays["bytes"])
            rows.append(SourceRow(source, language, *sizes))
    return rows


def _build_bin_rows(histograms: Mapping[str, Any], integers: frozenset[str]) -> list[BinRow]:
    rows = []
    for source, signals in histograms.items():
        for signal, counts in signals.items():
            edges = choose_edges(signal in integers)
            for number, documents in sorted((int(key), value) for key, value in counts.items()):
                below = float(edges[number + 1]) if number + 1 < len(edges) else None
                rows.append(BinRow(signal, source, float(edges[number]), below, documents))
    return rows
