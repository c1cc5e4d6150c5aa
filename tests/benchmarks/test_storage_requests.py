"""Requests and seconds of stages in a bucket that answers 20 ms late: moto behind the proxy."""

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import pytest
from moto.core import DEFAULT_ACCOUNT_ID
from moto.s3.models import s3_backends
from support.s3_proxy import Proxy

from trainrig import manifest, storage
from trainrig.config import OUTPUT, RunFile
from trainrig.corpus.models.training import TextFiles
from trainrig.manifest.split_records import RecordWriter
from trainrig.splits import Phase, Split, SplitRecord

pytestmark = pytest.mark.bench

# The file keeps the figures of before the requests were cut, of commit f4edfb21.
RESULT = Path(__file__).parent / "results" / "storage-requests.json"
FILES = 1_000
SPLITS = 500
KINDS = ("documents", "pages", "signatures")  # files of a split, besides its record


class MeasuredStage(RunFile):
    """Run file of a stage that only claims and finishes its folder."""

    stage: str = "curate"
    output: Annotated[str, OUTPUT]
    verb = "curate"


def fill(folder: str, names: list[str], data: bytes = b"x") -> None:
    """Put objects into the bucket without requests."""
    bucket, _, key = folder.removeprefix("s3://").partition("/")
    for name in names:
        s3_backends[DEFAULT_ACCOUNT_ID]["aws"].put_object(bucket, f"{key}/{name}", data)


def fill_stage(folder: str) -> list[Split]:
    """Put the records and files of a stage that was killed before its end."""
    splits = [Split(f"s-{number:05d}", {}) for number in range(SPLITS)]
    with RecordWriter(f"{folder}/scratch/done", 0) as records:
        for split in splits:
            records.add(SplitRecord(name=split.name, counts={"documents": 1}, files={}).to_row())
    for split in splits:
        fill(f"{folder}/scratch", [f"{kind}/{split.name}" for kind in KINDS])
    return splits


def resume(folder: str, splits: list[Split]) -> None:
    """Claim the folder again, read what is done, and finish the stage."""
    stage = manifest.claim(folder, MeasuredStage(output=folder), {})
    phase = Phase(stage.build_path("scratch", "done"), lambda: lambda task: ({}, {}))
    assert phase.find_unfinished(splits) == []
    assert len(phase.read_results(splits)) == SPLITS
    stage.finish({}, {})


@pytest.mark.timeout(1_800)
def test_requests_of_stages_in_a_bucket(
    proxy: Proxy, s3: str, write_result: Callable[[str, dict[str, Any]], None]
) -> None:
    found: dict[str, Any] = {}

    def measure(what: str, act: Callable[[], object]) -> None:
        proxy.delay = 0.02
        proxy.count()
        began = time.monotonic()
        act()
        seconds = time.monotonic() - began
        proxy.delay = 0.0
        requests = proxy.count()
        found[what] = {"seconds": round(seconds, 2), "requests": requests}
        print(what, found[what], flush=True)

    fill(f"{s3}/old", [f"{number:05d}.bin" for number in range(FILES)])
    measure("delete a folder of 1,000 files", lambda: storage.delete_folder(f"{s3}/old"))
    run = MeasuredStage(output=f"{s3}/stage")
    measure("claim an empty folder", lambda: manifest.claim(run.output, run, {}))
    splits = fill_stage(run.output)
    measure("claim a folder of 2,000 files again", lambda: manifest.claim(run.output, run, {}))
    phase = Phase(f"{run.output}/scratch/done", lambda: lambda task: ({}, {}))
    measure("read 500 split records", lambda: phase.read_results(splits))
    measure("resume a stage of 500 splits", lambda: resume(run.output, splits))

    made = MeasuredStage(output=f"{s3}/made")
    stage = manifest.claim(made.output, made, {})
    names = [f"kept/{split.name}.parquet" for split in splits]
    fill(made.output, names)
    one = manifest.FileSum(bytes=1, sha256="0" * 64)
    stage.finish({}, {name: one for name in names})
    measure("check a finished stage of 500 files", lambda: manifest.claim(made.output, made, {}))
    texts = TextFiles(paths=(f"{made.output}/kept",))
    measure("fingerprint 500 input files", texts.fingerprint)
    before = json.loads(RESULT.read_text())["before"]
    write_result(RESULT.name, {"latency": 0.02, "tasks": found, "before": before})
