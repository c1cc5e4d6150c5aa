"""Curation: web archives in, documents out, each drop with its reason.

    OUTPUT/  kept/SPLIT.parquet  dropped/SPLIT.parquet  quarantine/SPLIT.jsonl  manifest.json

Three passes. *read* has a split for each file of input: it judges each page by itself, and signs
those that pass. *pairs* has one for each band of the signatures: it finds the documents that share
a key and verifies them on their shingles. *write* puts each document where it belongs. Between the
passes the driver decides on ids and numbers; texts never travel.
"""

import dataclasses
import fnmatch
import functools
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import Field, model_validator

from trainrig import manifest, storage
from trainrig.config import PLACE, RunFile
from trainrig.corpus.dedup import MinHash, NearDuplicates
from trainrig.corpus.dedup.pairs import fall
from trainrig.corpus.dedup.signatures import (
    Ranking,
    Signatures,
    band_pairs,
    load_arrays,
    save_arrays,
)
from trainrig.corpus.extract import NotExtracted
from trainrig.corpus.judge import COLUMNS, Source, judge, masked_url
from trainrig.corpus.read.warc import Unreadable, read_warc
from trainrig.corpus.rewrite.pii import PII
from trainrig.errors import DataError
from trainrig.manifest import FileSum, Manifest, Stage
from trainrig.ray_session import Progress, connect, map_splits
from trainrig.splits import Phase, Split, Work, total

KEPT, DROPPED, QUARANTINE = "kept", "dropped", "quarantine"


class Curation(RunFile):
    """`trainrig curate`: web archives to documents."""

    verb: ClassVar[str] = "curate"

    stage: Literal["curate"] = "curate"
    output: Annotated[str, PLACE]
    workers: Annotated[int, PLACE] = Field(default=2, ge=0)  # 0: in this process, without Ray
    sources: tuple[Source, ...] = Field(min_length=1)
    pii: PII = PII()
    near_duplicates: NearDuplicates = MinHash()
    # How much of a dropped document is kept: all of it, all but its text, or nothing.
    keep_dropped: Literal["text", "signals", "none"] = "text"

    @model_validator(mode="after")
    def _no_two_sources_share_a_name(self) -> Self:
        name, number = Counter(source.name for source in self.sources).most_common(1)[0]
        if number > 1:
            raise ValueError(f"{number} sources are named '{name}'; give each a name of its own")
        return self


def curate(run: Curation, progress: Progress | None = None) -> Manifest:
    """Curate as `run` says, going on where an earlier call stopped; the manifest of the output.

    The same bytes at any number of workers. Raises DataError for inputs that are missing or no
    archives, and if nothing is kept.
    """
    files = [files_of(source) for source in run.sources]
    inputs = {
        source.name: manifest.digest([storage.content_key(path) for path in paths])
        for source, paths in zip(run.sources, files, strict=True)
    }
    stage = manifest.claim(run.output, run, inputs)
    if stage.finished:
        return stage.finished
    splits = [
        Split(name, {"name": name, "source": index, "path": path})
        for index, (source, paths) in enumerate(zip(run.sources, files, strict=True))
        for number, path in enumerate(paths)
        for name in [f"{source.name}-{number:05d}"]
    ]
    with stage.undone_if_refused():
        if run.workers:
            connect(run.workers, "workers")
        passes = _Passes(run, stage, splits, progress)
        passes.read()
        passes.decide()
        return passes.write()


def files_of(source: Source) -> list[str]:
    """The files that the patterns of `source` name, each once. Raises DataError for none."""
    found = {path for pattern in source.paths for path in _matching(pattern)}
    # "./a" and "a" are one file.
    return sorted({path if path.startswith(storage.S3) else str(Path(path)) for path in found})


def _matching(pattern: str) -> list[str]:
    if storage.exists(pattern):
        return [pattern]
    wild = min((pattern.find(sign) for sign in "*?[" if sign in pattern), default=None)
    if wild is None:
        raise DataError(f"{pattern}: no such file; `paths` names WARC files, * is wild")
    folder = pattern[:wild].rpartition("/")[0] or "."
    names = storage.list_files(folder)
    wanted = pattern if "/" in pattern else f"./{pattern}"
    found = [name for name in names if fnmatch.fnmatchcase(name, wanted)]
    if not found:
        raise DataError(f"{pattern}: matches none of the {len(names)} files below {folder}")
    return found


@dataclass(frozen=True)
class _Passes:
    """The passes of one run, and what the driver does between them."""

    run: Curation
    stage: Stage
    splits: Sequence[Split]
    progress: Progress | None

    @property
    def bands(self) -> list[Split]:
        return [Split(f"band-{b:03d}", {"band": b}) for b in range(self.run.near_duplicates.bands)]

    def read(self) -> None:
        """Pages to judged documents and signatures."""
        self._map("read", functools.partial(_reading, self.run), self.splits, before=0)

    def decide(self) -> None:
        """Which of the documents that passed the rules repeat another."""
        decided = _scratch(self.run, "copies.json")
        if storage.exists(decided):
            return
        signatures = [_arrays(self.run, "signatures", split.name) for split in self.splits]
        ranking = Ranking.of(signatures)
        ranking.save(_scratch(self.run, "ranking.npz"))
        self._map(
            "pairs",
            functools.partial(_pairing, self.run, signatures),
            self.bands,
            before=len(self.splits),
        )
        found = [load_arrays(_arrays(self.run, "pairs", band.name)) for band in self.bands]
        pairs = np.concatenate([each["pairs"] for each in found])
        similarities = np.concatenate([each["similarities"] for each in found])
        copies = ranking.copies(fall(pairs, similarities))
        storage.write(decided, json.dumps(self._by_split(copies, signatures)).encode())

    def _by_split(
        self, copies: Mapping[int, Any], signatures: Sequence[str]
    ) -> dict[str, dict[int, Any]]:
        """The copies of each split, by their place among its documents that passed."""
        by_split: dict[str, dict[int, Any]] = {}
        first = 0
        for split, path in zip(self.splits, signatures, strict=True):
            count = len(load_arrays(path, ["ids"])["ids"])
            by_split[split.name] = {
                nth: dataclasses.asdict(copies[first + nth])
                for nth in range(count)
                if first + nth in copies
            }
            first += count
        return by_split

    def write(self) -> Manifest:
        """Each document to where it belongs; the manifest."""
        before = len(self.splits) + len(self.bands)
        phase = self._map("write", functools.partial(_writing, self.run), self.splits, before)
        records = phase.results(self.splits)
        counts = total(record.counts for record in records)
        if not counts["documents_kept"]:
            raise DataError(f"{self.run.output}: nothing was kept; {_why_nothing(counts)}")
        files = {name: entry for record in records for name, entry in record.files.items()}
        return self.stage.finish(counts, files)

    def _map(self, name: str, make_work: Any, splits: Sequence[Split], before: int) -> Phase:
        """Do one pass, its progress told as a part of all three."""
        phase = Phase(_scratch(self.run, "done", name), make_work)
        whole = 2 * len(self.splits) + len(self.bands)
        tell = self.progress or (lambda done, all_: None)
        map_splits(phase, splits, self.run.workers, lambda done, _: tell(before + done, whole))
        return phase


def _why_nothing(counts: Mapping[str, Any]) -> str:
    reasons = Counter(counts["dropped_by"]) + Counter(counts["quarantined"])
    if not reasons:
        return "the archives hold no page"
    worst = ", ".join(f"{reason} {number:,}" for reason, number in reasons.most_common(3))
    return f"of {counts['documents_in']:,} pages most fell by {worst}; loosen `filters`"


def _scratch(run: Curation, *names: str) -> str:
    return storage.join(run.output, manifest.SCRATCH, *names)


def _arrays(run: Curation, folder: str, name: str) -> str:
    return _scratch(run, folder, f"{name}.npz")


def _judged(run: Curation, name: str) -> str:
    return _scratch(run, "judged", f"{name}.parquet")


def _reading(run: Curation) -> Work:
    """The work of the first pass."""

    def read(task: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, FileSum]]:
        rows: list[dict[str, Any]] = []
        quarantined: list[dict[str, str]] = []
        for page in read_warc(task["path"]):
            if isinstance(page, Unreadable):
                if page.reason == "not_an_archive":
                    raise DataError(f"{task['path']}: not a WARC file; name archives in `paths`")
                # Without the folder: where archives lie must not show in the bytes of the output.
                folder = task["path"].rpartition("/")[0]
                where = page.where.removeprefix(f"{folder}/")
                quarantined.append({"where": where, "reason": page.reason})
                continue
            row = judge(run.sources[task["source"]], run.pii, page)
            if isinstance(row, NotExtracted):
                where = masked_url(page.url, run.pii)
                quarantined.append({"where": where, "reason": row.reason})
            else:
                rows.append(row)
        passed = [(row["id"], row["text"]) for row in rows if row["dropped_by"] is None]
        _write_table(_judged(run, task["name"]), rows)
        Signatures.of(passed, run.near_duplicates).save(_arrays(run, "signatures", task["name"]))
        lines = "".join(json.dumps(entry, ensure_ascii=False) + "\n" for entry in quarantined)
        path = storage.join(run.output, QUARANTINE, f"{task['name']}.jsonl")
        storage.write(path, lines.encode("utf-8", "surrogatepass"))
        return {}, {}

    return read


def _pairing(run: Curation, signatures: Sequence[str]) -> Work:
    """The work of the second pass."""
    ranking = Ranking.load(_scratch(run, "ranking.npz"))
    pairs_of = band_pairs(signatures, ranking, run.near_duplicates)

    def pair(task: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, FileSum]]:
        pairs, similarities = pairs_of(task["band"])
        path = _arrays(run, "pairs", f"band-{task['band']:03d}")
        save_arrays(path, {"pairs": pairs, "similarities": similarities})
        return {}, {}

    return pair


def _writing(run: Curation) -> Work:
    """The work of the last pass."""
    copies = json.loads(storage.read(_scratch(run, "copies.json")))

    def write(task: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, FileSum]]:
        name = task["name"]
        rows = pq.read_table(storage.local_path(_judged(run, name))).to_pylist()
        passed = [row for row in rows if row["dropped_by"] is None]
        for nth, copy in copies[name].items():
            passed[int(nth)] |= copy
        kept = [row for row in rows if row["dropped_by"] is None]
        dropped = [row for row in rows if row["dropped_by"] is not None]
        written = [f"{KEPT}/{name}.parquet", f"{QUARANTINE}/{name}.jsonl"]
        _write_table(storage.join(run.output, written[0]), kept)
        if run.keep_dropped != "none":
            written.append(f"{DROPPED}/{name}.parquet")
            hidden = {"text", "metadata"} if run.keep_dropped == "signals" else set()
            _write_table(storage.join(run.output, written[2]), dropped, hidden)
        quarantined = storage.read(storage.join(run.output, written[1])).splitlines()
        files = {path: manifest.file_sum(storage.join(run.output, path)) for path in written}
        return _counts(rows, kept, [json.loads(line)["reason"] for line in quarantined]), files

    return write


def _write_table(
    path: str, rows: Sequence[Mapping[str, Any]], hidden: frozenset[str] | set[str] = frozenset()
) -> None:
    table = pa.Table.from_pylist(list(rows), COLUMNS).drop_columns(sorted(hidden))
    with storage.atomic_file(path) as temporary:
        pq.write_table(table, temporary, compression="zstd")


def _counts(
    rows: Sequence[Mapping[str, Any]], kept: Sequence[Mapping[str, Any]], reasons: Sequence[str]
) -> dict[str, Any]:
    return {
        "documents_in": len(rows) + len(reasons),
        "documents_kept": len(kept),
        "bytes_kept": sum(len(row["text"].encode()) for row in kept),
        "kept_of": dict(Counter(row["source"] for row in kept)),
        "dropped_by": dict(Counter(row["dropped_by"] for row in rows if row["dropped_by"])),
        "quarantined": dict(Counter(reasons)),
        "masked": dict(Counter(span["kind"] for row in rows for span in row["pii"])),
    }


def read_rows(output: str, folder: str, columns: Sequence[str]) -> Iterator[dict[str, Any]]:
    """The documents in one folder (KEPT or DROPPED) of a curated output, file after file."""
    for path in storage.list_files(storage.join(output, folder), ".parquet"):
        yield from pq.read_table(storage.local_path(path), columns=list(columns)).to_pylist()
