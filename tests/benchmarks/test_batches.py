"""Cost of batches: during a training step, far into a run, on large shards, on any ranks."""

import functools
import hashlib
import json
import os
import random
import statistics
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from support.losses import cross_entropy_sum
from support.shards import write_shard
from support.side_by_side import print_result
from support.sparse_shards import compute_zero_sums

from trainrig import storage
from trainrig.config import build
from trainrig.models.decoder import Decoder, DecoderConfig, initialise
from trainrig.optim import AdamW
from trainrig.optim.parameter_groups import group_by_decay
from trainrig.tokens.batches import read_local_batch
from trainrig.tokens.prefetch import Prefetch
from trainrig.tokens.rows.batch_stages import BatchSettings
from trainrig.tokens.rows.pretraining import PretrainBatches
from trainrig.tokens.rows.timeline import Mixture, carry_over
from trainrig.tokens.shards.flat_arrays import SUMS, compute_block_sums
from trainrig.tokens.shards.shard_files import ENDS, HEAD, INDEX, TOKENS, ShardHeader
from trainrig.tokens.shards.token_shards import EncodedDocument, ShardVocabulary, TokenShards

pytestmark = pytest.mark.bench
SEQUENCES = 8
LENGTH = 256
VOCABULARY = 4096
DOCUMENT = 1_000  # tokens


def write_sparse_shards(folder: Path, tokens: int) -> TokenShards:
    """Write sparse shards of at most 10 GB each; only the ends of documents use the disk."""
    tokens_a_shard = min(tokens, 5 * 10**9)
    for number in range(tokens // tokens_a_shard):
        path = f"{folder}/{number:03d}"
        folder.mkdir(exist_ok=True)
        with Path(path + TOKENS).open("wb") as file:
            file.truncate(2 * tokens_a_shard)
        documents = tokens_a_shard // DOCUMENT
        ends = np.arange(DOCUMENT, tokens_a_shard + 1, DOCUMENT, dtype="<i8").tobytes()
        Path(path + ENDS).write_bytes(ends)
        Path(path + ENDS + SUMS).write_bytes(compute_block_sums([ends]))
        Path(path + TOKENS + SUMS).write_bytes(compute_zero_sums(2 * tokens_a_shard))
        Path(path + INDEX).write_bytes(b"")
        halves = (documents // 2, documents - documents // 2)
        head = ShardHeader(
            vocabulary=VOCABULARY,
            tokenizer="tokenizer",
            documents=documents,
            tokens=tokens_a_shard,
            tokens_sha256=f"{number}",
            ends_sha256=f"{number}",
            index_bytes=0,
            runs=tuple((s, n, n * DOCUMENT) for s, n in zip(("a", "b"), halves, strict=True)),
        )
        storage.write(path + HEAD, head.encode())
    return TokenShards.open(str(folder))


def make_settings(**changed):
    table = {"sequence_length": LENGTH, "global_batch": SEQUENCES, "micro_batch": SEQUENCES}
    return build(BatchSettings, table | {"weights": {"a": 2, "b": 1}} | changed, "bench.toml")


def measure_cpu_seconds(action, rounds):
    began = time.process_time()
    for number in range(rounds):
        action(number)
    return (time.process_time() - began) / rounds


@pytest.fixture(scope="module")
def training_step():
    """Return a function that makes one update of a model of 12 million parameters."""
    torch.set_num_threads(1)
    config = DecoderConfig(layers=6, channels=384, heads=6, vocabulary=VOCABULARY, positions=LENGTH)
    model = Decoder(config)
    initialise(model, seed=0)
    optimizer = AdamW().build(group_by_decay(model.named_parameters(), 0.1))

    def step(share):
        for micro, _ in share.assigned:
            ids = torch.from_numpy(micro.ids)
            targets = torch.from_numpy(micro.targets)
            (
                cross_entropy_sum(model(ids).logits, targets) / share.denominators["tokens"]
            ).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    return step


def test_a_batch_costs_less_than_a_hundredth_of_a_training_step(training_step, tmp_path):
    batches = PretrainBatches(write_sparse_shards(tmp_path / "tokens", 500_000), make_settings())
    share = read_local_batch(batches, 0, 1, 0)
    training_step(share)
    ratios = []
    for _ in range(5):  # alternate, so that load affects all alike
        reading = measure_cpu_seconds(lambda step: read_local_batch(batches, 0, 1, step), 50)
        training = measure_cpu_seconds(lambda _: training_step(share), 2)
        ratios.append(reading / training)
    print_result(
        benchmark="batch of 8 x 256 tokens, its denominator included, over a training step, 12M",
        reading_milliseconds=round(reading * 1e3, 3),
        training_milliseconds=round(training * 1e3, 1),
        ratio=round(statistics.median(ratios), 5),
        ratio_from_to=[round(min(ratios), 5), round(max(ratios), 5)],
    )
    assert statistics.median(ratios) < 0.01


@pytest.mark.parametrize("span", [1, 8])
def test_any_step_of_any_amount_of_data_costs_the_same(span, tmp_path):
    """Measure steps 0, 10^4 and 10^7 of 1 MB and of 100 GB.

    `span` is set as it is before a stage of longer sequences.
    """
    longer = {"longest_sequence_length": span * LENGTH}
    figures = {}
    for name, tokens in (("1 MB", 500_000), ("100 GB", 50 * 10**9)):
        shards = write_sparse_shards(tmp_path / name.replace(" ", "-"), tokens)
        opening = measure_cpu_seconds(lambda _, at=shards.folder: TokenShards.open(at), 5)
        batches = PretrainBatches(shards, make_settings(**longer))
        for first in (0, 10**4, 10**7):
            read_local_batch(batches, 0, 1, first)
            figures[f"{name}, step {first:.0e}"] = min(
                measure_cpu_seconds(
                    lambda step, of=batches, at=first: read_local_batch(of, 0, 1, at + step), 60
                )
                for _ in range(5)
            )
        figures[f"{name}, opening"] = opening
    milliseconds = {name: round(seconds * 1e3, 3) for name, seconds in figures.items()}
    print_result(
        benchmark=f"CPU milliseconds of a step's batch, rows of blocks of {span}", **milliseconds
    )
    steps = [seconds for name, seconds in figures.items() if "step" in name]
    assert max(steps) < 0.02
    assert max(steps) < 2.5 * min(steps)


def test_the_prefetch_hides_waits_for_storage(training_step, tmp_path):
    """Measure wall time with batches that wait for storage half as long as a step trains."""
    batches = PretrainBatches(
        write_sparse_shards(tmp_path / "tokens", 500_000),
        make_settings(global_batch=1, micro_batch=1),
    )
    began = time.perf_counter()
    for step in range(3):
        training_step(read_local_batch(batches, 0, 1, step))
    wait = (time.perf_counter() - began) / 6

    def slow(step):
        time.sleep(wait)
        return read_local_batch(batches, 0, 1, step)

    def run(ahead, prepare=slow):
        with Prefetch(prepare, ahead) as prefetch:
            began = time.perf_counter()
            for step in range(8):
                training_step(prefetch.at(step))
            return time.perf_counter() - began

    instant = functools.partial(read_local_batch, batches, 0, 1)
    rounds = [(run(0, instant), run(0), run(2)) for _ in range(5)]
    # The first batch of a run is never prefetched.
    hidden = sorted((plain - ahead) / (7 * wait) for _, plain, ahead in rounds)
    print_result(
        benchmark="8 training steps on batches that wait: wall seconds, median of 5 in turns",
        wait_of_each=round(wait, 3),
        no_wait=round(statistics.median(seconds[0] for seconds in rounds), 3),
        not_ahead=round(statistics.median(seconds[1] for seconds in rounds), 3),
        two_ahead=round(statistics.median(seconds[2] for seconds in rounds), 3),
        hidden_share_of_waiting=round(statistics.median(hidden), 3),
        hidden_from_to=[round(hidden[0], 3), round(hidden[-1], 3)],
    )
    assert statistics.median(hidden) > 0.5


def test_building_mixtures_costs_tenths_of_a_second():
    dice = random.Random(0)
    weights = {f"source-{number}": dice.random() + 0.01 for number in range(30)}
    plain = measure_cpu_seconds(
        lambda n: Mixture.from_weights(weights | {"other": 0.5 + n / 1000}), 5
    )
    owed = Mixture.from_weights(weights).compute_owed_after(12_345)

    def changed(number):
        new = {source: weight + number / 997 for source, weight in weights.items()}
        return Mixture.from_weights(new, carry_over(owed, new))

    print_result(
        benchmark="a mixture of 30 sources, 100,000 slots: CPU seconds to build",
        plain=round(plain, 3),
        with_debts=round(measure_cpu_seconds(changed, 5), 3),
    )
    assert plain < 2


# --- the order of 2,000 global batches

RANK = """
import hashlib, json, sys
from trainrig.config import build
from trainrig.tokens.batches import read_local_batch
from trainrig.tokens.shards.block_cache import BlockCache
from trainrig.tokens.prefetch import Prefetch
from trainrig.tokens.rows.pretraining import PretrainBatches
from trainrig.tokens.shards.token_shards import TokenShards
from trainrig.tokens.rows.batch_stages import BatchSettings

folder, table, cache, rank, world, steps, restarts = json.loads(sys.argv[1])
cache = cache and BlockCache(folder=cache)
chosen = build(BatchSettings, table, "bench.toml")
found = []
for begin, end in zip([0, *restarts], [*restarts, steps]):
    batches = PretrainBatches(TokenShards.open(folder, cache), chosen)
    with Prefetch(lambda step: read_local_batch(batches, rank, world, step), 2) as prefetch:
        for step in range(begin, end):
            for micro, real in prefetch.at(step).assigned:
                if real:
                    data = b"".join(a.tobytes() for a in (micro.ids, micro.targets, micro.samples))
                    found.append([step, int(micro.samples[0]), hashlib.sha256(data).hexdigest()])
json.dump(found, sys.stdout)
"""
STEPS = 2_000
MIXED = {
    "sequence_length": 32,
    "global_batch": 16,
    "micro_batch": 2,
    "weights": {"a": 3.1, "b": 1.0},
    "epochs": float("inf"),
    "stages": ({"from_step": 900, "sequence_length": 128, "global_batch": 8},),
}


def hash_order(folder, world, cache=None):
    """Return one hash over all micro-batches that `world` processes read, by step and sample."""
    processes = []
    for rank in range(world):
        restarts = sorted(random.Random(f"{rank} of {world}").sample(range(1, STEPS), 3))
        task = json.dumps([folder, MIXED, cache, rank, world, STEPS, restarts])
        processes.append(
            subprocess.Popen(
                [sys.executable, "-c", RANK, task],
                stdout=subprocess.PIPE,
                env=os.environ | {"OMP_NUM_THREADS": "1"},
            )
        )
    parts = [json.loads(process.communicate()[0]) for process in processes]
    found = sorted(tuple(row) for part in parts for row in part)
    assert len(found) == 900 * 8 + 1_100 * 4 == len({row[:2] for row in found})
    return hashlib.sha256(json.dumps(found).encode()).hexdigest()


def test_the_first_2000_global_batches_are_the_same_for_all(s3, tmp_path):
    """Compare 1 to 8 ranks, each restarted three times, with shards on disk and in a bucket."""
    folder = str(tmp_path / "tokens")
    draw = np.random.default_rng(0)
    for shard in range(4):
        documents = [
            EncodedDocument(f"{n}", "ab"[n % 2], "u", draw.integers(0, 4096, 700), 1, "f", n)
            for n in range(60)
        ]
        write_shard(folder, f"{shard}", ShardVocabulary(VOCABULARY, "tokenizer"), documents)
    hashes = {f"{world} ranks": hash_order(folder, world) for world in (1, 2, 4, 8)}
    for path in storage.list_files(folder):
        storage.write(f"{s3}/tokens/{path.rpartition('/')[2]}", storage.read(path))
    hashes["s3, 2 ranks"] = hash_order(f"{s3}/tokens", 2, str(tmp_path / "cache"))
    print_result(benchmark="SHA-256 of the order of the first 2,000 global batches", **hashes)
    assert len(set(hashes.values())) == 1
