"""Curation under faults: storage that fails at times, and workers that are killed."""

import gzip
import itertools
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pyarrow.parquet as pq
import pytest
from support.random_pages import make_lines
from support.waiting import wait_until

from trainrig import config, manifest, storage
from trainrig.corpus import row_schema
from trainrig.corpus.curate import curate
from trainrig.corpus.curation_settings import Curation, CurationSource
from trainrig.corpus.filters.filters import C4, Length
from trainrig.corpus.read import ReadSettings
from trainrig.corpus.signals.text_signals import SIGNALS
from trainrig.errors import DataError


def make_run(path: str, output: str, **changes: Any) -> Curation:
    source = CurationSource(name="web", paths=(path,), filters=(Length(),), **changes)
    return Curation(output=output, workers=0, sources=(source,))


@pytest.mark.slow
def test_failing_s3_requests_lose_no_document(proxy: Any, s3: str, tmp_path: Path) -> None:
    data = make_lines(300)
    (tmp_path / "pages.jsonl").write_bytes(data)
    cut = {"reading": ReadSettings(piece_bytes=20_000)}
    straight = curate(make_run(str(tmp_path / "pages.jsonl"), str(tmp_path / "out"), **cut))
    storage.write(f"{s3}/pages.jsonl", data)
    turns = itertools.count(1)
    proxy.spoil = lambda method, path: next(turns) % 12 == 0
    proxy.how = "slow_down"
    proxy.times = 20
    made = curate(make_run(f"{s3}/pages.jsonl", f"{s3}/out", **cut))
    assert proxy.times < 12  # storage failed some requests
    assert (made.content, made.counts) == (straight.content, straight.counts)


DRIVE = """
import sys
from trainrig import config
from trainrig.corpus.curate import Curation, curate

curate(config.load(Curation, sys.argv[1]))
"""


@pytest.mark.ray
@pytest.mark.chaos
@pytest.mark.parametrize("failed_page", ["worker", "driver"])
def test_a_process_killed_inside_a_file_costs_a_part_at_most(
    tmp_path: Path, failed_page: str
) -> None:
    path = tmp_path / "pages.jsonl.gz"  # one stream, which cannot be cut
    path.write_bytes(gzip.compress(make_lines(3_000)))
    straight = curate(make_run(str(path), str(tmp_path / "straight")))
    run = make_run(str(path), str(tmp_path / "out")).model_copy(update={"workers": 1})
    (tmp_path / "run.toml").write_text(config.to_toml(run))
    command = [sys.executable, "-c", DRIVE, str(tmp_path / "run.toml")]
    parts = Path(run.output, "scratch", "pages")
    with subprocess.Popen(command) as driver:
        wait_until(lambda: len(list(parts.glob("*.parquet"))) >= 2, process=driver, seconds=300)
        if failed_page == "driver":
            driver.kill()
        else:
            family = psutil.Process(driver.pid).children(recursive=True)
            title = "curate: read pages"
            workers = [process for process in family if title in " ".join(process.cmdline())]
            assert workers
            for worker in workers:
                worker.kill()
        written = {file: file.stat().st_mtime_ns for file in parts.glob("*.parquet")}
        code = driver.wait(timeout=300)
    assert code == (-signal.SIGKILL if failed_page == "driver" else 0)
    if failed_page == "driver":
        assert {file: file.stat().st_mtime_ns for file in written} == written
        curate(run.model_copy(update={"workers": 0}))  # with another number of workers
    made = manifest.read_manifest(run.output)
    assert (made.content, made.counts) == (straight.content, straight.counts)


@pytest.mark.slow
def test_a_newer_signal_needs_the_pages_only_where_a_rule_reads_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Curate before a signal existed, then apply rules again with the signal."""
    (tmp_path / "pages.jsonl").write_bytes(make_lines(300))

    def run(least: int, *more: Any) -> Curation:
        path = str(tmp_path / "pages.jsonl")
        output = str(tmp_path / "out")
        filters = (Length(min_characters=least), *more)
        source = CurationSource(name="web", paths=(path,), filters=filters)
        return Curation(output=output, workers=0, sources=(source,))

    newest = "curly_brackets"  # a signal that is treated as unknown when the pages were read
    older = {name: kind for name, kind in SIGNALS.items() if name != newest}
    with monkeypatch.context() as before:
        before.setattr(row_schema, "SIGNALS", older)
        first = curate(run(100)).counts["documents_kept"]
    again = curate(run(9)).counts["documents_kept"]
    assert again >= first
    kept = pq.read_table(next((tmp_path / "out" / "kept").glob("*.parquet")))
    assert len(kept) == again and newest not in kept.column_names
    with pytest.raises(DataError, match=f"these rules need {newest}, which were not measured"):
        curate(run(9, C4()))
