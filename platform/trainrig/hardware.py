"""What devices can do, and what machines with them cost: one table, which users can replace.

The table is `hardware.toml` beside this file, or any file of the same form. Peaks are those of
dense products; what training makes of them is `utilisation`, the caller's to state.
"""

from importlib import resources
from typing import Annotated, Literal, Self

from pydantic import model_validator

from trainrig import config
from trainrig.config import Field, Settings
from trainrig.errors import ConfigError

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Compute = Literal["float32", "tf32", "bfloat16"]  # training.precision.compute


class Device(Settings):
    """One accelerator, or one core of a CPU."""

    flops: dict[Compute, Positive]  # peak FLOP/s of dense matrix products
    memory: Positive  # bytes
    watts: Positive  # at full load
    accelerator: bool = True  # False: cores of a CPU
    source: str  # of these figures

    def peak(self, compute: Compute) -> float:
        """FLOP/s, at most. Raises ConfigError where the table does not say."""
        if compute not in self.flops:
            raise ConfigError(
                f"no peak for {compute} in the table of hardware; add it to `flops`, or use "
                + ", ".join(sorted(self.flops))
            )
        return self.flops[compute]


class Instance(Settings):
    """A machine that can be rented."""

    device: str  # its name in `devices`
    devices: int = Field(ge=1)
    vcpus: int = Field(ge=1)
    memory: Positive  # bytes, beside that of its devices
    usd: Positive  # an hour, on demand
    spot_usd: Positive | None = None  # an hour, preemptible; None: not known
    as_of: str  # date of the prices
    source: str  # of the prices


class Hardware(Settings):
    """Devices and instances by name."""

    devices: dict[str, Device] = Field(min_length=1)
    instances: dict[str, Instance] = Field({})

    @model_validator(mode="after")
    def _devices_are_there(self) -> Self:
        for name, instance in self.instances.items():
            if instance.device not in self.devices:
                near = config.did_you_mean(instance.device, self.devices)
                raise ValueError(f"instances.{name}: no device '{instance.device}'{near}")
        return self

    def device(self, name: str) -> Device:
        """Raises ConfigError with the nearest name if there is none of that one."""
        if name not in self.devices:
            near = config.did_you_mean(name, self.devices)
            raise ConfigError(f"no device '{name}' in the table of hardware{near}")
        return self.devices[name]

    def instance(self, name: str) -> Instance:
        """Raises ConfigError with the nearest name if there is none of that one."""
        if name not in self.instances:
            near = config.did_you_mean(name, self.instances)
            raise ConfigError(f"no instance '{name}' in the table of hardware{near}")
        return self.instances[name]

    def accelerators(self, instance: str) -> int:
        """How many it has. Raises ConfigError if there is no instance of that name."""
        offer = self.instance(instance)
        return offer.devices if self.devices[offer.device].accelerator else 0

    def cheapest(self, device: str) -> str | None:
        """The instance whose devices of that name cost the least on demand; None without one."""
        offers = {name: each for name, each in self.instances.items() if each.device == device}
        return min(offers, key=lambda n: offers[n].usd / offers[n].devices, default=None)


def load(path: str | None = None) -> Hardware:
    """The table at `path`; None: the one that comes with trainrig. Raises ConfigError."""
    if path is None:
        text = resources.files("trainrig").joinpath("hardware.toml").read_text()
        path = "hardware.toml"
    else:
        text = config.read_text(path)
    return config.build(Hardware, config.parse(text, path), path, text)
