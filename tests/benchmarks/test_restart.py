"""Storage requests of a restart of 70 billion parameters, at 8 to 8,000 ranks.

Nothing is read: the requests are those that `plan_reads` lists for files as large as the given
number of ranks writes. Seconds are computed for a storage that takes LATENCY for each request,
streams each one's bytes at STREAM, and answers at most RATE requests a second from one prefix.
"""

import math

import pytest

from trainrig.models.architecture.decoder_config import DecoderConfig, parameter_shapes
from trainrig.train.checkpoint.manifest import CheckpointManifest
from trainrig.train.checkpoint.tensor_index import (
    CHUNK,
    READERS,
    FileChunks,
    IndexedTensor,
    compute_partitions,
    find_rows,
    plan_reads,
)

MODEL = DecoderConfig(
    layers=80, channels=8192, heads=64, kv_heads=8, feedforward_channels=28_672, vocabulary=128_256
)
# s, bytes/s, and requests/s below.
LATENCY = 0.010
STREAM = 90e6
RATE = 5_500
HEADER_BYTES = 160  # bytes of each tensor in a file's header, as `_lay_out` writes it
SMALL = 3  # the manifest, state.json and tokenizer.json
SMALL_BEFORE = 5  # the same files, with the manifest read three times
SAMPLED = 16  # ranks whose reads are planned


def make_index(world: int) -> dict[str, IndexedTensor]:
    """Return the index of the files of `world` ranks: weights and both moments of AdamW."""
    found = {}
    for name, shape in parameter_shapes(MODEL).items():
        for kind in (
            f"model.{name}",
            f"optimizer.state.{name}.exp_avg",
            f"optimizer.state.{name}.exp_avg_sq",
        ):
            partitions = compute_partitions(range(world), shape[0])
            found[kind] = IndexedTensor(type="F32", shape=tuple(shape), partitions=partitions)
    return found


def make_files(tensors: dict[str, IndexedTensor], world: int) -> list[FileChunks]:
    """Return files with the sizes that follow from `tensors`."""
    sizes = [0] * world
    for tensor in tensors.values():
        for file, _, rows, count in tensor.partitions:
            for number in range(file, file + count):
                sizes[number] += rows * tensor.row_bytes
    files = []
    for size in sizes:
        first = HEADER_BYTES * len(tensors)
        ends = (first, *range(first + CHUNK, first + size, CHUNK), first + size)
        files.append(FileChunks(ends=ends, sha256=("0" * 64,) * len(ends)))
    return files


@pytest.mark.bench
@pytest.mark.parametrize(
    ("written", "ranks"), [(8, 8), (1024, 1024), (1024, 1016), (8000, 8000), (8000, 7992)]
)
def test_requests_of_a_restart(written, ranks):
    tensors = make_index(written)
    files = make_files(tensors, written)
    ours = make_index(ranks)
    reads = []
    taken = []
    needed = []
    for rank in range(0, ranks, max(1, ranks // SAMPLED)):
        wanted = find_rows(ours, rank)
        plan = plan_reads("there", tensors, files, wanted)
        reads.append(len(plan))
        taken.append(sum(read.chunk[1] - read.chunk[0] for read in plan))
        needed.append(sum(count * tensors[n].row_bytes for n, (_, count) in wanted.items()))
    manifest = CheckpointManifest(
        step=1,
        attempt=1,
        files={f"shard-{n + 1:05d}-model-00001-of-00001.safetensors": f
               for n, f in enumerate(files)},
        tensors=tensors,
    )  # fmt: skip
    size = len(manifest.encode())
    without = len(manifest.model_copy(update={"tensors": {}}).encode())
    mean = sum(reads) / len(reads)
    request = LATENCY + min(CHUNK, max(taken)) / STREAM
    alone = math.ceil(max(reads) / READERS) * request
    # Before, each parameter's step count was in another rank's file, which all ranks had to read.
    scalars = min(len(tensors) // 3, written)
    before = ranks * (written + SMALL_BEFORE + scalars + mean)
    after = SMALL + ranks * mean
    headers = (written + SMALL_BEFORE) / READERS * LATENCY + scalars / READERS * request + alone
    print(
        f"\n{written} wrote, {ranks} resume: {mean:.1f} reads a rank, {max(reads)} at most, "
        f"{max(taken) / 1e6:.0f} MB of {max(needed) / 1e6:.0f} MB needed; manifest "
        f"{size / 1e6:.2f} MB, {(size - without) / 1e6:.2f} of it the index; before "
        f"{before:,.0f} requests, {max(headers, before / RATE):,.1f} s; after {after:,.0f}, "
        f"{max(alone, after / RATE):,.1f} s"
    )
    assert after < before
