"""How often a step waits for its device: as often for many micro-batches as for few, but for one
question of each, how many targets it has (objectives/chunked_head.py).

On a GPU, work is queued; who asks for a number, or copies to the host, waits until all of it is
done, and the device then waits for the host. Counted on the CPU: every call that would wait there.
"""

from collections import Counter

import pytest
import torch
from torch.overrides import TorchFunctionMode

from trainrig.parallel import numerics
from trainrig.parallel.mesh import local_device
from trainrig.tokens.batches import read_local_batch
from trainrig.train.state import fresh_state
from trainrig.train.step import Stepper

# Of a tensor: what gives Python a number, or another place the bytes.
WAITS = {
    *("__bool__", "__float__", "__index__", "__int__", "cpu", "item", "nonzero", "numpy", "tolist"),
    "is_nonzero",
    "unique",
}


class Syncs(TorchFunctionMode):
    def __init__(self):
        super().__init__()
        self.found = []

    def __torch_function__(self, function, types, args=(), kwargs=None):
        name = getattr(function, "__name__", "")
        if name in WAITS:
            self.found.append(name)
        return function(*args, **(kwargs or {}))


def syncs_of_a_step(job):
    training = job.training
    numerics.settle(training.threads, training.deterministic)
    batches, state = job.make_batches(), fresh_state(job, local_device())
    stepper = Stepper(job, batches.sources, state, lambda: False)
    virtual = training.virtual_workers if training.deterministic else None
    found = []
    for step in range(2):
        share = read_local_batch(batches, 0, 1, step, virtual=virtual)
        with Syncs() as syncs:
            figures = stepper.take(share)
        assert figures.why_skipped is None
        found.append(syncs.found)
    return found[1]  # the first makes the optimizer's memory


def test_what_waits_is_counted():
    with Syncs() as syncs:
        one = torch.ones(2)
        float(one.sum())
        one.tolist()
        if one[0] > 0:
            one.cpu().numpy()
    assert sorted(syncs.found) == ["__bool__", "__float__", "cpu", "numpy", "tolist"]


@pytest.mark.parametrize("deterministic", [True, False])
def test_a_step_waits_no_more_often_for_more_micro_batches(
    deterministic, alone, make_job, tmp_path
):
    training = {"deterministic": deterministic, "metrics": {"every": 100}}
    few, many = (
        syncs_of_a_step(
            make_job(
                tmp_path / str(rows),
                training=training,
                batches={"sequence_length": 32, "global_batch": rows, "micro_batch": 2},
            )
        )
        for rows in (4, 16)
    )
    few, many = Counter(few), Counter(many)
    assert (few["nonzero"], many["nonzero"]) == (2, 8)  # one a micro-batch
    del few["nonzero"], many["nonzero"]
    assert few == many


def test_measuring_the_noise_waits_no_more_often(alone, make_job, tmp_path):
    plain, measured = (
        syncs_of_a_step(
            make_job(
                tmp_path / str(every), training={"metrics": {"every": every, "layers_every": 0}}
            )
        )
        for every in (0, 1)
    )
    assert Counter(plain) == Counter(measured)
