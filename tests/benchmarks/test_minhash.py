"""MinHash signatures: pace, accuracy and growth, and the cost of a very long text.

The peers are datasketch, and rensa and datatrove where they are installed.
"""

import importlib.util
import json
import os
import re
import statistics
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import datasketch
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.edited_pages import read_texts
from support.side_by_side import measure_cpu_seconds

from trainrig.corpus.documents import ROW_GROUP, read_columns
from trainrig.corpus.signatures.datasketch_signatures import split_words
from trainrig.corpus.signatures.minhash import MinHash
from trainrig.corpus.signatures.normalised_texts import NormalisedTexts
from trainrig.corpus.signatures.shingles import shingle_texts
from trainrig.corpus.signatures.signatures import (
    Signatures,
    compute_keys_and_shingles,
    compute_signatures,
)

pytestmark = [pytest.mark.bench, pytest.mark.data]

ROUNDS = 5
LENGTH = 5000  # characters of a text
PEER_TEXTS = 200  # fewer texts, for peers that take milliseconds a text
SETTINGS = MinHash()
PERMUTATIONS = SETTINGS.bands * SETTINGS.rows

# Read texts from one line, then answer each empty line with the CPU seconds of signing all texts.
DATATROVE = """
import json, sys, tempfile, time
from datatrove.pipeline.dedup.minhash import MinhashConfig, MinhashDedupSignature
texts = json.loads(sys.stdin.readline())
with tempfile.TemporaryDirectory() as folder:
    signer = MinhashDedupSignature(folder, MinhashConfig(num_buckets=18, hashes_per_bucket=7))
    for text in texts[:3]:
        signer.get_signature(signer.get_shingles(text))
    print("ready", flush=True)
    for _ in sys.stdin:
        began = time.process_time()
        for text in texts:
            signer.get_signature(signer.get_shingles(text))
        print(time.process_time() - began, flush=True)
"""

MEGA = """
import resource, sys, time
from pathlib import Path
from trainrig.corpus.signatures.minhash import MinHash
from trainrig.corpus.signatures.signatures import Signatures
text = Path(sys.argv[1]).read_text()
Signatures.of([("a", "", text[:1000])], MinHash())
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
began = time.process_time()
signed = Signatures.of([("a", "", text)], MinHash())
seconds = time.process_time() - began
after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print(seconds, (after - before) * 1024 / len(text.encode()), len(signed.shingles))
"""


@pytest.fixture(scope="module")
def texts(test_data: Path) -> list[str]:
    """Return the main content of real pages, concatenated and cut into texts of one length."""
    whole = "\n\n".join(read_texts(test_data))
    return [whole[start : start + LENGTH] for start in range(0, len(whole) - LENGTH, LENGTH)]


def make_column(texts: list[str]) -> pa.ChunkedArray:
    return pa.chunked_array([pa.array(texts, pa.large_string())])


def count_megabytes(texts: list[str]) -> float:
    return sum(len(text.encode()) for text in texts) / 1e6


def times_as_fast(ours: list[float], theirs: list[float]) -> list[int]:
    ratios = [a / b for a, b in zip(ours, theirs, strict=True)]
    return [round(min(ratios)), round(max(ratios))]


def five_words(text: str) -> list[str]:
    words = re.findall(r"\w+", text.lower())
    return [" ".join(words[i : i + 5]) for i in range(max(1, len(words) - 4))]


def make_text_shingles(text: str) -> list[str]:
    """Return shingles like `five_words`, with trainrig's words for scripts without spaces."""
    words = split_words(text, 5)
    return [" ".join(words[i : i + 5]) for i in range(max(1, len(words) - 4))]


def by_datasketch(texts: list[str]) -> None:
    first = datasketch.MinHash(PERMUTATIONS)
    for text in texts:
        one = first.copy()
        one.update_batch([words.encode() for words in five_words(text)])


def by_rensa(texts: list[str]) -> None:
    from rensa import RMinHash

    for text in texts:
        one = RMinHash(num_perm=PERMUTATIONS, seed=1)
        one.update(five_words(text))
        one.digest()


def test_signing_texts_compared_with_other_libraries(texts: list[str]):
    few = texts[:: len(texts) // PEER_TEXTS][:PEER_TEXTS]
    ours = make_column(texts)
    ways: dict[str, tuple[float, Callable[[], object]]] = {
        "ours": (
            count_megabytes(texts),
            lambda: compute_keys_and_shingles(NormalisedTexts.from_arrow(ours), SETTINGS),
        ),
        "datasketch": (count_megabytes(few), lambda: by_datasketch(few)),
    }
    if importlib.util.find_spec("rensa"):
        ways["rensa, of Python's shingles"] = (count_megabytes(few), lambda: by_rensa(few))
    for _, way in ways.values():
        way()
    python = os.environ.get("TRAINRIG_PEERS")  # an interpreter that has datatrove
    datatrove = None
    if python:
        datatrove = subprocess.Popen(
            [python, "-c", DATATROVE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert datatrove.stdin and datatrove.stdout
        datatrove.stdin.write(json.dumps(few) + "\n")
        datatrove.stdin.flush()
        assert datatrove.stdout.readline() == "ready\n"
    rates: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(ROUNDS):
        for name, (size, way) in ways.items():
            rates[name].append(size / measure_cpu_seconds(way))
        if datatrove and datatrove.stdin and datatrove.stdout:
            datatrove.stdin.write("\n")
            datatrove.stdin.flush()
            seconds = float(datatrove.stdout.readline())
            rates.setdefault("datatrove", []).append(count_megabytes(few) / seconds)
    if datatrove:
        datatrove.communicate()
    result = {
        "benchmark": "texts in memory to band keys and shingles",
        "megabytes": round(count_megabytes(texts), 1),
        "texts": len(texts),
        "of_them_for_peers": len(few),
        "bands": SETTINGS.bands,
        "rows": SETTINGS.rows,
        "mb_per_cpu_second": {
            name: round(statistics.median(measured), 2) for name, measured in rates.items()
        },
        "times_as_fast_from_to": {
            name: [
                round(f(a / b for a, b in zip(rates["ours"], measured, strict=True)))
                for f in (min, max)
            ]
            for name, measured in rates.items()
            if name != "ours"
        },
        "rounds": ROUNDS,
    }
    print(json.dumps(result))
    assert statistics.median(rates["ours"]) >= 80


def test_parquet_to_a_file_of_signatures(texts: list[str], tmp_path: Path):
    path = str(tmp_path / "texts.parquet")
    target = str(tmp_path / "signed.arrow")
    number = len(texts)
    table = pa.table(
        {
            "id": [f"{n:032x}" for n in range(number)],
            "url": [f"https://www.example.org/{n % 91}/page-{n}.html" for n in range(number)],
            "text": texts,
        }
    )
    pq.write_table(table, path, compression="zstd", row_group_size=ROW_GROUP)

    def signed() -> None:
        rows = read_columns(path, ["id", "url", "text"])
        Signatures.from_table(rows, SETTINGS).save(target)

    signed()
    rates = sorted(count_megabytes(texts) / measure_cpu_seconds(signed) for _ in range(ROUNDS))
    reading = sorted(
        measure_cpu_seconds(lambda: read_columns(path, ["text"])) for _ in range(ROUNDS)
    )
    result = {
        "benchmark": "Parquet to a file of signatures, with exact digests and URL keys",
        "megabytes": round(count_megabytes(texts), 1),
        "texts": number,
        "mb_per_cpu_second": round(statistics.median(rates), 1),
        "from_to": [round(rates[0], 1), round(rates[-1], 1)],
        "mb_per_cpu_second_of_reading": round(
            count_megabytes(texts) / statistics.median(reading), 1
        ),
        "bytes_per_text_byte": round(Path(target).stat().st_size / 1e6 / count_megabytes(texts), 3),
        "rounds": ROUNDS,
    }
    print(json.dumps(result))
    assert statistics.median(rates) >= 40


def test_time_grows_as_the_texts_do(texts: list[str]):
    few = texts[: len(texts) // 10]
    figures = []
    for times in (1, 10, 100):
        many = NormalisedTexts.from_arrow(make_column(few * times))
        runs = [
            measure_cpu_seconds(lambda many=many: compute_keys_and_shingles(many, SETTINGS))
            for _ in range(3)
        ]
        size = count_megabytes(few) * times
        figures.append(
            {
                "megabytes": round(size, 1),
                "mb_per_cpu_second": round(size / statistics.median(runs), 1),
            }
        )
    print(json.dumps({"benchmark": "signing 1, 10, 100 times as much", "sizes": figures}))
    rates = [figure["mb_per_cpu_second"] for figure in figures]
    assert min(rates) > max(rates) / 1.5


def test_a_very_long_text(texts: list[str], tmp_path: Path):
    path = tmp_path / "mega.txt"
    rows = np.random.default_rng(1).integers(0, len(texts), 10_500)
    path.write_text("".join(f"{n} {texts[row]}" for n, row in enumerate(rows.tolist())))
    done = subprocess.run(
        [sys.executable, "-c", MEGA, str(path)], capture_output=True, text=True, check=True
    )
    seconds, memory, shingles = map(float, done.stdout.split())
    size = path.stat().st_size / 1e6
    result = {
        "benchmark": "one text",
        "megabytes": round(size, 1),
        "shingles": int(shingles),
        "mb_per_cpu_second": round(size / seconds, 1),
        "peak_bytes_per_text_byte": round(memory, 2),
    }
    print(json.dumps(result))
    assert memory < 6


def replace_words(text: str, share: float, words: list[str], generator: np.random.Generator) -> str:
    """Return `text` with about `share` of its words replaced."""
    parts = text.split(" ")
    for place in np.flatnonzero(generator.random(len(parts)) < share).tolist():
        parts[place] = words[int(generator.integers(len(words)))]
    return " ".join(parts)


def test_estimates_are_as_near_as_datasketchs(texts: list[str]):
    generator = np.random.default_rng(11)
    words = " ".join(texts[:50]).split()
    pairs = []
    for text in texts[:: len(texts) // 600]:
        share = float(generator.choice([0.005, 0.01, 0.02, 0.04, 0.08]))
        pairs.append((text, replace_words(text, share, words, generator)))
    sets = [(set(make_text_shingles(a)), set(make_text_shingles(b))) for a, b in pairs]
    exact = np.array([len(a & b) / len(a | b) for a, b in sets])
    both = NormalisedTexts.of([text for pair in pairs for text in pair])
    shingles, ends = shingle_texts(both, 5)
    errors: dict[str, list[np.ndarray]] = {"ours": [], "datasketch": []}
    for seed in range(1, 5):
        found = compute_signatures(shingles, ends, MinHash(seed=seed))
        errors["ours"].append((found[::2] == found[1::2]).mean(1) - exact)
        estimates = []
        first = datasketch.MinHash(PERMUTATIONS, seed=seed)
        for a, b in sets:
            one = first.copy()
            other = first.copy()
            one.update_batch([word.encode() for word in a])
            other.update_batch([word.encode() for word in b])
            estimates.append(one.jaccard(other))
        errors["datasketch"].append(np.array(estimates) - exact)
    rmse = {name: float(np.sqrt(np.mean(np.square(error)))) for name, error in errors.items()}
    theory = float(np.sqrt(np.mean(exact * (1 - exact)) / PERMUTATIONS))
    result = {
        "benchmark": "estimates of Jaccard similarity on pages and their changed copies",
        "pairs": len(pairs),
        "seeds": 4,
        "permutations": PERMUTATIONS,
        "similarities": [
            round(float(quantile), 3) for quantile in np.quantile(exact, [0.05, 0.5, 0.95])
        ],
        "rmse": {name: round(value, 5) for name, value in rmse.items()},
        "rmse_by_seed": {
            name: [round(float(np.sqrt(np.mean(np.square(one)))), 5) for one in rounds_of]
            for name, rounds_of in errors.items()
        },
        "bias": {name: round(float(np.mean(error)), 5) for name, error in errors.items()},
        "rmse_of_independent_rows": round(theory, 5),
    }
    print(json.dumps(result))
    # A mean of squares over n pairs has a relative error of sqrt(2 / n).
    noise = (2 / (4 * len(pairs))) ** 0.5
    assert rmse["ours"] ** 2 <= rmse["datasketch"] ** 2 * (1 + 3 * 2**0.5 * noise)
