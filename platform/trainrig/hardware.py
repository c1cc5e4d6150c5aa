"""What devices can do, and what machines with them cost: one table, which users can replace.

The table is `hardware.toml` beside this file, or any file of the same form. Peaks are those of
dense products; what training makes of them is `utilisation`, the caller's to state.
"""

import functools
import importlib.util
import os
import re
import shutil
import subprocess
import sysconfig
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, Self

from pydantic import model_validator

from trainrig import config
from trainrig.config import Field, Settings
from trainrig.errors import ConfigError

if TYPE_CHECKING:
    import torch

CPU = "cpu-core"
CPU_WITHOUT_BFLOAT16 = "cpu-core-without-bfloat16"
CPUS = CPU, CPU_WITHOUT_BFLOAT16
NO_BFLOAT16 = (
    "this CPU has no hardware for bfloat16 (no avx512_bf16, no amx_bf16): torch computes it a "
    "number at a time, about ten times as slow as float32; leave training.precision.compute out"
)
CPU_INFO = Path("/proc/cpuinfo")
GPU_INFO = Path("/proc/driver/nvidia/gpus")
AMPERE = (8, 0)  # CUDA capability of NVIDIA's first devices with bfloat16
C_COMPILERS = ("clang", "gcc")  # Triton's own choice
_BFLOAT16 = re.compile(r"^(?:flags|Features)\s*:.*\b(?:avx512_bf16|amx_bf16|bf16)\b", re.MULTILINE)

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Compute = Literal["float32", "tf32", "bfloat16"]  # training.precision.compute
Collective = Literal["all-gather", "reduce-scatter", "all-reduce", "all-to-all", "send"]
OWN = "laptop"  # what cluster/local.yaml labels its nodes with: nothing is rented
SPOT = "spot"


class Device(Settings):
    """One accelerator, or one core of a CPU."""

    flops: dict[Compute, Positive]  # peak FLOP/s of dense matrix products
    memory: Positive  # bytes
    watts: Positive  # at full load
    accelerator: bool = True  # False: cores of a CPU
    source: str  # of these figures
    # For plans of layouts (docs/layouts.md); a table without them plans none.
    bandwidth: Positive | None = None  # bytes/s of its own memory
    matmul: float | None = Field(default=None, gt=0, le=1)  # share of the peak, at the best shape
    processors: int | None = Field(default=None, ge=1)  # that a product's tiles are dealt to
    tile: tuple[int, int] | None = None  # rows and columns of such a tile; None: 128 x 256
    link: str | None = None  # to the others of a machine, its name in `links`

    @property
    def computes_narrow(self) -> bool:
        """Whether it is an accelerator with products of bfloat16."""
        return self.accelerator and "bfloat16" in self.flops

    def find_peak(self, compute: Compute) -> float:
        """FLOP/s, at most. Raises ConfigError where the table does not say."""
        if compute not in self.flops:
            raise ConfigError(
                f"no peak for {compute} in the table of hardware; add it to `flops`, or use "
                + ", ".join(sorted(self.flops))
            )
        return self.flops[compute]


class HardwareLink(Settings):
    """What devices of a machine, or machines, are joined by."""

    bandwidth: Positive  # bytes/s each way: of one device, or for `between` machines of one machine
    latency: Positive  # seconds of one message
    between: Literal["devices", "machines"]
    # What each collective reaches, bytes/s that a device sends, as measured (the "bus bandwidth" of
    # nccl-tests); for what is not here, plans of layouts take a share of `bandwidth`.
    reached: dict[Collective, Positive] = Field({})
    takes: float = Field(default=0.0, ge=0, le=1)  # share of a device that sending slows it by
    source: str  # of these figures


class Instance(Settings):
    """A machine that can be rented."""

    device: str  # its name in `devices`
    devices: int = Field(ge=1)
    vcpus: int = Field(ge=1)
    memory: Positive  # bytes, beside that of its devices
    usd: Positive  # an hour, on demand
    spot_usd: Positive | None = None  # an hour, preemptible; None: not known
    interconnect: str | None = None  # to other machines, its name in `links`; None: not known
    as_of: str  # date of the prices
    source: str  # of the prices


@dataclass(frozen=True)
class Price:
    """What one machine costs."""

    usd: float  # an hour
    listed: bool  # the price on demand, of a spot machine whose own is not known
    as_of: str | None  # None: of what is not rented


class Hardware(Settings):
    """Devices and instances by name."""

    devices: dict[str, Device] = Field(min_length=1)
    instances: dict[str, Instance] = Field({})
    links: dict[str, HardwareLink] = Field({})

    @model_validator(mode="after")
    def _links_are_there(self) -> Self:
        for name, device in self.devices.items():
            self._check_link(f"devices.{name}.link", device.link, "devices")
        for name, instance in self.instances.items():
            self._check_link(f"instances.{name}.interconnect", instance.interconnect, "machines")
        return self

    def _check_link(self, where: str, name: str | None, between: str) -> None:
        if name is not None and (name not in self.links or self.links[name].between != between):
            fitting = [each for each, link in self.links.items() if link.between == between]
            near = config.suggest_choice(name, fitting)
            raise ValueError(f"{where}: no link '{name}' between {between}{near}")

    @model_validator(mode="after")
    def _devices_are_there(self) -> Self:
        for name, instance in self.instances.items():
            if instance.device not in self.devices:
                near = config.suggest_choice(instance.device, self.devices)
                raise ValueError(f"instances.{name}: no device '{instance.device}'{near}")
        return self

    def find_device(self, name: str) -> Device:
        """Raises ConfigError with the nearest name if there is none of that one."""
        if name not in self.devices:
            near = config.suggest_choice(name, self.devices)
            raise ConfigError(f"no device '{name}' in the table of hardware{near}")
        return self.devices[name]

    def find_instance(self, name: str) -> Instance:
        """Raises ConfigError with the nearest name if there is none of that one."""
        if name not in self.instances:
            near = config.suggest_choice(name, self.instances)
            raise ConfigError(f"no instance '{name}' in the table of hardware{near}")
        return self.instances[name]

    def find_interconnect(self, name: str) -> HardwareLink:
        """What joins machines. Raises ConfigError with the nearest name if there is none of it."""
        fitting = {each: link for each, link in self.links.items() if link.between == "machines"}
        if name not in fitting:
            near = config.suggest_choice(name, fitting)
            raise ConfigError(f"no interconnect '{name}' in the table of hardware{near}")
        return fitting[name]

    def find_price(self, instance: str, market: str) -> Price | None:
        """Of a machine by the labels of its node; None: not known. No other place knows prices."""
        if instance == OWN and instance not in self.instances:
            return Price(0.0, False, None)
        offer = self.instances.get(instance)
        if offer is None:
            return None
        if market == SPOT and offer.spot_usd is not None:
            return Price(offer.spot_usd, False, offer.as_of)
        return Price(offer.usd, market == SPOT, offer.as_of)

    def count_accelerators(self, instance: str) -> int:
        """How many it has. Raises ConfigError if there is no instance of that name."""
        offer = self.find_instance(instance)
        return offer.devices if self.devices[offer.device].accelerator else 0

    def find_cheapest(self, device: str) -> str | None:
        """The instance whose devices of that name cost the least on demand; None without one."""
        offers = {name: each for name, each in self.instances.items() if each.device == device}
        return min(offers, key=lambda n: offers[n].usd / offers[n].devices, default=None)


def load(path: str | None = None) -> Hardware:
    """The table at `path`; None: the one that comes with trainrig. Raises ConfigError."""
    if path is None:
        text = resources.files("trainrig").joinpath("hardware.toml").read_text()
        path = "hardware.toml"
    else:
        text = config.read_text(path, "table of hardware")
    return config.build(Hardware, config.parse(text, path), path, text)


def identify_local_device(offers: Hardware) -> str:
    """The device of `offers` that this machine has: its GPU if the table has one of that name, else
    a core of its CPU."""
    own = _find_gpu_name().lower().replace(" ", "-")
    slow = CPU_WITHOUT_BFLOAT16 in offers.devices and not cpu_has_bfloat16()
    core = CPU_WITHOUT_BFLOAT16 if slow else CPU
    return next((name for name in offers.devices if name in own), core)


def cpu_has_bfloat16() -> bool:
    """Whether this machine's CPU multiplies bfloat16 in hardware; where nothing tells, as if so."""
    try:
        return bool(_BFLOAT16.search(CPU_INFO.read_text()))
    except OSError:
        return True


def _find_gpu_name() -> str:
    """The name of this machine's first GPU, or nothing; torch, which would tell as well, takes
    seconds to import."""
    for about in sorted(GPU_INFO.glob("*/information")):
        if model := re.search(r"^Model:\s*(.+)$", about.read_text(), re.MULTILINE):
            return model[1]
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return ""
    command = [tool, "--query-gpu=name", "--format=csv,noheader"]
    told = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    return told.stdout.partition("\n")[0] if told.returncode == 0 else ""


@functools.cache
def has_triton() -> bool:
    """Whether GPU kernels of Triton can run here: it comes with CUDA builds of torch, and needs a C
    compiler and the development files of this Python to start one."""
    if importlib.util.find_spec("triton") is None:
        return False
    header = Path(sysconfig.get_path("include")) / "Python.h"
    compilers = [os.environ["CC"]] if os.environ.get("CC") else C_COMPILERS
    return header.exists() and any(shutil.which(each) for each in compilers)


@functools.cache
def runs_kernels(device: "torch.device") -> bool:
    """Whether `device` is a GPU that Triton makes kernels for here, Ampere or newer."""
    import torch

    if device.type != "cuda" or not has_triton():
        return False
    return torch.cuda.get_device_capability(device) >= AMPERE
