"""What the last bits of a result depend on beside the run file, and how that is kept the same."""

import os
import platform

import torch

# cuBLAS is deterministic only with a workspace of its own (its documentation, "Results
# reproducibility"); read when it is first used.
CUBLAS_WORKSPACE = ":4096:8"


def settle(threads: int, deterministic: bool) -> None:
    """Make the arithmetic of this process what the run file says, before anything is computed."""
    torch.set_num_threads(threads)  # another number adds in another order
    torch.use_deterministic_algorithms(deterministic)
    # It would also fill all fresh memory with NaN, which costs time; nothing here reads any.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    if deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", CUBLAS_WORKSPACE)


def fingerprint() -> dict[str, str]:
    """What must be alike for two processes to compute the same bits, by name."""
    cuda = torch.cuda.is_available()
    found = {
        "torch": torch.__version__,
        "machine": platform.machine(),
        "device": torch.cuda.get_device_name() if cuda else "cpu",
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "threads": str(torch.get_num_threads()),
        "deterministic": str(torch.are_deterministic_algorithms_enabled()),
        "float32_products": torch.get_float32_matmul_precision(),
    }
    if cuda:
        found["cuda"] = str(torch.version.cuda)
        found["cudnn"] = str(torch.backends.cudnn.version())  # type: ignore[no-untyped-call]
    return found


def changes(before: dict[str, str], now: dict[str, str]) -> str:
    """How two fingerprints differ, in words; empty if they do not."""
    names = sorted(before.keys() | now.keys())
    return ", ".join(
        f"{name}: {before.get(name, 'none')} → {now.get(name, 'none')}"
        for name in names
        if before.get(name) != now.get(name)
    )
