"""What a stage costs its driver for each split, host and document, counted upward to 100 TB.

The sizes are small here and whole in the long form: 100,000 splits, 10 million hosts, the keys of
100 million documents. A bucket answers after 20 ms: moto, behind a proxy that counts requests.
"""

import gc
import json
import os
import pickle
import sys
import time
import tracemalloc
from collections.abc import Callable, Iterator, Mapping
from typing import Any
from unittest import mock

import numpy as np
import psutil
import pyarrow as pa
import pytest
from support.s3_proxy import Proxy

from trainrig.corpus.dedup.document_refs import SplitIndex
from trainrig.corpus.dedup.duplicate_search import MIB, plan_partitions
from trainrig.corpus.documents import Parts
from trainrig.corpus.report.host_tallies import HOST_COUNTS, build_host_table, sum_host_counts
from trainrig.corpus.stages import near_duplicates
from trainrig.manifest import FileSum
from trainrig.ray_runtime import ray_session, split_workers
from trainrig.ray_runtime.split_processing import map_splits
from trainrig.splits import Phase, Split, Work, sum_counts

pytestmark = pytest.mark.slow

FEW = {"splits": 1_200, "named": 10_000, "hosts": 200_000}
MANY = {"splits": 100_000, "named": 100_000, "hosts": 10_000_000}
SIZES = pytest.mark.parametrize(
    "sizes",
    [
        pytest.param(FEW, id="few"),
        pytest.param(MANY, id="many", marks=[pytest.mark.soak, pytest.mark.timeout(7_200)]),
    ],
)
DOCUMENTS = 1_000  # documents in a split
BANDS = 14

# Bounds of the driver, each about twice what was measured: see docs/evidence/scale.md.
CPU_OF_SPLIT = 0.006  # s
MEMORY_OF_SPLIT = 30_000  # bytes, without those that Ray takes
RAY_OF_SPLIT = 95_000  # bytes that the process grows by, with Ray's
FIRST_REQUESTS = 10
REQUESTS_OF_SECOND = 3  # above FIRST_REQUESTS; a batch of records is written and read again
TASK_BYTES = 4_000
BYTES_OF_HOST = 150
BYTES_OF_INDEX = 400  # of a split in a search for duplicates


def make_splits(count: int) -> list[Split]:
    """Return splits with tasks like those of a crawl."""
    return [
        Split(
            name,
            {
                "name": name,
                "source": 0,
                "pieces": [{"path": f"s3://crawl/segments/{n}.warc.gz", "begin": 0, "end": n}],
            },
        )
        for n in range(count)
        for name in [f"crawl-{n:06d}"]
    ]


def make_work() -> Work:
    """Return work that does nothing, and counts what applying rules to a split counts."""

    def work(task: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, FileSum]]:
        files = {
            f"{part}/{task['name']}.parquet": FileSum(bytes=2**20, sha256="0" * 64)
            for part in ("kept", "dropped", "quarantine")
        }
        return make_counts(task["name"]), files

    return work


def make_counts(name: str) -> dict[str, Any]:
    """Return counts of the size of those in *judge*, by rule, language and histogram."""
    seed = int(name.rpartition("-")[2])
    languages = {
        code: {"documents": seed % 89 + place, "bytes": 7_919 * (seed % 97 + place)}
        for place, code in enumerate(("be", "cs", "de", "en", "fr", "no", "pl", "ru"))
    }
    rules = {f"rule_{number}": languages for number in range(14)}
    bins = {str(number): seed % (3 + number) for number in range(18)}
    histograms = {f"column_{number}": bins for number in range(15)}
    tally = {"seen": languages, "passed": languages, "rules": rules}
    return {"documents": DOCUMENTS, "tally": {"web": tally}, "histograms": {"web": histograms}}


def trace(act: Callable[[], object]) -> int:
    """Return the most bytes of Python and numpy that `act` holds at a time."""
    tracemalloc.start()
    try:
        act()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.fixture
def ray_cluster() -> Iterator[None]:
    """Start a local Ray, whose workers can load what this file defines."""
    with mock.patch.dict(os.environ):
        os.environ.pop("RAY_ADDRESS", None)
        ray_session.connect(2, "tests")
        import ray

        ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])
        yield
        ray.cloudpickle.unregister_pickle_by_value(sys.modules[__name__])


@pytest.mark.ray
@pytest.mark.usefixtures("ray_cluster")
@SIZES
def test_a_split_costs_the_driver_little_cpu_memory_and_few_requests(
    s3: str, proxy: Proxy, sizes: Mapping[str, int], capsys: pytest.CaptureFixture[str]
) -> None:
    splits = make_splits(sizes["splits"])
    phase = Phase(f"{s3}/done", make_work, title="scale: do nothing")
    map_splits(Phase(f"{s3}/warm", make_work), splits[:40], 2)
    proxy.delay = 0.02
    proxy.count()
    process = psutil.Process()
    gc.collect()  # what earlier tests left is not this test's
    held = process.memory_info().rss
    began = time.process_time(), time.monotonic()
    map_splits(phase, splits, 2)
    counts = sum_counts(record.counts for record in phase.iterate_results(splits))
    cpu = (time.process_time() - began[0]) / len(splits)
    seconds = time.monotonic() - began[1]
    gc.collect()  # a process that holds many objects seldom collects by itself
    grown = (process.memory_info().rss - held) / len(splits)
    requests = proxy.count()
    assert counts["documents"] == DOCUMENTS * len(splits)
    with capsys.disabled():
        print(f"\nsplits: {1e3 * cpu:.1f} ms, {grown:,.0f} bytes each")
        print(f"requests: {requests} in {seconds:.0f} s")
    assert cpu < CPU_OF_SPLIT
    assert grown < RAY_OF_SPLIT
    assert sum(requests.values()) < FIRST_REQUESTS + REQUESTS_OF_SECOND * seconds


@SIZES
def test_the_driver_holds_little_for_each_split(
    s3: str, sizes: Mapping[str, int], capsys: pytest.CaptureFixture[str]
) -> None:
    splits = make_splits(sizes["named"])
    phase = Phase(f"{s3}/done", make_work)

    def run() -> None:
        map_splits(phase, splits, 0)
        assert sum(len(record.files) for record in phase.iterate_results(splits)) == 3 * len(splits)

    held = trace(run) / len(splits) + pa.default_memory_pool().max_memory() / len(splits)
    with capsys.disabled():
        print(f"\nmemory: {held:,.0f} bytes for each split")
    assert held < MEMORY_OF_SPLIT


def test_the_counts_of_a_split_are_as_large_as_those_of_curation() -> None:
    sizes = {len(json.dumps(make_counts(split.name))) for split in make_splits(200)}
    assert 7_000 < min(sizes) < max(sizes) < 9_000


def test_a_task_has_the_same_size_for_any_number_of_splits() -> None:
    from ray import cloudpickle

    def measure(count: int) -> int:
        splits = make_splits(count)
        pool = Parts("s3://bucket/out", {split.name: 3 for split in splits})
        (first, *_) = pool.add_to_tasks(splits)
        shared = split_workers.SharedPhase("0" * 32, None, "curate: write documents")
        task = split_workers.make_row(first), split_workers.name_function(shared)
        return len(cloudpickle.dumps(task)) + len(pickle.dumps(pool.without_splits()))

    assert measure(100_000) == measure(10) < TASK_BYTES


@SIZES
def test_a_host_takes_little_memory_of_the_driver(sizes: Mapping[str, int]) -> None:
    tables = [
        pa.table(
            [
                [f"www.host-{number:08d}.example" for number in range(first, first + 1_000)],
                np.full(1_000, 90),
                np.full(1_000, 2),
            ],
            HOST_COUNTS,
        )
        for first in range(0, sizes["hosts"], 1_000)
    ]
    summed = sum_host_counts(tables)
    assert len(summed) == sizes["hosts"]
    assert summed.nbytes + build_host_table(summed).nbytes < BYTES_OF_HOST * sizes["hosts"]


@SIZES
def test_the_search_for_duplicates_is_planned_in_little_memory(sizes: Mapping[str, int]) -> None:
    """Plan the search in the keys of a thousand documents for each split."""
    found = []

    def plan() -> None:
        indexes = tuple(
            SplitIndex(
                split.name,
                0,
                False,
                **near_duplicates.build_paths("s3://bucket/out/scratch/decision", split.name),
                count=DOCUMENTS,
                shingles=300 * DOCUMENTS,
            )
            for split in make_splits(sizes["named"])
        )
        found.append(plan_partitions(indexes, BANDS, 8_192 * MIB))
        found.append(len(pickle.dumps(indexes)))

    held = trace(plan)
    cut, sent = found
    assert held < 4 * MEMORY_OF_SPLIT * sizes["named"]
    assert sent < BYTES_OF_INDEX * sizes["named"]  # a worker fetches this once for each pass
    assert len(cut.partitions) <= 1 + sizes["named"] // 500
