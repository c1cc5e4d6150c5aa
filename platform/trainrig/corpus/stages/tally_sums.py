"""Tallies of the splits, and their sums.

    tallies/0/SPLIT.json, .parquet     the counts and samples of one split, and its hosts
    tallies/1/NNNNN.json, .parquet     sums of FAN_IN splits; tallies/2/… sums of these, and so on

Tasks of the workers add tallies up, until one is left. So the driver reads one tally, and each
tally is read once, for any number of splits.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import itemgetter
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from trainrig import storage
from trainrig.corpus.curation_settings import Curation
from trainrig.corpus.documents import read_columns
from trainrig.corpus.report.curation_tallies import MOST_PAIRS, CurationTallies, tally_curation
from trainrig.corpus.report.host_tallies import HOST_COUNTS, sum_host_counts
from trainrig.corpus.row_schema import list_integer_columns
from trainrig.corpus.stages.apply_rules import PathBuilder
from trainrig.manifest import FileSum
from trainrig.splits import Split, Work, sum_counts

FAN_IN = 64  # tallies that one task adds up: some MB of hosts
SAMPLES = 3  # documents shown for each reason
RULES_TALLY = "tally.json"  # file of the rule tallies, by source
FOLDER = "tallies"


def write_tally(
    path_of: PathBuilder, level: int, name: str, told: Mapping[str, Any], hosts: pa.Table
) -> None:
    """Write the tally of a split (level 0) or a sum of tallies of the level below.

    Args:
        path_of: builder of the paths of this decision.
        level: number of times that tallies were added up.
        name: name of the split, or number of the sum.
        told: "samples" of dropped documents by step, "pairs" of near-duplicates, and "counts".
        hosts: table of HOST_COUNTS.
    """
    storage.write(path_of(FOLDER, str(level), f"{name}.json"), json.dumps(told).encode())
    with storage.atomic_file(path_of(FOLDER, str(level), f"{name}.parquet")) as temporary:
        pq.write_table(hosts, temporary, compression="zstd")


def sum_tallies(path_of: PathBuilder, level: int) -> Work:
    """Return the work of adding up tallies of `level - 1`."""

    def add(task: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, FileSum]]:
        told = [_read_told(path_of, level - 1, name) for name in task["tallies"]]
        samples: dict[str, list[dict[str, str]]] = {}
        for results in told:
            for step, found in results["samples"].items():
                samples.setdefault(step, []).extend(found)
        pairs = (pair for results in told for pair in results["pairs"])
        summed = {
            "samples": {step: _take_lowest(samples[step], SAMPLES) for step in sorted(samples)},
            "pairs": _take_lowest(pairs, MOST_PAIRS),
            "counts": sum_counts(results["counts"] for results in told),
        }
        hosts = sum_host_counts(_read_hosts(path_of, level - 1, name) for name in task["tallies"])
        write_tally(path_of, level, task["name"], summed, hosts)
        return {}, {}

    return add


def add_up(
    names: Sequence[str], run_tasks: Callable[[int, Sequence[Split]], None]
) -> tuple[int, str]:
    """Add up the tallies of all splits; return the level and the name of the sum.

    `run_tasks` performs `sum_tallies` of a level for all its tasks.
    """
    level = 0
    while level == 0 or len(names) > 1:
        level += 1
        groups = [names[first : first + FAN_IN] for first in range(0, len(names), FAN_IN)]
        tasks = [
            Split(name, {"name": name, "tallies": list(group)})
            for number, group in enumerate(groups)
            for name in [f"{number:05d}"]
        ]
        run_tasks(level, tasks)
        names = [task.name for task in tasks]
    return level, names[0]


def read_tallies(run: Curation, path_of: PathBuilder, level: int, name: str) -> CurationTallies:
    """Return the tallies of a curation, from the sum that `add_up` returned."""
    judged = json.loads(storage.read(path_of(RULES_TALLY)))
    told = _read_told(path_of, level, name)
    integers = list_integer_columns(run)
    hosts = _read_hosts(path_of, level, name)
    return tally_curation(judged, told["counts"], told["samples"], told["pairs"], hosts, integers)


def _read_told(path_of: PathBuilder, level: int, name: str) -> dict[str, Any]:
    told: dict[str, Any] = json.loads(storage.read(path_of(FOLDER, str(level), f"{name}.json")))
    return told


def _read_hosts(path_of: PathBuilder, level: int, name: str) -> pa.Table:
    return read_columns(path_of(FOLDER, str(level), f"{name}.parquet"), HOST_COUNTS.names)


def _take_lowest(found: Iterable[dict[str, Any]], most: int) -> list[dict[str, Any]]:
    """Return the documents with the lowest ids: ids are digests, so these are a random sample."""
    return sorted(found, key=itemgetter("id"))[:most]
