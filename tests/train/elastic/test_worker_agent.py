"""The GPU that each rank uses, and that no process touches a GPU before ranks are forked."""

import subprocess
import sys

import pytest
import torch

from trainrig.errors import ClusterError
from trainrig.parallel.mesh import use_device
from trainrig.train.elastic.worker_agent import MODULES, find_device_number


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
    assert find_device_number(own, visible) == number


@pytest.mark.parametrize("visible", ["", "0,1", "15"])
def test_a_gpu_that_is_not_visible_is_no_reason_to_take_another(visible):
    with pytest.raises(ClusterError, match=r"GPU 5, which is not among CUDA_VISIBLE_DEVICES="):
        find_device_number(["5"], visible)


def test_a_rank_whose_gpu_is_gone_does_not_train_on_the_cpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.raises(ClusterError, match="given GPU 2, but CUDA sees 2 here"):
        use_device(2)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ClusterError, match="given GPU 0, but CUDA sees 0 here"):
        use_device(0)
    use_device(None)


# Import what a fork server imports, and record each call of a function of torch that uses the
# driver. A CUDA context does not survive a fork, nor does a mere count of devices: the forked
# process could not use the GPUs. With a CUDA build of torch, the driver's library must not even be
# mapped.
IMPORTS = """
import importlib, sys
from pathlib import Path
import torch
from torch import cuda

asked = []
def noted(name, function):
    def note(*arguments, **named):
        asked.append(name)
        return function(*arguments, **named)
    return note
for name in {asks!r}:
    setattr(cuda, name, noted(name, getattr(cuda, name)))
for name in ("_cuda_init", "_cuda_getDeviceCount", "_cuda_getCurrentRawStream"):
    if hasattr(torch._C, name):
        setattr(torch._C, name, noted(name, getattr(torch._C, name)))
before = "libcuda.so" in Path("/proc/self/maps").read_text()
for module in {modules!r}:
    importlib.import_module(module)
mapped = "libcuda.so" in Path("/proc/self/maps").read_text()
print(asked, cuda.is_initialized(), mapped and not before)
cuda.is_available()  # it would have been seen
print("is_available" in asked)
"""
ASKS = (
    *("_lazy_init", "init", "is_available", "device_count", "current_device", "set_device"),
    *("get_device_name", "get_device_properties", "get_device_capability", "synchronize"),
    *("mem_get_info", "is_bf16_supported"),
)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_imports_of_a_fork_server_never_use_the_gpu_driver():
    program = IMPORTS.format(asks=ASKS, modules=MODULES)
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert ended.stdout.splitlines() == ["[] False False", "True"], ended.stderr
