"""Plans for documents with lengths like web text: the cost of making, holding and reading them.

The shards are sparse: .ends is complete, the ids use no disk. Times are CPU seconds.
"""

import json
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support import side_by_side
from support.losses import cross_entropy_sum
from support.sparse_shards import compute_zero_sums

from trainrig.models.decoder import Decoder, DecoderConfig, initialise
from trainrig.tokens.rows.packing import BestFit, Concatenate, PackingPlan, open_layout, write_plans
from trainrig.tokens.shards.flat_arrays import SUMS, compute_block_sums
from trainrig.tokens.shards.shard_files import ENDS, HEAD, INDEX, TOKENS, ShardHeader
from trainrig.tokens.shards.token_shards import TokenShards

pytestmark = pytest.mark.bench
LENGTH = 2048
DOCUMENTS = [100_000, 1_000_000, 10_000_000]
SHARDS = 10
SHUFFLE = PackingPlan(shuffle_documents=True)
PACK = PackingPlan(best_fit=(LENGTH,))


def write_sparse_shards(folder: Path, documents: int) -> str:
    """Write `documents` of lognormal length: median 403 tokens, mean 829, 9% longer than a row."""
    lengths = np.random.default_rng(0).lognormal(6.0, 1.2, documents).astype(np.int64) + 1
    folder.mkdir(parents=True)
    for number, part in enumerate(np.split(lengths, SHARDS)):
        tokens = int(part.sum())
        path = str(folder / f"{number}")
        ends = np.cumsum(part).astype("<i8").tobytes()
        Path(path + ENDS).write_bytes(ends)
        Path(path + ENDS + SUMS).write_bytes(compute_block_sums([ends]))
        Path(path + TOKENS + SUMS).write_bytes(compute_zero_sums(2 * tokens))
        Path(path + INDEX).touch()
        with Path(path + TOKENS).open("wb") as file:
            file.truncate(2 * tokens)
        head = ShardHeader(
            vocabulary=60_000,
            tokenizer="f" * 64,
            documents=len(part),
            tokens=tokens,
            tokens_sha256="",
            ends_sha256="",
            index_bytes=0,
            runs=(("web", len(part), tokens),),
        )
        Path(path + HEAD).write_bytes(head.encode())
    return str(folder)


@pytest.fixture(scope="module", params=DOCUMENTS)
def folder(request, tmp_path_factory) -> str:
    """Write sparse shards with the requested number of documents."""
    return write_sparse_shards(tmp_path_factory.mktemp("plans") / "train", request.param)


def measure_cpu_seconds(action: Callable[[], Any]) -> tuple[float, Any]:
    began = time.process_time()
    result = action()
    return time.process_time() - began, result


@pytest.mark.parametrize("plan", [SHUFFLE, PACK], ids=["shuffle", "best-fit"])
def test_cost_of_a_plan(folder, plan):
    seconds, (counts, _) = measure_cpu_seconds(lambda: write_plans(folder, plan, padding=1))
    tracemalloc.start()
    write_plans(folder, plan, padding=1)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    shown = counts.get("shuffle") or counts["best_fit"][str(LENGTH)]
    documents = shown["documents"]
    result = {
        "benchmark": f"plan: {'shuffle' if plan is SHUFFLE else 'best-fit'}",
        "documents": documents,
        "cpu_seconds": round(seconds, 2),
        "documents_per_cpu_second": round(documents / seconds),
        "peak_megabytes": round(peak / 1e6, 1),
        "plan_bytes_per_document": round(shown["bytes"] / documents, 2),
    }
    if plan is PACK:
        rows = shown["rows"]
        result |= {
            "rows": rows,
            "rows_per_cpu_second": round(rows / seconds),
            "padding_share": shown["padding"] / (rows * (LENGTH + 1)),
            "cut_share": round(shown["documents_cut"] / documents, 4),
            "cut_share_if_concatenated": round(
                shown["documents_cut_if_concatenated"] / documents, 4
            ),
        }
        if documents >= 1_000_000:
            assert result["padding_share"] < 1e-3
    print(json.dumps(result))
    assert peak < 300e6  # bytes of arrays; the bound does not grow with the documents


@pytest.mark.parametrize(
    "packing", [Concatenate(), Concatenate(shuffle_documents=True), BestFit()], ids=str
)
def test_cost_of_a_row(folder, packing):
    write_plans(folder, SHUFFLE.model_copy(update={"best_fit": (LENGTH,)}), padding=1)
    shards = TokenShards.open(folder)
    opening, layout = measure_cpu_seconds(lambda: open_layout(packing, shards, LENGTH))
    windows = np.random.default_rng(1).integers(0, layout.windows("web"), 500)
    ids, targets = np.zeros((2, LENGTH), dtype=np.int64)
    pieces = [len(layout.read("web", int(w), 1, ids, targets)) for w in windows]
    reading, _ = measure_cpu_seconds(
        lambda: [layout.read("web", int(w), 1, ids, targets) for w in windows]
    )
    counting, _ = measure_cpu_seconds(lambda: layout.targets("web", windows, 1))
    result = {
        "benchmark": f"row: {packing}",
        "documents": shards.count_documents("web"),
        "open_milliseconds": round(1e3 * opening, 2),
        "row_microseconds": round(1e6 * reading / len(windows), 1),
        "pieces_a_row": round(float(np.mean(pieces)), 2),
        "targets_of_500_rows_microseconds": round(1e6 * counting, 1),
    }
    print(json.dumps(result))
    assert counting < reading  # counting targets reads no rows


def test_cost_of_attention_inside_documents():
    torch.set_num_threads(1)
    config = DecoderConfig(layers=4, channels=256, heads=4, vocabulary=512, positions=1024)
    model = Decoder(config)
    initialise(model, seed=0)
    ids = torch.randint(512, (2, 1025))
    # Documents of 1 to 600 tokens, cut at the end of the row.
    cuts = torch.rand(2, 1024).lt(1 / 300).cumsum(1)
    places = torch.arange(1024).expand(2, -1)
    begins = torch.zeros(2, 1024, dtype=torch.long)
    for row in range(2):
        for number in cuts[row].unique():
            begins[row, cuts[row] == number] = places[row, cuts[row] == number].min()

    def step(positions):
        logits = model(ids[:, :-1], positions_BT=positions).logits
        cross_entropy_sum(logits, ids[:, 1:].contiguous()).backward()
        model.zero_grad()

    ratio = side_by_side.compare(
        "forward and backward with attention inside documents, against causal; rows of 1,024",
        lambda: step(places - begins),
        lambda: step(None),
        rounds=5,
    )
    assert ratio < 2
