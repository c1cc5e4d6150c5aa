"""Near-duplicates from Parquet files to removals, by trainrig and by datatrove, in alternation.

Each side is one process of one thread, measured in CPU seconds with all that it starts. datatrove
clusters documents that share a bucket and verifies nothing: it ends where trainrig's verification
begins.
"""

import json
import os
import random
import statistics
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.edited_pages import edit_words, read_pages

pytestmark = [pytest.mark.bench, pytest.mark.data, pytest.mark.timeout(1800)]

ROUNDS = 3
# Edited copies of each page, each copy edited more; and the files that they are spread over.
COPIES = 2
FILES = 2

# Both scripts print the CPU seconds that they took and how many documents they remove.
DATATROVE = """
import logging, sys, time
from loguru import logger
logger.remove()
from datatrove.executor.local import LocalPipelineExecutor
from datatrove.pipeline.dedup.minhash import (
    MinhashConfig, MinhashDedupBuckets, MinhashDedupCluster, MinhashDedupSignature,
)
from datatrove.pipeline.readers import ParquetReader
from datatrove.utils.text import split_into_words
pages, work = sys.argv[1:]
config = MinhashConfig(num_buckets=18, hashes_per_bucket=7)
split_into_words("Its tokenizer is loaded once.", "eng")
began = time.process_time()
for stage, tasks, steps in [
    ("signatures", FILES, [ParquetReader(pages), MinhashDedupSignature(f"{work}/s", config)]),
    ("buckets", 18, [MinhashDedupBuckets(f"{work}/s", f"{work}/b", config=config)]),
    ("clusters", 1, [MinhashDedupCluster(f"{work}/b", f"{work}/c", config=config)]),
]:
    LocalPipelineExecutor(steps, tasks=tasks, workers=1, logging_dir=f"{work}/l/{stage}").run()
spent = time.process_time() - began
from pathlib import Path
removed = sum(path.stat().st_size // 4 for path in Path(f"{work}/c").rglob("*.remove"))
print(spent, removed)
""".replace("FILES", str(FILES))
OURS = """
import sys, time
from pathlib import Path
import pyarrow.parquet as pq
from trainrig.corpus.dedup.dedup_decisions import BY_URL
from trainrig.corpus.signatures.minhash import MinHash
from trainrig.corpus.signatures.signatures import Signatures
pages, work = sys.argv[1:]
from support.searching import look, shelve
def search(folder, tables):
    signed = [Signatures.from_table(table, MinHash()) for table in tables]
    return look(folder, [shelve(folder, str(n), s) for n, s in enumerate(signed)], MinHash())
paths = sorted(Path(pages).iterdir())
search(Path(work, "first"), [pq.read_table(paths[0]).slice(0, 50)])  # loads what is compiled
began = time.process_time()
decisions = search(Path(work, "all"), [pq.read_table(path) for path in paths])
spent = time.process_time() - began
print(spent, len(decisions.decisions()))
"""


def test_dedup_of_files_compared_with_datatrove(test_data: Path, tmp_path: Path) -> None:
    peer = os.environ.get("TRAINRIG_PEERS")
    if not peer:
        pytest.skip("TRAINRIG_PEERS names no interpreter with datatrove[processing] and spacy")
    dice = random.Random(1)
    crawl = read_pages(test_data)
    texts = [edit_words(text, 3 * slot, dice) for slot in range(COPIES) for _, text in crawl]
    rows = {
        "id": [f"{n:032x}" for n in range(len(texts))],
        "url": [f"http://a/{n}" for n in range(len(texts))],
        "text": texts,
    }
    (tmp_path / "pages").mkdir()
    for number in range(FILES):
        bounds = [len(texts) * n // FILES for n in (number, number + 1)]
        some = pa.table(rows).slice(bounds[0], bounds[1] - bounds[0])
        pq.write_table(some, tmp_path / "pages" / f"{number}.parquet")
    megabytes = sum(len(text.encode()) for text in texts) / 1e6
    rates: dict[str, list[float]] = {"ours": [], "datatrove": []}
    removed = {}
    for slot in range(ROUNDS):
        for name, command in {
            "ours": [sys.executable, "-c", OURS],
            "datatrove": [peer, "-c", DATATROVE],
        }.items():
            work = tmp_path / f"{name}-{slot}"
            arguments = [str(tmp_path / "pages"), str(work)]
            done = subprocess.run(
                [*command, *arguments], capture_output=True, text=True, check=False
            )
            assert done.returncode == 0, done.stderr[-3000:]
            seconds, fell = done.stdout.split()[-2:]
            rates[name].append(megabytes / float(seconds))
            removed[name] = int(fell)
    times = [a / b for a, b in zip(rates["ours"], rates["datatrove"], strict=True)]
    result = {
        "benchmark": "near-duplicates from Parquet files to decisions, beside datatrove",
        "megabytes": round(megabytes, 1),
        "documents": len(texts),
        "mb_per_cpu_second": {
            n: round(statistics.median(measured), 2) for n, measured in rates.items()
        },
        "removed": removed,
        "times_as_fast": round(statistics.median(times), 1),
        "from_to": [round(min(times), 1), round(max(times), 1)],
        "rounds": ROUNDS,
    }
    print(json.dumps(result))
    assert min(times) > 1
