"""Which GPU a rank is told to use."""

import pytest
import torch

from trainrig.errors import ClusterError
from trainrig.parallel.mesh import use_device
from trainrig.train.elastic.worker_agent import device_number


@pytest.mark.parametrize(
    ("own", "visible", "number"),
    [
        ([], "", None),  # a CPU rank
        ([], "0,1", None),
        (["0"], "0", 0),
        (["5"], "4,5,6", 1),
        (["5"], "4, 5", 1),
        (["GPU-8a1f"], "GPU-77c0,GPU-8a1f", 1),
    ],
)
def test_a_rank_uses_the_gpu_that_ray_gave_it(own, visible, number):
    assert device_number(own, visible) == number


@pytest.mark.parametrize("visible", ["", "0,1", "15"])
def test_a_gpu_that_is_not_visible_is_no_reason_to_take_another(visible):
    with pytest.raises(ClusterError, match=r"GPU 5, which is not among CUDA_VISIBLE_DEVICES="):
        device_number(["5"], visible)


def test_a_rank_whose_gpu_is_gone_does_not_train_on_the_cpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.raises(ClusterError, match="this rank was given GPU 2, and CUDA sees 2 here"):
        use_device(2)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ClusterError, match="given GPU 0, and CUDA sees 0 here"):
        use_device(0)
    use_device(None)
