"""Tallies of a curation as Parquet tables, for each step by source and language.

tallies/steps.parquet       documents and bytes that each step dropped first, and by itself
tallies/sources.parquet     documents and bytes seen and kept
tallies/histograms.parquet  documents by the value of each signal that a rule bounds
tallies/hosts.parquet       pages of each host, and how much of them was extracted
tallies/quarantine.parquet  records that gave no document, by reason
tallies/samples.parquet     a few documents that fell, for each step
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from trainrig import manifest, storage
from trainrig.corpus.filters.rule_verdicts import NO_LANGUAGE, choose_edges
from trainrig.corpus.report.hosts import HostRow, build_host_rows
from trainrig.manifest import FileSum

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
class PairRow:
    """A near-duplicate, and the document kept in its place."""

    id: str  # id of the dropped document
    url: str
    text: str
    kept_url: str
    kept_text: str
    similarity: float  # Jaccard similarity of their shingles


@dataclass(frozen=True)
class CurationTallies:
    """The tables of one curation."""

    steps: tuple[StepRow, ...]
    sources: tuple[SourceRow, ...]
    bins: tuple[BinRow, ...]
    quarantine: tuple[QuarantineRow, ...]
    samples: tuple[SampleRow, ...]
    pairs: tuple[PairRow, ...]
    hosts: tuple[HostRow, ...]  # lowest median share first

    def save(self, folder: str) -> dict[str, FileSum]:
        """Write the tables below `folder`; return file sums by relative name."""
        files = {}
        for name, model, rows in (
            ("steps", StepRow, self.steps),
            ("sources", SourceRow, self.sources),
            ("histograms", BinRow, self.bins),
            ("quarantine", QuarantineRow, self.quarantine),
            ("samples", SampleRow, self.samples),
            ("pairs", PairRow, self.pairs),
            ("hosts", HostRow, self.hosts),
        ):
            below = f"{TALLIES}/{name}.parquet"
            path = storage.join(folder, below)
            table = pa.Table.from_pylist([asdict(row) for row in rows], _build_schema(model))
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


def _build_schema(model: type[Any]) -> pa.Schema:
    return pa.schema(
        [(name, _TYPES[_read_name(kind)]) for name, kind in model.__annotations__.items()]
    )


def _read_name(kind: Any) -> str:
    return kind.__name__ if isinstance(kind, type) else str(kind)


def tally_curation(
    rules: Mapping[str, Any],
    written: Mapping[str, Any],
    samples: Mapping[str, Sequence[Mapping[str, Any]]],
    pairs: Sequence[Mapping[str, Any]],
    integers: frozenset[str],
) -> CurationTallies:
    """Build the tallies of a curation from the counts of its passes.

    Args:
        rules: counts of the rules pass: "tally" and "histograms" by source.
        written: counts of the write pass: "kept" and "copies" by source and language;
        "quarantined"; "hosts", documents by host and by the percentage extracted.
        samples: dropped documents, by step.
        pairs: near-duplicates with the documents kept in their place.
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
        hosts=build_host_rows(written["hosts"]),
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
