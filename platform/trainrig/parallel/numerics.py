"""Settings and versions, besides the run file, that the last bits of results depend on."""

import os
import platform
import re
from importlib import metadata
from pathlib import Path
from typing import Literal

import torch

from trainrig.hardware import is_triton_installed, runs_kernels
from trainrig.models.architecture.attention_settings import TOGETHER
from trainrig.parallel.layer_compilation import Compile

# cuBLAS is deterministic only with a fixed workspace (its documentation, "Results
# reproducibility"); the variable is read when cuBLAS is first used.
CUBLAS_WORKSPACE = ":4096:8"


def settle(threads: int, deterministic: bool) -> None:
    """Set up the arithmetic of this process as in the run file, before anything is computed."""
    torch.set_num_threads(threads)  # the number of threads changes the order of additions
    torch.use_deterministic_algorithms(deterministic)
    # By default torch also fills fresh memory with NaN, which costs time; no code here reads it.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    # Products of bfloat16 and float16 matrices accumulate in float32 throughout, as
    # docs/training.md says: torch's default lets cuBLAS add the parts of a split sum in the narrow
    # type.
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
    torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False
    if deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", CUBLAS_WORKSPACE)


def describe_numerics(
    compiled: Compile | Literal[False] | None = None,
    compute: str = "float32",
    attention: str | None = None,
) -> dict[str, str]:
    """Return everything that must be equal for two processes to compute the same bits, by name.

    Args:
        compiled: How layers are compiled.
        compute: Number format of the forward and backward passes.
        attention: Kernel for documents, windows, caps, sinks and ALiBi, if it is not the CPU's.
    """
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
        found["sums_of_rows"] = by_kernel  # sums of squares, for the norm of a gradient
    if attention is not None:
        # the same kernel also handles caps, sinks and ALiBi
        found["documents"] = found["windows"] = attention
    return found


def _read_driver() -> str:
    """Return the version of NVIDIA's kernel module."""
    try:
        text = Path("/proc/driver/nvidia/version").read_text(encoding="utf-8")
    except OSError:
        return "unknown"
    found = re.search(r"Kernel Module\D*([\d.]+)", text)
    return found[1] if found else "unknown"


def _read_triton() -> str:
    """Return the version of Triton, which compiles layers and the kernel of the loss."""
    try:
        return metadata.version("triton") if is_triton_installed() else "none"
    except metadata.PackageNotFoundError:
        return "none"


def describe_changes(before: dict[str, str], now: dict[str, str]) -> str:
    """Return in words how two fingerprints differ; empty if they are equal."""
    names = sorted(before.keys() | now.keys())
    return ", ".join(
        f"{name}: {before.get(name, 'none')} → {now.get(name, 'none')}"
        for name in names
        if before.get(name) != now.get(name)
    )
