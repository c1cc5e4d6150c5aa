"""Attention inside documents of packed rows, compared with masks of whole rows, on one thread."""

import statistics
import time

import pytest
import torch
import torch.nn.functional as F

from trainrig.hardware import cpu_has_bfloat16
from trainrig.models.attention import make_added_mask, make_document_mask
from trainrig.models.decoder import Decoder, DecoderConfig, initialise
from trainrig.models.kernels import attention_blocks, blocked_attention, cpu_attention

pytestmark = pytest.mark.bench

HEADS = 6
WIDTH = 64
TOKENS = 4096
ROUNDS = 5


@pytest.mark.timeout(3600)
def test_cost_follows_the_squares_of_documents(monkeypatch, write_result):
    torch.set_num_threads(1)
    names = ["float32", "bfloat16"] if cpu_has_bfloat16() else ["float32"]
    table = {}
    for name in names:
        for places in (1024, 2048, 4096):
            for length in (128, 512):
                table[f"{name}, rows of {places}, documents of {length}"] = compare_layer(
                    getattr(torch, name), places, length
                )
    capped = {
        f"rows of {places}, documents of 256": compare_blocks(monkeypatch, places, 256)
        for places in (1024, 4096)
    }
    step = {f"rows of {places}": compare_step(monkeypatch, places) for places in (1024, 2048)}
    found = {"tokens": TOKENS, "rounds": ROUNDS, "layer": table, "soft caps": capped, "step": step}
    write_result("document-attention.json", found)
    for name, row in table.items():
        print(name, row)
    print(capped, step)
    for places in (2048, 4096):
        ratio = table[f"float32, rows of {places}, documents of 512"]["over a mask"]["median"]
        assert ratio < 0.5


def number_documents(places, length):
    """Return the document number of each position, [B, T], in as many rows as `TOKENS` fill."""
    return (torch.arange(places) // length).expand(TOKENS // places, places)


def compare_layer(dtype, places, length):
    """Return the cost of a forward and backward pass over masked and over causal attention."""
    documents = number_documents(places, length)
    rows = len(documents)
    parts = [
        torch.randn(rows, places, HEADS, WIDTH, dtype=dtype).transpose(1, 2).requires_grad_()
        for _ in range(3)
    ]
    mask = make_added_mask(make_document_mask(documents, places), dtype)
    scale = WIDTH**-0.5
    times = measure_in_turns(
        {
            "documents": lambda: run_backward(
                cpu_attention.document_attention(*parts, documents, scale=scale)
            ),
            "mask": lambda: run_backward(F.scaled_dot_product_attention(*parts, attn_mask=mask)),
            "causal": lambda: run_backward(F.scaled_dot_product_attention(*parts, is_causal=True)),
        }
    )
    return {"over a mask": ratio(times, "mask"), "over causal": ratio(times, "causal")}


def compare_blocks(monkeypatch, places, length):
    """Return the cost of capped logits in blocks over the same with all keys before each block."""
    documents = number_documents(places, length)
    rows = len(documents)
    parts = [torch.randn(rows, HEADS, places, WIDTH).requires_grad_() for _ in range(3)]

    def attend(apart):
        with monkeypatch.context() as patch:
            if not apart:
                patch.setattr(
                    attention_blocks, "_computes_rows_separately", lambda documents, new: False
                )
            seen = blocked_attention.blocked_attention(
                *parts, scale=WIDTH**-0.5, cap=30.0, documents_BS=documents
            )
            run_backward(seen)

    times = measure_in_turns({"documents": lambda: attend(True), "all": lambda: attend(False)}, 3)
    return ratio(times, "all")


def compare_step(monkeypatch, places):
    """Return the cost of a step with documents of 256 tokens over that with a mask.

    The step is a forward and backward pass of a decoder of 6 layers of 384 channels and 4,096
    entries.
    """
    config = DecoderConfig(layers=6, channels=384, heads=6, vocabulary=4096, positions=places)
    model = Decoder(config)
    initialise(model, 0)
    positions = torch.arange(places).remainder(256).expand(TOKENS // places, places)
    ids = torch.randint(4096, positions.shape)

    def go(by_document):
        with monkeypatch.context() as patch:
            if not by_document:
                patch.setattr(cpu_attention, "TOGETHER", 2**30)
            logits = model(ids, positions_BT=positions).logits
            F.cross_entropy(logits.flatten(0, 1), ids.flatten()).backward()

    return ratio(
        measure_in_turns({"documents": lambda: go(True), "mask": lambda: go(False)}, 3), "mask"
    )


def run_backward(seen):
    seen.backward(torch.ones_like(seen))


def measure_in_turns(ways, rounds=ROUNDS):
    """Return the CPU seconds of each of `ways` in each round; other processes may use the cores."""
    for way in ways.values():
        way()
    times = {name: [] for name in ways}
    for _ in range(rounds):
        for name, way in ways.items():
            began = time.process_time()
            way()
            times[name].append(time.process_time() - began)
    return times


def ratio(times, peer):
    found = sorted(a / b for a, b in zip(times["documents"], times[peer], strict=True))
    return {
        "median": round(statistics.median(found), 3),
        "from_to": [round(found[0], 3), round(found[-1], 3)],
        "milliseconds": round(1e3 * statistics.median(times["documents"]), 2),
    }
