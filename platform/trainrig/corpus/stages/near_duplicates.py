"""Files that a curation keeps of its near-duplicate search, and reuse of those of earlier ones.

OUTPUT/copies/  index.json  documents/SPLIT.npz  pairs/SPLIT.parquet  revoked.parquet
                    signatures/SPLIT.arrow (`index = true`)

With the first three, a curation with another threshold need not compute signatures again. With the
signatures, a later crawl can be deduplicated against this one.
"""

import dataclasses
import json
import logging
import shutil
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from trainrig import manifest, storage
from trainrig.config import extract_identity
from trainrig.corpus.array_files import load_arrays
from trainrig.corpus.curation_settings import Curation
from trainrig.corpus.dedup.dedup_decisions import COPIES, Documents, format_partners
from trainrig.corpus.dedup.document_refs import SplitIndex, format_ids, parse_ids
from trainrig.corpus.dedup.duplicate_search import MIB, DuplicateSearch, plan_partitions
from trainrig.corpus.dedup.keep_rules import KeepFeatures
from trainrig.corpus.dedup.search_passes import DuplicatesFound, name_revoked_file
from trainrig.corpus.operators.decision_operators import convert_to_numpy
from trainrig.corpus.signatures.signatures import Signatures
from trainrig.corpus.stages.apply_rules import PathBuilder
from trainrig.errors import DataError
from trainrig.manifest import FileSum, Manifest
from trainrig.splits import Phase, Split

FOLDER = "copies"
INDEX = f"{FOLDER}/index.json"
REVOKED = f"{FOLDER}/revoked.parquet"
FORMAT = 1
_PARTS = {"documents": "npz", "pairs": "parquet", "signatures": "arrow"}

# These settings influence neither signatures nor pairs.
_LATER = (
    "keep_dropped",
    "keep_copies",
    "buckets",
    "index",
    "site_lines",
    "common_lines",
    "exact_substrings",
    "decontamination",
)
_LATER_OF_SIGNATURES = ("threshold", "permutations", "recall")

_REVOKED = pa.schema(
    [
        ("against", pa.int64()),  # index in the setting `against`, from 0
        ("id", pa.string()),
        ("dropped_by", pa.string()),
        ("duplicate_of", pa.string()),
        ("similarity", pa.float64()),
    ]
)

log = logging.getLogger(__name__)


def build_paths(folder: str, split: str) -> dict[str, str]:
    """Return the path of each file of a split below `folder`, keyed by its kind."""
    return {
        part: storage.join(folder, part, f"{split}.{ending}") for part, ending in _PARTS.items()
    }


def save_documents(
    run: Curation,
    source: int,
    signatures: Signatures,
    columns: Sequence[pa.Table],
    folder: str,
    split: str,
) -> dict[str, int]:
    """Write the documents and signatures of a split.

    `columns` holds the columns of the keep rule, in pieces. Returns the counts, and the sizes of
    the files in bytes, by which a torn file is recognised later.
    """
    measured = KeepFeatures(
        signatures.characters,
        signatures.digests,
        run.sources[source].name,
        source,
        {
            name: np.concatenate([convert_to_numpy(piece[name]) for piece in columns])
            for name in (run.keep_rule.columns if columns else ())
        },
    )
    paths = build_paths(folder, split)
    Documents(
        parse_ids(signatures.ids.tolist()),
        run.keep_rule.rank_documents(measured),
        signatures.digests,
        signatures.urls,
    ).save(paths["documents"])
    signatures.save(paths["signatures"])
    return {
        "documents": len(signatures.ids),
        "shingles": len(signatures.shingles),
        "documents_bytes": storage.measure_size(paths["documents"]),
        "signatures_bytes": storage.measure_size(paths["signatures"]),
    }


def forget_torn(phase: Phase, splits: Sequence[Split], folder: str) -> None:
    """Forget the splits whose files have another size than recorded, and log a warning for each."""
    left = {split.name for split in phase.find_unfinished(splits)}
    done = [split for split in splits if split.name not in left]
    there = storage.list_sizes(folder) if done else {}
    torn = []
    for record in phase.iterate_results(done):
        for part in ("documents", "signatures"):
            path = build_paths(folder, record.name)[part]
            wanted = record.counts[f"{part}_bytes"]
            if there.get(path) != wanted:
                log.warning(
                    "%s: the file is truncated (%s bytes of %s); its signatures are computed again",
                    path,
                    there.get(path, 0),
                    wanted,
                )
                torn.append(record.name)
                break
    if torn:
        phase.tables.forget(torn)


def search_for(
    run: Curation, split_indexes: Sequence[SplitIndex], path_of: PathBuilder, bands: int
) -> DuplicateSearch:
    """Return the duplicate search of `run`, planned to stay within its memory, and log the plan."""
    cut = plan_partitions(split_indexes, bands, run.memory * MIB)
    log.info(
        (
            "%s: searching near-duplicates among %s documents, in %s and %s, with up to %s MiB per "
            "worker"
        ),
        run.output,
        f"{sum(split_index.count for split_index in split_indexes):,}",
        f"{len(cut.partitions):,} {'partition' if len(cut.partitions) == 1 else 'partitions'}",
        f"{cut.parts:,} {'part' if cut.parts == 1 else 'parts'}",
        f"{-(-cut.bytes // MIB):,}",
    )
    return DuplicateSearch(
        tuple(split_indexes),
        cut,
        run.near_duplicates,
        run.verification,
        run.keep_rule,
        run.url_duplicates,
        run.keep_copies == "none",
        path_of,
    )


# Inputs that pairs depend on


def _describe_signatures(run: Curation) -> dict[str, Any]:
    """Return the settings that two crawls must share to be compared."""
    near = extract_identity(run.near_duplicates)
    kept = {name: value for name, value in near.items() if name not in _LATER_OF_SIGNATURES}
    return {"near_duplicates": kept, "keep_rule": extract_identity(run.keep_rule)}


def _fingerprint_pairs(run: Curation) -> str:
    """Return the fingerprint of all settings that pairs depend on."""
    whole = extract_identity(run)
    for name in _LATER:
        whole.pop(name, None)
    for source in whole["sources"]:
        source.pop("wipe_out")
    for name in _LATER_OF_SIGNATURES:
        whole["near_duplicates"].pop(name)
    return manifest.digest(whole)


def pairs_are_known(run: Curation) -> bool:
    """Return whether the finished output of `run` already holds the pairs that it needs."""
    path = storage.join(run.output, INDEX)
    if not storage.exists(path):
        return False
    there = json.loads(storage.read(path))
    if there["format"] != FORMAT or there["signed"] != _fingerprint_pairs(run):
        return False
    folder = storage.join(run.output, FOLDER)
    needed = [build_paths(folder, name)["signatures"] for name in there["splits"]]
    return not run.index or set(needed) <= set(storage.list_files(folder))


def read_known_splits(run: Curation) -> Mapping[str, tuple[int, int]]:
    """Return the number of documents and of shingles of each split of a finished output."""
    index: dict[str, Any] = json.loads(storage.read(storage.join(run.output, INDEX)))
    return index["splits"]  # type: ignore[no-any-return]


def with_known_pairs(run: Curation, found: DuplicatesFound) -> DuplicatesFound:
    """Return `found` with the pair counts of the finished output whose pairs are reused."""
    pairs: dict[str, int] = json.loads(storage.read(storage.join(run.output, INDEX)))["pairs"]
    return dataclasses.replace(found, candidates=pairs["candidates"], evidence=pairs["evidence"])


def write_index(
    run: Curation, folder: str, search: DuplicateSearch, found: DuplicatesFound
) -> dict[str, FileSum]:
    """Write the index of near-duplicates of an output, and the documents revoked in earlier ones.

    The index holds the settings of the search. Returns the file sums, by name below the output.
    """
    own = [split_index for split_index in search.split_indexes if not split_index.earlier]
    index = {
        "format": FORMAT,
        "made_with": _describe_signatures(run),
        "signed": _fingerprint_pairs(run),
        "splits": {
            split_index.name: [split_index.count, split_index.shingles] for split_index in own
        },
        "pairs": {"candidates": found.candidates, "evidence": found.evidence},
    }
    storage.write(storage.join(folder, INDEX), json.dumps(index, indent=1).encode())
    names = [INDEX]
    if run.against:
        _write_revoked(run, storage.join(folder, REVOKED), search)
        names.append(REVOKED)
    return {name: manifest.compute_file_sum(storage.join(folder, name)) for name in names}


def keep_files(
    run: Curation, split: str, searched: str, path_of: PathBuilder, folder: str
) -> dict[str, str]:
    """Copy the files of a split that are kept into the output.

    `searched` is the folder of the files of the search. Returns the paths of the copies, keyed by
    their name below the output.
    """
    found = build_paths(searched, split)
    sources = {"documents": path_of("decided", f"{split}.npz"), "pairs": found["pairs"]}
    if run.index:
        sources["signatures"] = found["signatures"]
    targets = build_paths(storage.join(folder, FOLDER), split)
    files = {}
    for part, source in sources.items():
        with storage.atomic_file(targets[part]) as temporary:
            shutil.copyfile(storage.fetch_local_path(source), temporary)
        files[f"{FOLDER}/{part}/{targets[part].rpartition('/')[2]}"] = targets[part]
    return files


# Earlier crawls


def check_earlier(run: Curation) -> dict[str, str]:
    """Return the fingerprints of the earlier outputs in `against`, by position.

    Raises DataError if an output has no index, or has one made with other settings.
    """
    found = {}
    for number, path in enumerate(run.against):
        made = manifest.read_input(path, run.verb)
        _read_index(run, path, made)
        found[f"against {number}"] = made.content
    return found


def list_earlier_split_indexes(run: Curation) -> list[SplitIndex]:
    """Return the split indexes of the earlier outputs in `against`."""
    split_indexes = []
    for crawl, path in enumerate(run.against):
        splits = _read_index(run, path, manifest.read_manifest(path))["splits"]
        for name, (count, shingles) in sorted(splits.items()):
            paths = build_paths(storage.join(path, FOLDER), name)
            split_indexes.append(
                SplitIndex(name, crawl, True, **paths, count=count, shingles=shingles)
            )
    return split_indexes


def _read_index(run: Curation, path: str, made: Manifest) -> Mapping[str, Any]:
    if INDEX not in made.files:
        raise DataError(f"{path}: the folder has no {INDEX}; curate it again with `index = true`")
    index: dict[str, Any] = json.loads(storage.read(storage.join(path, INDEX)))
    if index["format"] > FORMAT:
        raise DataError(
            f"{path}: its index has format {index['format']}, but this trainrig reads up to "
            f"{FORMAT}; upgrade it"
        )
    if differing := manifest.describe_table_difference(
        index["made_with"], _describe_signatures(run)
    ):
        raise DataError(
            f"{path}: its index was made with other settings ({differing}), so documents cannot "
            "be compared with it; set the same here, or curate it again"
        )
    if not all(f"{FOLDER}/signatures/{name}.arrow" in made.files for name in index["splits"]):
        raise DataError(
            f"{path}: the folder has no signatures; curate it again with `index = true`, which "
            "reads no page again"
        )
    return index


def _write_revoked(run: Curation, path: str, search: DuplicateSearch) -> None:
    tables = [_REVOKED.empty_table()]
    for number, split_index in enumerate(search.split_indexes):
        if split_index.earlier:
            found = load_arrays(name_revoked_file(search, number))
            tables.append(
                pa.table(
                    {
                        "against": np.full(len(found["ids"]), split_index.crawl),
                        "id": format_ids(found["ids"]),
                        "dropped_by": [COPIES[kind - 1] for kind in found["kinds"].tolist()],
                        "duplicate_of": format_partners(found["repeated"]),
                        "similarity": pa.array(found["similarities"], from_pandas=True),
                    },
                    _REVOKED,
                )
            )
    table = pa.concat_tables(tables)
    with storage.atomic_file(path) as temporary:
        pq.write_table(table, temporary, compression="zstd")
    if len(table):
        log.warning(
            "%s: documents here are better duplicates of %s kept in earlier outputs; see %s",
            run.output,
            f"{len(table):,} {'document' if len(table) == 1 else 'documents'}",
            REVOKED,
        )
