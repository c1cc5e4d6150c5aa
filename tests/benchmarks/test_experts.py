"""Pace of a mixture of experts, compared with a dense model of the same active parameters."""

import json
import runpy
import statistics
from pathlib import Path
from types import SimpleNamespace

import pytest

from trainrig.models.decoder import DecoderConfig, count_parameters

pytestmark = pytest.mark.bench
ROUNDS = 7
CHANNELS = 384
BETWEEN = 1024
EXPERTS = 8
ACTIVE = 2


HERE = Path(__file__).parent
steps = SimpleNamespace(**runpy.run_path(str(HERE / "test_train_step.py")))
side_by_side = SimpleNamespace(**runpy.run_path(str(HERE / "side_by_side.py")))


@pytest.mark.timeout(1800)
def test_a_mixture_of_experts_is_little_slower_than_its_active_parameters(alone, write_result):
    sizes = {
        "layers": 6, "channels": CHANNELS, "heads": 6, "vocabulary": steps.VOCABULARY,
        "positions": steps.LENGTH, "feedforward_channels": BETWEEN,
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
    ways = {"dense": steps.make_our_step(dense), "sparse": steps.make_our_step(sparse)}
    for action in ways.values():
        action(), action()
    rounds = [
        {name: side_by_side.cpu_seconds(way) for name, way in ways.items()} for _ in range(ROUNDS)
    ]
    ratios = sorted(seconds["dense"] / seconds["sparse"] for seconds in rounds)
    found = {
        "experts": EXPERTS,
        "active": ACTIVE,
        "active_parameters": {name: count.active for name, count in counts.items()},
        "parameters": {name: count.total for name, count in counts.items()},
        "tokens": steps.SEQUENCES * steps.LENGTH,
        # ratio of tokens per CPU second to the dense model's
        "pace": round(statistics.median(ratios), 3),
        "pace_from_to": [round(ratios[0], 3), round(ratios[-1], 3)],
    }
    print(json.dumps(found))
    write_result("experts-beside-dense.json", found)
    assert found["pace"] > 0.8
