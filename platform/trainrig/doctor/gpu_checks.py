"""Checks of GPUs, their driver, torch's build and NCCL.

torch takes seconds to import, and a broken driver can end the process that imports it. It is
therefore imported in a child process, and only where the driver lists GPUs.
"""

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from trainrig.doctor.diagnosis import Diagnosis

DEVICES = Path("/sys/bus/pci/devices")
NVIDIA = "0x10de"  # vendor on the PCI bus
DISPLAY = "0x03"  # class of graphics processors on the PCI bus
ANSWER = 60.0  # time limit of nvidia-smi in s
TRIAL = 300.0  # time limit of the trial of torch in s
BUSY = 0.05  # share of a GPU's memory in use, above which other processes are reported
CPU_WHEEL = "its CPU wheel is smaller by gigabytes"
# Computes a product on each GPU, and a sum over all of them by NCCL if there are several.
PROBE = """
import json, sys, torch
found = {"available": torch.cuda.is_available(), "gpus": 0, "nccl": None, "error": ""}
try:
    if found["available"]:
        found["gpus"] = torch.cuda.device_count()
        ones = [torch.ones(64, 64, device=f"cuda:{index}") for index in range(found["gpus"])]
        assert all((one @ one).sum().item() == 64**3 for one in ones), "a product is wrong"
        if torch.distributed.is_available() and torch.distributed.is_nccl_available():
            found["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))
            if len(ones) > 1:
                torch.cuda.nccl.all_reduce(ones)
                assert all(one[0, 0].item() == len(ones) for one in ones), "a sum is wrong"
    else:
        torch.cuda.init()
except Exception as error:
    found["error"] = f"{type(error).__name__}: {error}".splitlines()[0]
print(json.dumps(found))
"""


@dataclass(frozen=True)
class Gpu:
    """One GPU as the driver lists it."""

    name: str
    driver: str
    memory: int  # MiB
    used: int  # MiB


@dataclass(frozen=True)
class GpuSurvey:
    """The GPUs of this machine, and why the driver lists none if some are plugged in."""

    gpus: tuple[Gpu, ...] = ()
    plugged: int = 0  # NVIDIA's GPUs on the PCI bus
    failure: str = ""


def survey_gpus() -> GpuSurvey:
    """Ask the PCI bus and the driver for NVIDIA's GPUs."""
    plugged = _count_plugged()
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return GpuSurvey((), plugged, "nvidia-smi is not installed")
    fields = "--query-gpu=name,driver_version,memory.total,memory.used"
    command = [tool, fields, "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=ANSWER)
    except subprocess.TimeoutExpired:
        return GpuSurvey((), plugged, f"nvidia-smi did not answer within {ANSWER:g} s")
    except OSError as error:
        return GpuSurvey((), plugged, f"nvidia-smi cannot be started: {error}")
    if done.returncode:
        reply = (done.stdout + done.stderr).strip().partition("\n")[0]
        return GpuSurvey((), plugged, reply or f"nvidia-smi ended with code {done.returncode}")
    try:
        gpus = tuple(map(_parse_gpu, filter(None, done.stdout.splitlines())))
    except ValueError:
        return GpuSurvey((), plugged, f"nvidia-smi says {done.stdout.splitlines()[0]!r}")
    return GpuSurvey(gpus, plugged)


def _count_plugged() -> int:
    count = 0
    for device in DEVICES.glob("*"):
        try:
            vendor = (device / "vendor").read_text().strip()
            kind = (device / "class").read_text().strip()
        except OSError:  # the device was removed
            continue
        count += vendor == NVIDIA and kind.startswith(DISPLAY)
    return count


def _parse_gpu(line: str) -> Gpu:
    name, driver, memory, used = (part.strip() for part in line.rsplit(",", 3))
    # A GPU that is divided by MIG answers "[N/A]" for its memory.
    return Gpu(name, driver, *(int(size) if size.isdigit() else 0 for size in (memory, used)))


def check_gpus(survey: GpuSurvey) -> Diagnosis:
    """Check that the driver lists the GPUs that are plugged in, and that they are free."""
    if not survey.gpus and survey.plugged:
        found = f"{survey.plugged} NVIDIA GPUs are plugged in, but {survey.failure or 'not listed'}"
        advice = "install NVIDIA's driver and restart the machine; Docker: --gpus all"
        return Diagnosis("gpu", "problem", found, advice)
    if not survey.gpus:
        return Diagnosis("gpu", "ok", "no NVIDIA GPU; training runs on the CPU")
    first = survey.gpus[0]
    found = f"{len(survey.gpus)} × {first.name}, {first.memory:,} MiB, driver {first.driver}"
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None and visible.strip() in ("", "-1"):
        found = f"{found}; CUDA_VISIBLE_DEVICES={visible!r} hides all of them"
        return Diagnosis("gpu", "warning", found, "unset CUDA_VISIBLE_DEVICES to train on GPUs")
    busy = [index for index, gpu in enumerate(survey.gpus) if gpu.used > BUSY * gpu.memory]
    if busy:
        found = f"{found}; memory is in use on GPU {', '.join(map(str, busy))}"
        return Diagnosis("gpu", "warning", found, "see `nvidia-smi` for the processes that use it")
    return Diagnosis("gpu", "ok", found)


def read_cuda_build() -> str | None:
    """Return the CUDA version that the installed torch is built for; None for a CPU build.

    Reads torch's file of versions without importing torch. Raises ImportError without torch.
    """
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        raise ImportError("torch is not installed")
    return parse_cuda_build(Path(spec.origin).with_name("version.py").read_text())


def parse_cuda_build(text: str) -> str | None:
    """Return the CUDA version in the text of torch's version file; None for a CPU build."""
    found = re.search(r"^cuda\b.*=\s*['\"](.+)['\"]", text, re.MULTILINE)
    return found[1] if found else None


def check_torch(survey: GpuSurvey, build: str | None, trial: "TorchTrial | None") -> Diagnosis:
    """Check that torch is built for this machine's devices, and computes on them.

    Args:
        survey: the GPUs.
        build: the CUDA version that torch is built for; None for a CPU build.
        trial: the result of `try_torch`; None if torch was not tried, as there is no GPU.
    """
    version = metadata.version("torch")
    name = f"{version}, built for CUDA {build}" if build else f"{version}, built for CPUs"
    if survey.gpus and build is None:
        advice = "install the CUDA build of the same version: pip install --force-reinstall "
        advice += f"torch=={version.partition('+')[0]}"
        return Diagnosis("torch", "problem", f"{name}; it cannot use the GPUs", advice)
    if trial is None:
        return Diagnosis("torch", "ok", f"{name}; {CPU_WHEEL}" if build else name)
    if trial.error or not trial.available:
        advice = (
            f"the driver may be older than CUDA {build} needs: update the driver, or install a "
        )
        advice += "torch that is built for an older CUDA"
        found = f"{name}; {trial.error or 'it sees no GPU'}"
        return Diagnosis("torch", "problem", found, advice)
    return Diagnosis("torch", "ok", f"{name}; products are right on {trial.gpus} of its GPUs")


def check_nccl(survey: GpuSurvey, trial: "TorchTrial | None") -> Diagnosis:
    """Check NCCL, by which several GPUs exchange gradients."""
    if len(survey.gpus) < 2:
        return Diagnosis("nccl", "ok", "not needed: this machine has fewer than two GPUs")
    if trial is None or not trial.available or trial.error:
        return Diagnosis("nccl", "problem", "not tried, because torch failed", "see `torch` above")
    if trial.nccl is None:
        advice = "install a build of torch with NCCL: the CUDA wheels have it"
        return Diagnosis("nccl", "problem", "this torch has no NCCL", advice)
    return Diagnosis("nccl", "ok", f"{trial.nccl}; a sum over {trial.gpus} GPUs is right")


@dataclass(frozen=True)
class TorchTrial:
    """Result of computing with torch on the GPUs of this machine."""

    available: bool
    gpus: int
    nccl: str | None
    error: str


def try_torch() -> TorchTrial:
    """Compute a product on each GPU and a sum over all of them, in a child process."""
    command = [sys.executable, "-c", PROBE]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TRIAL)
    except subprocess.TimeoutExpired:
        return TorchTrial(False, 0, None, f"torch did not finish within {TRIAL:g} s")
    try:
        found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    except (IndexError, ValueError):
        reply = done.stderr.strip().splitlines()
        return TorchTrial(
            False, 0, None, reply[-1] if reply else f"torch ended with {done.returncode}"
        )
    return TorchTrial(**found)
