"""A step leaves no hook behind, which every later step would call."""

import gc

import pytest
import torch

from trainrig.train import loop
from trainrig.train.run.run_folder import RunFolder

STEPS = 4
ENCODER = {"kind": "Encoder", "kv_heads": None, "feedforward_channels": 64}
MIXTURE = {"kind": "MixtureOfExperts", "experts": 4, "active": 2, "router_z_loss": 0.01}
GENERATOR = {"channels": 16, "heads": 2, "feedforward_channels": 32}
KINDS = {
    "the head shares the embedding": {},
    "the head has a bias": {"model": {"tie_embeddings": False, "biases": {"head": True}}},
    "experts": {"model": {"feedforward": MIXTURE}},
    "further heads": {
        "model": {"further_heads": 2, "tie_embeddings": False},
        "objective": {"kind": "MultiTokenPrediction", "further_weights": (1.0, 1.0)},
    },
    "encoder": {"model": ENCODER, "objective": {"kind": "MaskedLM"}},
    "encoder and decoder": {
        "model": {**ENCODER, "kind": "EncoderDecoder"},
        "objective": {"kind": "SpanCorruption"},
    },
    "generator": {
        "model": {**ENCODER, "head": "replaced", "generator": GENERATOR},
        "objective": {"kind": "ReplacedTokenDetection"},
    },
    "not deterministic, gathered by layer": {
        "training": {"deterministic": False, "parallel": {"kind": "FSDP", "reshard": "layer"}}
    },
}


class Hooks:
    """Supervisor that counts the hooks of all live tensors at each step."""

    def __init__(self):
        self.counted = {}

    def heartbeat(self, step, doing):
        if step not in self.counted and doing == "train":
            gc.collect()
            there = [item for item in gc.get_objects() if torch.is_tensor(item)]
            self.counted[step] = sum(len(tensor._backward_hooks or ()) for tensor in there)

    def stop_wanted(self):
        return False


@pytest.mark.filterwarnings("ignore:.*:FutureWarning")
@pytest.mark.parametrize(
    "kind", [next(iter(KINDS)), *(pytest.param(k, marks=pytest.mark.slow) for k in [*KINDS][1:])]
)
def test_hooks_do_not_gather_on_tensors_that_outlive_a_step(
    kind, alone, make_job, corrupted_tokens, tmp_path
):
    changes = {"training": {}, **KINDS[kind]}
    # In bfloat16 a single rank uses FSDP too, which has these hooks.
    fixed = {"steps": STEPS, "held_out": {"rows": 0}, "precision": {"compute": "bfloat16"}}
    changes["training"] = {**fixed, **changes["training"]}
    job = make_job(tmp_path / "run", tokens=corrupted_tokens, **changes)
    hooks = Hooks()
    loop.train(job, RunFolder(job.folder).take_attempt(0), None, hooks)
    assert sorted(hooks.counted) == list(range(STEPS))
    assert hooks.counted[STEPS - 1] == hooks.counted[1]
