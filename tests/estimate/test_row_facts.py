"""What `trainrig check` reports about corrupted rows, compared with rows that are corrupted."""

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from trainrig.estimate.training_check import compute_padded_share, describe_rows
from trainrig.objectives.objective_interface import find_corruption
from trainrig.objectives.objective_kinds import (
    UL2,
    CausalLM,
    MaskedLM,
    MixtureOfObjectives,
    PrefixLM,
    SpanCorruption,
)
from trainrig.tokens.batches import DECODER_IDS, IGNORE, PREFIXES, SEGMENTS
from trainrig.tokens.rows.batch_stages import BatchSettings

LENGTH = 128
MICRO_BATCH = 4


def batches(**settings: Any) -> BatchSettings:
    given = {"sequence_length": LENGTH, "global_batch": 16, "micro_batch": MICRO_BATCH}
    return BatchSettings.model_validate(given | settings)


def numbers(text: str) -> list[float]:
    return [float(number) for number in re.findall(r"\d+(?:\.\d+)?", text)]


@pytest.mark.parametrize("joined", [False, True])
def test_rows_have_the_reported_width(joined, encoder, make_rows):
    objective = UL2(joined=joined)
    said = describe_rows(objective, batches())
    assert said.pop("padded") == "0.0% of positions"
    assert list(said) == [f"rows_of_{named.name}" for named in objective.list_named()]
    for named, text in zip(objective.list_named(), said.values(), strict=True):
        corruption = find_corruption(named.objective, encoder, LENGTH)
        found = corruption.apply(make_rows(MICRO_BATCH, LENGTH, mean=400), 0)
        if joined:
            read = found.arrays[PREFIXES].sum(1)
            targets = (found.targets != IGNORE).sum(1)
            assert numbers(text) == [found.ids.shape[1], LENGTH, read[0], targets[0]]
        else:
            assert numbers(text) == [found.ids.shape[1], found.arrays[DECODER_IDS].shape[1], LENGTH]
    alone = describe_rows(SpanCorruption(joined=joined, mode="R"), batches())
    assert alone == {"rows": next(iter(said.values())), "padded": "0.0% of positions"}


@pytest.mark.parametrize("joined", [False, True])
def test_reported_padding_equals_the_mean_of_real_rows(joined, encoder, make_rows):
    objective = UL2(joined=joined, deal="sample")
    (stage,) = batches().resolve_stages()
    corruption = find_corruption(objective, encoder, LENGTH)
    shares = []
    micro = make_rows(MICRO_BATCH, LENGTH, mean=400)
    for first in range(0, 800, MICRO_BATCH):
        found = corruption.apply(replace(micro, samples=micro.samples + first), 0)
        if joined:
            places = found.ids.size
            last = found.targets.shape[1] - np.argmax(found.targets[:, ::-1] != IGNORE, axis=1)
            filled = int(last.sum())
        else:
            places = found.ids.size + found.arrays[DECODER_IDS].size
            filled = int((found.arrays[SEGMENTS] > 0).sum() + (found.targets != IGNORE).sum())
        shares.append((filled, places))
    filled, places = np.sum(shares, axis=0)
    expected = compute_padded_share(objective, stage)
    assert expected == pytest.approx(1 - filled / places, abs=0.02)
    assert describe_rows(objective, batches())["padded"] == f"{expected:.1%} of positions"


def test_other_objectives_report_changed_row_widths():
    assert describe_rows(CausalLM(), batches()) == describe_rows(MaskedLM(), batches()) == {}
    prefixes = {"rows": "128 positions: 28 seen in both directions and 100 predicted, on average"}
    assert describe_rows(PrefixLM(prefix_tokens=28), batches()) == prefixes
    members = [{"objective": {"kind": "CausalLM"}}, {"objective": {"kind": "PrefixLM"}}]
    mixture = MixtureOfObjectives.model_validate({"members": tuple(members)})
    assert numbers(describe_rows(mixture, batches())["rows_of_PrefixLM"]) == [128, 63.5, 64.5]


def test_each_length_is_reported_and_documents_separately():
    staged = batches(stages=({"from_step": 5, "sequence_length": 64},), attend="document")
    said = describe_rows(SpanCorruption(), staged)
    assert [numbers(part) for part in said["rows"].split("; ")] == [[58, 14, 64], [116, 26, 128]]
    assert said["padded"].endswith("plus the padding of rows with fewer documents")
