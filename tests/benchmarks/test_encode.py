"""Cost of encoding inside Ray, in the stage that does it, and of bare engines in one process.

Figures are CPU seconds, as other processes may use the cores; wall times are reported as well.
"""

import functools
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tiktoken
import tokenizers

from trainrig.ray_runtime.split_processing import map_splits
from trainrig.splits import Phase, Work
from trainrig.tokens import prepare
from trainrig.tokens.document_set import DocumentSet, open_documents
from trainrig.tokens.prepare import Tokenization
from trainrig.tokens.tokenizer import train_tokenizer
from trainrig.tokens.tokenizers.encode import Encoder
from trainrig.tokens.tokenizers.fast_engine import LLAMA_3
from trainrig.tokens.tokenizers.tokenizer_kinds import ByteLevelBPE

pytestmark = [pytest.mark.bench, pytest.mark.data, pytest.mark.ray]
SETS = ("gsm8k_train", "boolq", "lambada_openai", "bigbench_language_identification", "arc_easy")
DOCUMENT_BYTES = 4_500  # the mean of 1,311 crawled pages that curation kept
COPIES = 3
ROUNDS = 5


def cut_texts(test_data: Path) -> list[str]:
    """Return some 12 MB of the sets as texts of `DOCUMENT_BYTES`."""
    everything = "\n".join(
        line
        for name in SETS
        for line in (test_data / "sets" / f"{name}.jsonl").read_text().splitlines()
    )
    starts = range(0, len(everything), DOCUMENT_BYTES)
    return [everything[start : start + DOCUMENT_BYTES] for start in starts]


def measure(action: Callable[[], object]) -> tuple[float, float]:
    """Return the CPU seconds of this process and the wall seconds that `action` takes."""
    cpu = time.process_time()
    wall = time.monotonic()
    action()
    return time.process_time() - cpu, time.monotonic() - wall


def make_timed_work(run: Tokenization, documents: DocumentSet, encoder: Encoder) -> Work:
    """Return the work of `tokenize` on a split, which also counts its CPU and wall seconds."""
    work = prepare._make_work(run, documents, encoder, None)

    def work_and_count(task: Any) -> Any:
        results = []
        cpu, wall = measure(lambda: results.append(work(task)))
        counts, files = results[0]
        return counts | {"cpu_seconds": cpu, "wall_seconds": wall}, files

    return work_and_count


def test_encoding_inside_ray_is_as_fast_as_bare_tiktoken(tmp_path, test_data, local_ray):
    texts = cut_texts(test_data)
    encoder = Encoder(train_tokenizer(ByteLevelBPE(vocabulary=32_768), texts).decode())
    assert encoder.engine == "tiktoken"
    texts = texts * COPIES
    size = sum(len(text.encode()) for text in texts)
    rows = [
        {"id": f"{number:032x}", "url": f"https://a.example/{number}", "text": text}
        for number, text in enumerate(texts)
    ]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "documents.parquet")
    table = {"kind": "Parquet", "paths": (str(tmp_path / "documents.parquet"),)}
    run = Tokenization(
        documents=({**table, "source": "sets", "id": "id", "url": "url"},),
        tokenizer="",
        output=str(tmp_path / "tokens"),
    )
    documents = open_documents(run.documents)
    work = functools.partial(make_timed_work, run, documents, encoder)

    special = set(encoder.special_ids.values())
    ranks = {
        encoder.decode_bytes([number]): number
        for number in range(encoder.vocabulary_size)
        if number not in special
    }
    bare = tiktoken.Encoding(
        "bare", pat_str=LLAMA_3.regex, mergeable_ranks=ranks, special_tokens={}
    )
    library = tokenizers.Tokenizer.from_str(encoder.text)
    few = texts[: len(texts) // COPIES // 4]
    few_size = sum(len(text.encode()) for text in few)

    speeds: dict[str, list[float]] = {"stage": [], "stage_wall": [], "tiktoken": [], "library": []}
    for number in range(ROUNDS + 1):  # the first round is not counted
        phase = Phase(str(tmp_path / f"records-{number}"), work)
        splits = documents.cut_splits()
        map_splits(phase, splits, 1)
        counts = [record.counts for record in phase.read_results(splits)]
        bare_cpu, _ = measure(lambda: [bare.encode_ordinary(text) for text in texts])
        library_cpu, _ = measure(
            lambda: library.encode_batch_fast(few, add_special_tokens=False)  # runs on one thread
        )
        if number:
            speeds["stage"].append(size / sum(c["cpu_seconds"] for c in counts))
            speeds["stage_wall"].append(size / sum(c["wall_seconds"] for c in counts))
            speeds["tiktoken"].append(size / bare_cpu)
            speeds["library"].append(few_size / library_cpu)
    ratios = [
        sorted(ours / theirs for ours, theirs in zip(speeds["stage"], speeds[peer], strict=True))
        for peer in ("tiktoken", "library")
    ]
    megabytes = {
        f"{name}_mb_per_s": round(statistics.median(values) / 1e6, 2)
        for name, values in speeds.items()
    }
    to_tiktoken, to_library = (
        [round(some[0], 2), round(statistics.median(some), 2), round(some[-1], 2)]
        for some in ratios
    )
    found = {"bytes": size, "documents": len(texts), **megabytes, "rounds": ROUNDS}
    print(json.dumps(found | {"to_tiktoken": to_tiktoken, "to_library": to_library}))
    assert statistics.median(ratios[0]) >= 0.9
    assert statistics.median(ratios[1]) >= 4
