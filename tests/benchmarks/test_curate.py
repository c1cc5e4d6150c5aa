"""How the cost of curation grows with its input, in CPU seconds and memory, in one process."""

import json
import subprocess
import sys

import pytest

pytestmark = pytest.mark.bench

MEASURED = """
import gc, json, resource, sys, time
from trainrig.corpus.curate import Curation, curate
from trainrig.corpus.curation import Source
from trainrig.corpus.filters import Language, Length

def cpu_seconds():
    gc.collect()  # ends the child that extracts, so that its time counts
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime

paths, output = tuple(sys.argv[2:]), sys.argv[1]
source = Source(name="web", paths=paths)
run = Curation(stage="curate", output=output, workers=0, sources=(source,))
began = cpu_seconds()
made = curate(run)
ended = cpu_seconds()
other = source.model_copy(update={"filters": (Length(), Language(min_score=0.5))})
again = curate(run.model_copy(update={"sources": (other,)}))
print(json.dumps({
    "pages": made.counts["documents_in"],
    "cpu_seconds": round(ended - began, 2),
    "of_which_reading": round(made.cost["cpu_seconds"], 2),
    "other_rules_cpu_seconds": round(cpu_seconds() - ended, 2),
    "kept": [made.counts["documents_kept"], again.counts["documents_kept"]],
    "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
    "child_peak_mib": resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss // 1024,
}))
"""


@pytest.mark.data
def test_cost_grows_no_faster_than_the_input(tmp_path, test_data):
    shards = sorted(str(path) for path in (test_data / "crawl").glob("*.warc.gz"))
    results = []
    for count in (1, 3, 10):
        command = [sys.executable, "-c", MEASURED, str(tmp_path / str(count)), *shards[:count]]
        printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        results.append(json.loads(printed))
        per_second = round(results[-1]["pages"] / results[-1]["cpu_seconds"], 1)
        print(json.dumps({"archives": count, **results[-1], "pages_per_cpu_second": per_second}))
    first, last = results[0], results[-1]
    growth = (last["cpu_seconds"] / first["cpu_seconds"]) / (last["pages"] / first["pages"])
    assert growth < 1.5  # archives differ; twice the cost a page would be another law
