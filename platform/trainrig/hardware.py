"""The hardware table: performance of devices and prices of machines, which users can replace.

The table is `hardware.toml` in the folder of this file, or any file of the same form. Peaks are for
dense matrix products. The share of a peak that training reaches is `utilisation`, which callers
choose.
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
    "this CPU has no hardware for bfloat16 (no avx512_bf16, no amx_bf16), so torch computes "
    "it about ten times as slowly as float32; leave training.precision.compute out"
)
CPU_INFO = Path("/proc/cpuinfo")
GPU_INFO = Path("/proc/driver/nvidia/gpus")
AMPERE = (8, 0)  # CUDA capability of NVIDIA's first devices with bfloat16
C_COMPILERS = ("clang", "gcc")  # the compilers that Triton looks for
_BFLOAT16 = re.compile(r"^(?:flags|Features)\s*:.*\b(?:avx512_bf16|amx_bf16|bf16)\b", re.MULTILINE)

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Compute = Literal["float32", "tf32", "bfloat16"]  # training.precision.compute
Collective = Literal["all-gather", "reduce-scatter", "all-reduce", "all-to-all", "send"]
OWN = "laptop"  # instance label of nodes in cluster/local.yaml, which cost nothing
SPOT = "spot"

# Labels of the nodes of a cluster: the node's pool, its instance type, and spot or on-demand.
POOL_LABEL = "trainrig.io/pool"
INSTANCE_LABEL = "trainrig.io/instance"
MARKET_LABEL = "trainrig.io/market"


class Device(Settings):
    """One accelerator, or one core of a CPU."""

    flops: dict[Compute, Positive]  # peak FLOP/s of dense matrix products
    memory: Positive  # bytes
    watts: Positive  # power at full load
    accelerator: bool = True  # False: cores of a CPU
    source: str  # source of these figures
    # The following keys are needed for plans of layouts only (docs/layouts.md).
    bandwidth: Positive | None = None  # bytes/s of the device's memory
    matmul: float | None = Field(default=None, gt=0, le=1)  # share of the peak, at the best shape
    processors: int | None = Field(default=None, ge=1)  # processors that share a product's tiles
    tile: tuple[int, int] | None = None  # rows and columns of such a tile; None: 128 x 256
    # Shares of the peak that causal attention reaches, forward and backward together, with only
    # visible pairs counted: by the fastest kernel, and by the one of deterministic runs. None: as
    # FlashAttention-2.
    attention: float | None = Field(default=None, gt=0, le=1)
    attention_exact: float | None = Field(default=None, gt=0, le=1)
    link: str | None = None  # name in `links` of the link between devices of a machine

    @property
    def computes_narrow(self) -> bool:
        """True if the device is an accelerator with matrix products in bfloat16."""
        return self.accelerator and "bfloat16" in self.flops

    def find_peak(self, compute: Compute) -> float:
        """Return the peak FLOP/s for `compute`. Raises ConfigError if the table has none."""
        if compute not in self.flops:
            raise ConfigError(
                f"no peak for {compute} in the table of hardware; add it to `flops`, or use "
                + ", ".join(sorted(self.flops))
            )
        return self.flops[compute]


class HardwareLink(Settings):
    """The network between the devices of a machine, or between machines."""

    # Bandwidth in bytes/s in each direction, per device, or per machine if `between` is "machines".
    bandwidth: Positive
    latency: Positive  # seconds of one message
    between: Literal["devices", "machines"]
    # Measured bytes/s that a device sends in each collective (the "bus bandwidth" of nccl-tests).
    # For a collective that is missing here, plans of layouts assume a share of `bandwidth`.
    reached: dict[Collective, Positive] = Field({})
    takes: float = Field(default=0.0, ge=0, le=1)  # share by which sending slows down a device
    source: str  # source of these figures


class Instance(Settings):
    """A machine that can be rented."""

    device: str  # name in `devices` of the machine's devices
    devices: int = Field(ge=1)
    vcpus: int = Field(ge=1)
    memory: Positive  # bytes, without the memory of the devices
    usd: Positive  # price per hour, on demand
    spot_usd: Positive | None = None  # price per hour, preemptible; None: unknown
    interconnect: str | None = None  # name in `links` of the link to other machines; None: unknown
    as_of: str  # date of the prices
    source: str  # source of the prices


@dataclass(frozen=True)
class Price:
    """Price of one machine."""

    usd: float  # price per hour
    listed: bool  # True: the on-demand price of a spot machine whose spot price is unknown
    as_of: str | None  # date of the price; None for a machine that is not rented


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
            fitting = [key for key, link in self.links.items() if link.between == between]
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
        """Return the device `name`. Raises ConfigError with the nearest name if it is missing."""
        if name not in self.devices:
            near = config.suggest_choice(name, self.devices)
            raise ConfigError(f"no device '{name}' in the table of hardware{near}")
        return self.devices[name]

    def find_instance(self, name: str) -> Instance:
        """Return the instance `name`. Raises ConfigError with the nearest name if it is missing."""
        if name not in self.instances:
            near = config.suggest_choice(name, self.instances)
            raise ConfigError(f"no instance '{name}' in the table of hardware{near}")
        return self.instances[name]

    def find_interconnect(self, name: str) -> HardwareLink:
        """Return the link `name` between machines.

        Raises ConfigError with the nearest name if it is missing.
        """
        fitting = {key: link for key, link in self.links.items() if link.between == "machines"}
        if name not in fitting:
            near = config.suggest_choice(name, fitting)
            raise ConfigError(f"no interconnect '{name}' in the table of hardware{near}")
        return fitting[name]

    def find_price(self, instance: str, market: str) -> Price | None:
        """Return the price of a machine by its node's labels, or None if it is unknown."""
        if instance == OWN and instance not in self.instances:
            return Price(0.0, False, None)
        offer = self.instances.get(instance)
        if offer is None:
            return None
        if market == SPOT and offer.spot_usd is not None:
            return Price(offer.spot_usd, False, offer.as_of)
        return Price(offer.usd, market == SPOT, offer.as_of)

    def count_accelerators(self, instance: str) -> int:
        """Return the number of accelerators of `instance`. Raises ConfigError if it is missing."""
        offer = self.find_instance(instance)
        return offer.devices if self.devices[offer.device].accelerator else 0

    def find_cheapest(self, device: str) -> str | None:
        """Return the instance with the lowest on-demand price per `device`, or None."""
        offers = {name: offer for name, offer in self.instances.items() if offer.device == device}
        return min(offers, key=lambda n: offers[n].usd / offers[n].devices, default=None)


def load(path: str | None = None) -> Hardware:
    """Load the table at `path`, or trainrig's own table if it is None. Raises ConfigError."""
    if path is None:
        text = resources.files("trainrig").joinpath("hardware.toml").read_text()
        path = "hardware.toml"
    else:
        text = config.read_text(path, "table of hardware")
    return config.build(Hardware, config.parse(text, path), path, text)


def identify_local_device(offers: Hardware) -> str:
    """Return the name of this machine's device in the table `offers`.

    This is the GPU if the table has a device of that name, otherwise a core of the CPU.
    """
    own = _find_gpu_name().lower().replace(" ", "-")
    slow = CPU_WITHOUT_BFLOAT16 in offers.devices and not cpu_has_bfloat16()
    core = CPU_WITHOUT_BFLOAT16 if slow else CPU
    return next((name for name in offers.devices if name in own), core)


def cpu_has_bfloat16() -> bool:
    """Return whether this CPU multiplies bfloat16 in hardware; True if that is unknown."""
    try:
        return bool(_BFLOAT16.search(CPU_INFO.read_text()))
    except OSError:
        return True


def _find_gpu_name() -> str:
    """Return the name of this machine's first GPU, or "" if there is none.

    torch could return the name as well, but takes seconds to import.
    """
    for about in sorted(GPU_INFO.glob("*/information")):
        if model := re.search(r"^Model:\s*(.+)$", about.read_text(), re.MULTILINE):
            return model[1]
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return ""
    command = [tool, "--query-gpu=name", "--format=csv,noheader"]
    result = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    return result.stdout.partition("\n")[0] if result.returncode == 0 else ""


@functools.cache
def is_triton_installed() -> bool:
    """Return whether this machine can compile GPU kernels with Triton.

    Triton comes with CUDA builds of torch, and needs a C compiler and this Python's header files.
    """
    if importlib.util.find_spec("triton") is None:
        return False
    header = Path(sysconfig.get_path("include")) / "Python.h"
    compilers = [os.environ["CC"]] if os.environ.get("CC") else C_COMPILERS
    return header.exists() and any(shutil.which(compiler) for compiler in compilers)


@functools.cache
def runs_kernels(device: "torch.device") -> bool:
    """Return whether `device` is a GPU of Ampere or newer that Triton can compile kernels for."""
    import torch

    if device.type != "cuda" or not is_triton_installed():
        return False
    return torch.cuda.get_device_capability(device) >= AMPERE
