"""Cost of an index of training tokens, and seconds from a text to its pages.

The documents are pieces of real pages, cut and joined at random, until there are enough. So words
and phrases are as common as on pages, and long repeats are more common, which is harder to sort.
"""

import json
import resource
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from support.shards import write_shard
from support.token_folders import write_token_folder

from trainrig import manifest
from trainrig.attribution import open_index
from trainrig.attribution.attributed_text import AttributionLimits, attribute_ids
from trainrig.tokens.shards.token_shards import EncodedDocument, ShardVocabulary
from trainrig.tokens.tokenizer import train_tokenizer
from trainrig.tokens.tokenizers.encode import Encoder
from trainrig.tokens.tokenizers.tokenizer_kinds import ByteLevelBPE

pytestmark = [pytest.mark.bench, pytest.mark.data]

QUERIES = 300
QUERY_TOKENS = 400  # about 300 English words
SHARD_TOKENS = 10_000_000
LIMITS = AttributionLimits(minimum=8, spans=10, documents=3, context=30)
INDEX = """
import json, resource, sys, time
from trainrig.attribution.index_run_file import CorpusIndexing
from trainrig.attribution.index_stage import index_tokens
before = resource.getrusage(resource.RUSAGE_SELF)
run = CorpusIndexing(tokens=(sys.argv[1],), output=sys.argv[2], workers=0)
counts = index_tokens(run).counts
after = resource.getrusage(resource.RUSAGE_SELF)
seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
print(json.dumps({**counts, "cpu_seconds": seconds, "peak_bytes": 1024 * after.ru_maxrss}))
"""


def make_document(ids: np.ndarray, dice: np.random.Generator) -> np.ndarray:
    """Return a document of pieces of 50 to 500 tokens from anywhere in `ids`."""
    begins = dice.integers(0, len(ids) - 500, dice.integers(1, 6))
    return np.concatenate([ids[begin : begin + dice.integers(50, 500)] for begin in begins])


def write_tokens(folder: Path, encoder: Encoder, ids: np.ndarray, tokens: int) -> None:
    """Write shards of `tokens` tokens in all, which no manifest of real documents describes."""
    dice = np.random.default_rng(0)
    vocabulary = ShardVocabulary(encoder.vocabulary_size, encoder.fingerprint)
    write_token_folder(folder, [], encoder.vocabulary_size, encoder)
    made = manifest.read_manifest(str(folder))
    files = dict(made.files)
    for number in range(-(-tokens // SHARD_TOKENS)):
        documents = []
        left = min(SHARD_TOKENS, tokens - number * SHARD_TOKENS)
        while left > 0:
            own = np.append(make_document(ids, dice), encoder.end_of_text)
            left -= len(own)
            name = f"{number}-{len(documents)}"
            documents.append(
                EncodedDocument(name, "web", f"https://web.example/{name}", own, 0, "f", 0)
            )
        shard = f"documents-{number:05d}"
        summary = write_shard(str(folder / "train"), shard, vocabulary, documents)
        files |= {f"train/{name}": entry for name, entry in summary.files.items()}
    whole = made.model_copy(update={"files": files})
    (folder / manifest.MANIFEST).write_text(whole.model_dump_json())


def make_queries(ids: np.ndarray) -> list[list[int]]:
    """Return texts of which half is pieces of 10 to 60 tokens of pages, and half is random ids."""
    dice = np.random.default_rng(1)
    queries = []
    for _ in range(QUERIES):
        parts: list[np.ndarray] = []
        while sum(map(len, parts)) < QUERY_TOKENS:
            length = int(dice.integers(10, 60))
            begin = int(dice.integers(0, len(ids) - length))
            parts += [ids[begin : begin + length], dice.choice(ids, length)]
        queries.append([int(token) for part in parts for token in part][:QUERY_TOKENS])
    return queries


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("megabytes", [100, 1_000])
def test_seconds_from_a_text_to_its_pages(
    megabytes: int, texts: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    encoder = Encoder(train_tokenizer(ByteLevelBPE(vocabulary=16_384), texts[:1_500]).decode())
    ids = np.concatenate(encoder.encode_batch(texts))
    write_tokens(tmp_path / "tokens", encoder, ids, megabytes * 500_000)
    ended = subprocess.run(
        [sys.executable, "-c", INDEX, str(tmp_path / "tokens"), str(tmp_path / "index")],
        capture_output=True,
        text=True,
        check=True,
    )
    counts = json.loads(ended.stdout.splitlines()[-1])
    began = time.perf_counter()
    index = open_index(tmp_path / "index")
    opened = time.perf_counter() - began
    seconds = []
    cpu = []
    covered = []
    for query in make_queries(ids):
        before = resource.getrusage(resource.RUSAGE_SELF)
        began = time.perf_counter()
        found = attribute_ids(index, query, LIMITS)
        seconds.append(time.perf_counter() - began)
        after = resource.getrusage(resource.RUSAGE_SELF)
        cpu.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
        covered.append(found.covered / found.tokens)
    later = seconds[1:]  # the first search compiles, or loads, its code
    figures = {
        "tokens": counts["tokens"],
        "partitions": counts["partitions"],
        "bytes_per_token": counts["bytes"] / counts["tokens"],
        "cpu_seconds_per_gb": counts["cpu_seconds"] * 500_000_000 / counts["tokens"],
        "peak_bytes_per_token": counts["peak_bytes"] / min(counts["tokens"], 2**26),
        "open_seconds": opened,
        "p50": float(np.percentile(later, 50)),
        "p99": float(np.percentile(later, 99)),
        "p99_cpu": float(np.percentile(cpu[1:], 99)),
        "covered": float(np.mean(covered)),
    }
    with capsys.disabled():
        print(f"\n{megabytes} MB: {json.dumps(figures)}")
    assert 0.4 < figures["covered"] < 0.75
    assert figures["bytes_per_token"] < 6.5
    assert figures["p99_cpu"] < 1
