"""One order of batches for any number of ranks, any restart, on disk and in a bucket."""

import hashlib
import json
import os
import random
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest
from support.shards import write_shard

from trainrig import storage
from trainrig.config import build
from trainrig.tokens.batches import MicroBatch
from trainrig.tokens.rows.batch_stages import BatchSettings
from trainrig.tokens.rows.packing import PackingPlan, write_plans
from trainrig.tokens.rows.pretraining import PretrainBatches
from trainrig.tokens.shards.block_cache import BlockCache
from trainrig.tokens.shards.token_shards import EncodedDocument, ShardVocabulary, TokenShards

STEPS = 200
PADDING = 1
# Two stages have other lengths, weights and batches. One source is used up during the run.
SETTINGS = {
    "sequence_length": 16,
    "global_batch": 8,
    "micro_batch": 2,
    "seed": 3,
    "weights": {"news": 5.0, "web": 3.0, "wiki": 1.3},
    "epochs": {"news": 1.5, "web": 40.0, "wiki": 40.0},
    "when_exhausted": "renormalise",
    "attend": "document",
    "stages": ({"from_step": 90, "sequence_length": 64, "global_batch": 4},),
}


def write_tokens(folder: str) -> str:
    dice = random.Random(0)
    draw = np.random.default_rng(0)
    for shard in range(3):
        documents = []
        for number in range(60):
            source = dice.choice(["news", "web", "wiki"])
            ids = draw.integers(2, 300, dice.randint(2, 150)).astype(np.uint16)
            name = f"{shard}-{number}"
            documents.append(EncodedDocument(name, source, "u", ids, 1, "f", number))
        write_shard(folder, f"{shard}", ShardVocabulary(300, "tokenizer"), documents)
    return folder


@pytest.fixture(scope="module")
def on_disk(tmp_path_factory) -> str:
    return write_tokens(str(tmp_path_factory.mktemp("tokens")))


def digest(micro: MicroBatch) -> str:
    arrays = (micro.ids, micro.targets, micro.samples, micro.sources, micro.pieces)
    found = hashlib.sha256()
    for array in (*arrays, *([] if micro.positions is None else [micro.positions])):
        found.update(f"{array.shape}{array.dtype}".encode() + array.tobytes())
    return found.hexdigest()


def read_order(batches: PretrainBatches, steps) -> dict[str, list]:
    """Return the targets of each step and the digests of its micro-batches in order."""
    return {
        str(step): [batches.targets(step), *(digest(micro) for micro in batches.at(step))]
        for step in steps
    }


@pytest.fixture(scope="module")
def expected(on_disk) -> dict[str, list]:
    batches = PretrainBatches(TokenShards.open(on_disk), build(BatchSettings, SETTINGS, "run.toml"))
    assert {segment.stage for segment in batches.timeline.segments} == {0, 1}
    assert len(batches.timeline.segments) > 2  # `news` ends during the run
    return read_order(batches, range(STEPS))


# Read only the assigned micro-batches, through the prefetch, and restart where the task says.
RANK = """
import json, sys
sys.path.insert(0, sys.argv[1])
from test_batch_order import digest, SETTINGS
from trainrig.config import build
from trainrig.tokens.batches import read_local_batch
from trainrig.tokens.prefetch import Prefetch
from trainrig.tokens.rows.pretraining import PretrainBatches
from trainrig.tokens.shards.token_shards import TokenShards
from trainrig.tokens.rows.batch_stages import BatchSettings

folder, rank, world, steps, restarts = json.loads(sys.argv[2])
found = []
begins = [0, *restarts]
for begin, end in zip(begins, [*restarts, steps]):
    batches = PretrainBatches(TokenShards.open(folder), build(BatchSettings, SETTINGS, "run.toml"))
    with Prefetch(lambda step: read_local_batch(batches, rank, world, step), 2) as prefetch:
        for step in range(begin, end):
            share = prefetch.at(step)
            digests = [digest(m) for m, real in share.assigned if real]
            found.append([step, share.denominators["tokens"], digests])
json.dump(found, sys.stdout)
"""


def start_rank(folder: str, rank: int, world: int, steps: int) -> subprocess.Popen[str]:
    restarts = sorted(random.Random(f"{rank} of {world}").sample(range(1, steps), 3))
    task = json.dumps([folder, rank, world, steps, restarts])
    paths = os.pathsep.join(path for path in sys.path if path)
    return subprocess.Popen(
        [sys.executable, "-c", RANK, str(Path(__file__).parent), task],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1"},
    )


def read_order_by_ranks(folder: str, world: int, steps: int) -> dict[str, list]:
    """Return everything that `world` processes read together, each with different restarts."""
    processes = [start_rank(folder, rank, world, steps) for rank in range(world)]
    together: dict[str, list] = defaultdict(list)
    for process in processes:
        out, _ = process.communicate()
        assert process.returncode == 0
        for step, targets, digests in json.loads(out):
            of_step = together[str(step)] = together[str(step)] or [targets]
            assert of_step[0] == targets  # each rank knows the same denominator
            of_step += digests
    return dict(together)


@pytest.mark.slow
@pytest.mark.parametrize("world", [1, 3])
def test_ranks_in_separate_processes_read_the_same_batches_with_any_restarts(
    world, on_disk, expected
):
    assert read_order_by_ranks(on_disk, world, STEPS) == expected


@pytest.mark.slow
def test_tokens_in_a_bucket_are_the_same_batches(on_disk, expected, s3, tmp_path):
    for path in storage.list_files(on_disk):
        storage.write(f"{s3}/tokens/{path.rpartition('/')[2]}", storage.read(path))
    shards = TokenShards.open(f"{s3}/tokens", BlockCache(folder=str(tmp_path)))
    batches = PretrainBatches(shards, build(BatchSettings, SETTINGS, "run.toml"))
    assert read_order(batches, range(STEPS)) == expected


@pytest.mark.slow
def test_steps_in_any_order_are_the_same_batches(on_disk, expected):
    batches = PretrainBatches(TokenShards.open(on_disk), build(BatchSettings, SETTINGS, "run.toml"))
    steps = random.Random(1).sample(range(STEPS), 40)
    assert read_order(batches, steps) == {str(step): expected[str(step)] for step in steps}


def test_the_order_is_the_same_as_ever(expected):
    # A recorded value: a change would alter the data of every run.
    whole = hashlib.sha256(json.dumps(expected, sort_keys=True).encode()).hexdigest()
    assert whole == "53c194172bf23e5cc8f640ef8ebff31569c310afc4294fc023278e3282429b81"


@pytest.mark.slow
@pytest.mark.parametrize(
    "packing", [{"kind": "Concatenate", "shuffle_documents": True}, {"kind": "BestFit"}]
)
def test_packings_by_plan_are_read_whole_once_an_epoch(packing, on_disk, tmp_path):
    for path in storage.list_files(on_disk):
        storage.write(f"{tmp_path}/{path.rpartition('/')[2]}", storage.read(path))
    write_plans(str(tmp_path), PackingPlan(shuffle_documents=True, best_fit=(16,)), padding=PADDING)
    table = {"sequence_length": 16, "global_batch": 6, "micro_batch": 3, "packing": packing}
    chosen = build(BatchSettings, table, "run.toml")
    shards = TokenShards.open(str(tmp_path))
    batches = PretrainBatches(shards, chosen)
    end = sum(
        batches.timeline.find_source_stage(0, source).blocks.count for source in batches.sources
    )
    seen = set()
    for step in range(-(-end // 6)):
        batch = batches.at(step)
        assert batches.targets(step) == sum(int((m.targets != -100).sum()) for m in batch)
        for sample in (s for micro in batch for s in micro.samples.tolist()):
            located = batches.locate(sample)
            if located.epoch == 0:
                seen.add((located.source, located.window))
    assert len(seen) == end
    before = batches.data_before(1)
    assert before["plan"] and before["packing"]["kind"] == packing["kind"]
