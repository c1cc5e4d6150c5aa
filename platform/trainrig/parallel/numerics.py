"""What the last bits of a result depend on beside the run file, and how that is kept the same."""

import os
import platform
import re
from importlib import metadata
from pathlib import Path
from typing import Literal

import torch

from trainrig.hardware import has_triton, runs_kernels
from trainrig.models.architecture.attention import TOGETHER
from trainrig.parallel.compiled import Compile

# cuBLAS is deterministic only with a workspace of its own (its documentation, "Results
# reproducibility"); read when it is first used.
CUBLAS_WORKSPACE = ":4096:8"


def settle(threads: int, deterministic: bool) -> None:
    """Make the arithmetic of this process what the run file says, before anything is computed."""
    torch.set_num_threads(threads)  # another number adds in another order
    torch.use_deterministic_algorithms(deterministic)
    # It would also fill all fresh memory with NaN, which costs time; nothing here reads any.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    # Sums of products of bfloat16 and float16 are float32 all the way, as docs/training.md says:
    # torch's default lets cuBLAS add up the parts of a split sum in the narrow type.
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
    torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False
    if deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", CUBLAS_WORKSPACE)


def describe_numerics(
    compiled: Compile | Literal[False] | None = None,
    compute: str = "float32",
    attention: str | None = None,
) -> dict[str, str]:
    """What must be alike for two processes to compute the same bits, by name; `compiled`: how their
    layers are; `compute`: the numbers of their passes; `attention`: the
    kernel of their documents, windows, caps, sinks and ALiBi, if it is not a CPU's own."""
    cuda = torch.cuda.is_available()
    found = {
        "torch": torch.__version__,
        "machine": platform.machine(),
        "device": torch.cuda.get_device_name() if cuda else "cpu",
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "threads": str(torch.get_num_threads()),
        "deterministic": str(torch.are_deterministic_algorithms_enabled()),
        "compute": compute,
        "float32_products": torch.get_float32_matmul_precision(),
        "compiled": compiled.in_words if compiled else "none",
        "documents": f"read apart in rows of more than {TOGETHER} bytes a channel",
    }
    if compute == "float8":
        found["float8_sums"] = "in fewer bits forward"
    products = torch.backends.cuda.matmul
    found["narrow_sums"] = str(products.allow_bf16_reduced_precision_reduction)
    found["float16_sums"] = str(products.allow_fp16_reduced_precision_reduction)
    if cuda:
        found["cuda"] = str(torch.version.cuda)
        found["cublas_workspace"] = os.environ.get("CUBLAS_WORKSPACE_CONFIG", "none")
        found["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))  # type: ignore[no-untyped-call]
        found["cudnn"] = str(torch.backends.cudnn.version())  # type: ignore[no-untyped-call]
        found["driver"] = _read_driver()
        found["triton"] = _read_triton()
        device = torch.device("cuda")
        by_kernel = "by kernel" if runs_kernels(device) else "by halves"
        found["sums_of_rows"] = by_kernel  # of squares, for the norm of a gradient
    if attention is not None:
        found["documents"] = found["windows"] = attention  # and caps, sinks, ALiBi
    return found


def _read_driver() -> str:
    """The version of NVIDIA's kernel module."""
    try:
        text = Path("/proc/driver/nvidia/version").read_text(encoding="utf-8")
    except OSError:
        return "unknown"
    found = re.search(r"Kernel Module\D*([\d.]+)", text)
    return found[1] if found else "unknown"


def _read_triton() -> str:
    """The version of what compiled layers, and the kernel of the loss, are made of there."""
    try:
        return metadata.version("triton") if has_triton() else "none"
    except metadata.PackageNotFoundError:
        return "none"


def describe_changes(before: dict[str, str], now: dict[str, str]) -> str:
    """How two fingerprints differ, in words; empty if they do not."""
    names = sorted(before.keys() | now.keys())
    return ", ".join(
        f"{name}: {before.get(name, 'none')} → {now.get(name, 'none')}"
        for name in names
        if before.get(name) != now.get(name)
    )
