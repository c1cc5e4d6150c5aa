"""Requests of a stage of 500 splits in a bucket, counted by a proxy."""

import functools
from collections.abc import Callable
from typing import Annotated

import pytest
from moto.core import DEFAULT_ACCOUNT_ID
from moto.s3.models import s3_backends
from support.s3_proxy import Proxy

from trainrig import manifest
from trainrig.config import OUTPUT, RunFile
from trainrig.corpus.models.training import TextFiles
from trainrig.manifest.split_records import RecordWriter
from trainrig.splits import Phase, Split, SplitRecord

pytestmark = pytest.mark.slow

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


def test_a_stage_in_a_bucket_makes_few_requests(proxy: Proxy, s3: str) -> None:
    def count(act: Callable[[], object]) -> dict[str, int]:
        proxy.count()
        act()
        return proxy.count()

    run = MeasuredStage(output=f"{s3}/stage")
    claim = functools.partial(manifest.claim, run.output, run, {})
    assert count(claim) == {"HEAD": 1, "LIST": 1, "PUT": 1}
    splits = fill_stage(run.output)
    assert count(claim) == {"GET": 2, "HEAD": 1, "LIST": 1}
    phase = Phase(f"{run.output}/scratch/done", lambda: lambda task: ({}, {}))
    assert count(lambda: phase.read_results(splits)) == {"GET": 2, "LIST": 1}
    resumed = count(lambda: resume(run.output, splits))
    assert resumed == {"DELETE many": 2, "GET": 6, "HEAD": 1, "LIST": 5, "PUT": 1}

    made = MeasuredStage(output=f"{s3}/made")
    stage = manifest.claim(made.output, made, {})
    names = [f"kept/{split.name}.parquet" for split in splits]
    fill(made.output, names)
    one = manifest.FileSum(bytes=1, sha256="0" * 64)
    stage.finish({}, {name: one for name in names})
    again = count(lambda: manifest.claim(made.output, made, {}))
    assert again == {"GET": 2, "HEAD": 1, "LIST": 3}
    texts = TextFiles(paths=(f"{made.output}/kept",))
    assert count(texts.fingerprint) == {"HEAD": 1, "LIST": 2}
