"""A training step's share of the machine's matrix-product pace: trainrig's and its peers'.

trainrig's step is taken as the training loop takes it. nanoGPT's architecture and Transformers'
Llama run in plain loops of equal sizes. All run eager and compiled, on one thread, in alternation.
`results/step-beside-peers.json` has the latest figures.
"""

import statistics

import pytest
import torch
from support import peers, side_by_side
from support.one_batch import LENGTH, SEQUENCES, make_our_step, make_plain_step

from trainrig.flops import count_token_flops
from trainrig.hardware import cpu_has_bfloat16
from trainrig.models.decoder import DecoderConfig

pytestmark = pytest.mark.bench
ROUNDS = 5
SIDE = 2048  # side of the square matrices whose product measures the machine's pace
ARCHITECTURES = {"GPT": peers.NANOGPT, "Llama": {}}


def product(compute):
    a, b = (torch.randn(SIDE, SIDE, dtype=getattr(torch, compute)) for _ in range(2))
    return lambda: torch.mm(a, b)


def compiled(model):
    model.compile()
    return model


@pytest.mark.timeout(3600)
def test_shares_of_the_matrix_product(alone, tmp_path, write_result):
    tokens = SEQUENCES * LENGTH
    computes = ["float32", "bfloat16"] if cpu_has_bfloat16() else ["float32"]
    table = {}
    for compute in computes:
        for vocabulary in (4096, 16_384):
            table[f"{compute}, {vocabulary:,} entries"] = measure(
                compute, vocabulary, tokens, tmp_path
            )
    write_result("step-beside-peers.json", {"rounds": ROUNDS, "tokens": tokens, "shares": table})
    for name, shares in table.items():
        print(name, shares)
        # A ratio below these would be a regression on any machine.
        assert shares["ours GPT"]["median"] > 0.8 * shares["nanoGPT"]["median"]
        assert shares["ours Llama"]["median"] > 0.85 * shares["Transformers"]["median"]


def measure(compute, vocabulary, tokens, folder):
    """Return each way's share of the product's pace, the median of alternating rounds."""
    ways = {}
    operations = {}
    for name, keys in ARCHITECTURES.items():
        sizes = DecoderConfig.model_validate(
            {
                **dict(layers=6, channels=384, heads=6),
                **dict(vocabulary=vocabulary, positions=LENGTH),
                **keys,
            }
        )
        count = count_token_flops(sizes, LENGTH).training * tokens
        peer = {"GPT": "nanoGPT", "Llama": "Transformers"}[name]
        make = getattr(peers, name)
        precision = {"compute": compute}
        ways |= {
            f"ours {name}": make_our_step(sizes, precision=precision),
            f"ours {name}, compiled": make_our_step(
                sizes, precision=precision, compile={"cache": str(folder)}
            ),
            peer: make_plain_step(make(sizes), compute, vocabulary),
            f"{peer}, compiled": make_plain_step(compiled(make(sizes)), compute, vocabulary),
        }
        operations |= dict.fromkeys(list(ways)[-4:], count)
    bar = product(compute)
    for action in (bar, *ways.values()):
        action(), action()
    shares = {name: [] for name in ways}
    for _ in range(ROUNDS):
        pace = 2 * SIDE**3 / min(side_by_side.measure_cpu_seconds(bar) for _ in range(5))
        for name, action in ways.items():
            shares[name].append(operations[name] / side_by_side.measure_cpu_seconds(action) / pace)
    return {
        name: {
            "median": round(statistics.median(values), 3),
            "from_to": [round(min(values), 3), round(max(values), 3)],
        }
        for name, values in shares.items()
    }
