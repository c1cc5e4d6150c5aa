"""Growth of curation's CPU seconds and memory with its input, in one process."""

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest
from support.side_by_side import print_result

from trainrig.corpus.curate import curate
from trainrig.corpus.curation_settings import Curation, CurationSource
from trainrig.ray_runtime.ray_session import connect

pytestmark = pytest.mark.bench

MEASURED = """
import gc, json, re, resource, sys, time
from pathlib import Path
from trainrig.corpus.curate import Curation, curate
from trainrig.corpus.curation_settings import CurationSource, WipeOut
from trainrig.corpus.filters.filters import Language, Length

def cpu_seconds():
    gc.collect()  # ends the child that extracts, so that its time counts
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime

output, given = sys.argv[1], json.loads(sys.argv[2])
all_may_go = WipeOut(max_share=1.0)
sources = tuple(
    CurationSource(name=name, paths=tuple(paths), wipe_out=all_may_go)
    for name, paths in given.items()
)
run = Curation(stage="curate", output=output, workers=0, sources=sources)
began = cpu_seconds()
made = curate(run)
ended = cpu_seconds()
other_rules = {"filters": (Length(), Language(min_score=0.5))}
others = tuple(source.model_copy(update=other_rules) for source in sources)
again = curate(run.model_copy(update={"sources": others}))
# What getrusage tells of this process begins with the one that started it.
peak = re.search(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())
print(json.dumps({
    "pages": made.counts["documents_in"],
    "cpu_seconds": round(ended - began, 2),
    "of_which_reading": round(made.cost["cpu_seconds"], 2),
    "other_rules_cpu_seconds": round(cpu_seconds() - ended, 2),
    "kept": [made.counts["documents_kept"], again.counts["documents_kept"]],
    "peak_mib": int(peak[1]) // 1024,
    "child_peak_mib": resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss // 1024,
}))
"""


@pytest.fixture
def shards(test_data):
    return sorted(str(path) for path in (test_data / "crawl").glob("*.warc.gz"))


@pytest.mark.data
@pytest.mark.timeout(1800)
def test_cost_grows_no_faster_than_the_input(tmp_path, shards):
    whole = {"web": shards}
    twice = {"web": shards, "again": shards}  # all of the second source is duplicates
    results = []
    for given in ({"web": shards[:1]}, {"web": shards[:3]}, whole, twice):
        command = [sys.executable, "-c", MEASURED, str(tmp_path / str(len(results)))]
        printed = subprocess.run(
            [*command, json.dumps(given)], check=True, capture_output=True, text=True
        ).stdout
        results.append(json.loads(printed))
        per_second = round(results[-1]["pages"] / results[-1]["cpu_seconds"], 1)
        archives = sum(map(len, given.values()))
        print_result(
            benchmark="curate, in one process",
            archives=archives,
            **results[-1],
            pages_per_cpu_second=per_second,
        )
    first = results[0]
    last = results[-1]
    growth = (last["cpu_seconds"] / first["cpu_seconds"]) / (last["pages"] / first["pages"])
    assert growth < 1.5  # archives differ, but doubled cost per page would mean superlinear growth
    assert last["peak_mib"] < 1.5 * first["peak_mib"]


@pytest.mark.data
@pytest.mark.ray
def test_all_pages_by_two_workers(tmp_path, shards):
    """Measure the wall seconds that a user of this machine waits, once Ray has started."""
    connect(2, "workers")
    megabytes = sum(Path(path).stat().st_size for path in shards) / 1e6
    run = Curation(
        output=str(tmp_path), workers=2, sources=(CurationSource(name="web", paths=tuple(shards)),)
    )
    began = time.perf_counter()
    made = curate(run)
    seconds = time.perf_counter() - began
    phases = {name: took for name, took in made.cost.items() if name.startswith("seconds_")}
    print_result(
        benchmark="curate, two workers on Ray",
        pages=made.counts["documents_in"],
        seconds=round(seconds, 1),
        pages_per_second=round(made.counts["documents_in"] / seconds, 1),
        compressed_mb_per_second=round(megabytes / seconds, 2),
        page_mb_per_second=round(made.cost["page_bytes"] / 1e6 / seconds, 2),
        peak_mib_of_a_worker=made.cost["peak_bytes"] // 2**20,
        **phases,
    )
    assert made.counts["documents_kept"]
