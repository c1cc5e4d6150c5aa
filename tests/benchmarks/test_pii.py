"""Masking of personal data: its pace compared with datatrove's, and its agreement with labels.

The labels are of a set that marks passages as sensitive.
"""

import json
import os
import re
import statistics
import subprocess
import time
from collections import Counter
from pathlib import Path

import pytest
from support.side_by_side import print_result

from trainrig.corpus.rewrite.pii_mask import PII, mask
from trainrig.corpus.rewrite.pii_views import Kind

pytestmark = [pytest.mark.bench, pytest.mark.data]

ROUNDS = 5

# Read texts, one a line, then answer each empty line with the CPU seconds of masking all texts.
PEER = """
import json, sys, time
from datatrove.pipeline.formatters.pii import PIIFormatter
formatter = PIIFormatter()
texts = json.loads(sys.stdin.readline())
print(sum(formatter.format(text) != text for text in texts), flush=True)
for _ in sys.stdin:
    began = time.process_time()
    for text in texts:
        formatter.format(text)
    print(time.process_time() - began, flush=True)
"""


def cpu_seconds(texts: list[str], settings: PII) -> float:
    began = time.process_time()
    for text in texts:
        mask(text, settings)
    return time.process_time() - began


def test_all_kinds_take_less_time_than_datatrove_takes_for_two(texts: list[str]):
    python = os.environ.get("TRAINRIG_PEERS")  # an interpreter that has datatrove
    if not python:
        pytest.skip("TRAINRIG_PEERS is not set")
    megabytes = sum(len(text.encode("utf-8", "replace")) for text in texts) / 1e6
    with subprocess.Popen(
        [python, "-c", PEER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as peer:
        assert peer.stdin and peer.stdout
        peer.stdin.write(json.dumps(texts) + "\n")
        peer.stdin.flush()
        changed = int(peer.stdout.readline())
        rounds: dict[str, list[float]] = {"all": [], "two": [], "peer": []}
        for _ in range(ROUNDS):
            rounds["all"].append(cpu_seconds(texts, PII()))
            rounds["two"].append(cpu_seconds(texts, PII(kinds=("EMAIL", "IP"))))
            peer.stdin.write("\n")
            peer.stdin.flush()
            rounds["peer"].append(float(peer.stdout.readline()))
        peer.stdin.close()
    ratios = sorted(a / b for a, b in zip(rounds["all"], rounds["peer"], strict=True))
    print_result(
        benchmark="masking of real pages",
        megabytes=round(megabytes, 1),
        mb_per_cpu_second={
            name: round(megabytes / statistics.median(seconds), 1)
            for name, seconds in rounds.items()
        },
        texts_changed_by_peer=changed,
        texts_changed_by_two=sum(bool(mask(text, PII(kinds=("EMAIL", "IP")))[1]) for text in texts),
        time_over_peer=round(statistics.median(ratios), 2),
        time_over_peer_from_to=[round(ratios[0], 2), round(ratios[-1], 2)],
        rounds=ROUNDS,
    )
    assert statistics.median(ratios) < 1


# Independent patterns, cruder than trainrig's, for what a reader would call personal data.
CRUDE: dict[Kind, str] = {
    "EMAIL": r"\S@\S+\.\w\w",
    "IP": r"\d+\.\d+\.\d+\.\d+",
    "CARD": r"(?:\d[ -]?){13,19}",
    "IBAN": r"\b[A-Z]{2}\d\d ?[A-Z0-9]{4}",
    "PHONE": r"\+\d|\b\d{3}[-.) ]+\d{3}[-. ]\d{4}\b",
    "KEY": r"[A-Za-z0-9+/_-]{24,}",
}


def test_finds_compared_with_labels_of_sensitive_passages(test_data: Path):
    # The labels mark business secrets (revenues, plans, customers), not forms of personal data. So
    # precision and recall against them show how little the two have in common.
    path = test_data / "sets/enterprise_pii_classification.jsonl"
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    found = Counter()
    both = Counter()
    sensitive = 0
    crude = Counter()
    missed = Counter()
    for row in rows:
        passage = row["query"].split("'''")[1]
        label = row["choices"][row["gold"]] == "yes"
        kinds = {span.kind for span in mask(passage, PII())[1]}
        kinds_or_any = {*kinds, *(["any"] if kinds else [])}
        found.update(kinds_or_any)
        sensitive += label
        both.update(kinds_or_any if label else ())
        like = {kind for kind, pattern in CRUDE.items() if re.search(pattern, passage)}
        crude.update(like)
        missed.update(like - kinds)
    print_result(
        benchmark="masking beside enterprise_pii_classification",
        passages=len(rows),
        sensitive=sensitive,
        passages_with_finds=dict(sorted(found.items())),
        of_them_sensitive=dict(sorted(both.items())),
        precision=round(both["any"] / max(1, found["any"]), 4),
        recall=round(both["any"] / sensitive, 4),
        passages_with_look_alikes=dict(sorted(crude.items())),
        of_them_without_a_find=dict(sorted(missed.items())),
    )
    assert found["any"]
    assert not missed["EMAIL"]
