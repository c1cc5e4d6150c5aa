"""How the cost of curation grows with its input, in CPU seconds and memory, in one process."""

import json
import subprocess
import sys

import pytest

pytestmark = pytest.mark.bench

MEASURED = """
import json, resource, sys, time
from trainrig.corpus.curate import Curation, curate
from trainrig.corpus.curation import Source
paths, output = tuple(sys.argv[2:]), sys.argv[1]
began = time.process_time()
run = Curation(stage="curate", output=output, workers=0, sources=(Source(name="web", paths=paths),))
counts = curate(run).counts
print(json.dumps({
    "pages": counts["documents_in"],
    "cpu_seconds": round(time.process_time() - began, 2),
    "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
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
        per_second = results[-1]["pages"] / results[-1]["cpu_seconds"]
        print(json.dumps({"archives": count, **results[-1], "pages_per_cpu_second": per_second}))
    first, last = results[0], results[-1]
    growth = (last["cpu_seconds"] / first["cpu_seconds"]) / (last["pages"] / first["pages"])
    assert growth < 1.5  # archives differ; twice the cost a page would be another law
