"""Pace of a mixture of experts, compared with a dense model of the same active parameters."""

import json
import statistics

import pytest
from support import side_by_side
from support.one_batch import LENGTH, SEQUENCES, VOCABULARY, make_our_step

from trainrig.models.decoder import DecoderConfig, count_parameters

pytestmark = pytest.mark.bench
ROUNDS = 7
CHANNELS = 384
BETWEEN = 1024
EXPERTS = 8
ACTIVE = 2


@pytest.mark.timeout(1800)
def test_a_mixture_of_experts_is_little_slower_than_its_active_parameters(alone, write_result):
    sizes = {
        "layers": 6, "channels": CHANNELS, "heads": 6, "vocabulary": VOCABULARY,
        "positions": LENGTH, "feedforward_channels": BETWEEN,
    }  # fmt: skip
    mixture = {
        "kind": "MixtureOfExperts", "experts": EXPERTS, "active": ACTIVE,
        "expert_channels": BETWEEN // ACTIVE,
    }  # fmt: skip
    dense = DecoderConfig.model_validate(sizes)
    sparse = DecoderConfig.model_validate({**sizes, "feedforward": mixture})
    counts = {
        name: count_parameters(model) for name, model in (("dense", dense), ("sparse", sparse))
    }
    ways = {"dense": make_our_step(dense), "sparse": make_our_step(sparse)}
    for action in ways.values():
        action(), action()
    rounds = [
        {name: side_by_side.measure_cpu_seconds(way) for name, way in ways.items()}
        for _ in range(ROUNDS)
    ]
    ratios = sorted(seconds["dense"] / seconds["sparse"] for seconds in rounds)
    found = {
        "experts": EXPERTS,
        "active": ACTIVE,
        "active_parameters": {name: count.active for name, count in counts.items()},
        "parameters": {name: count.total for name, count in counts.items()},
        "tokens": SEQUENCES * LENGTH,
        # ratio of tokens per CPU second to the dense model's
        "pace": round(statistics.median(ratios), 3),
        "pace_from_to": [round(ratios[0], 3), round(ratios[-1], 3)],
    }
    print(json.dumps(found))
    write_result("experts-beside-dense.json", found)
    assert found["pace"] > 0.8
