"""The device that a run's time and cost are reckoned for."""

from dataclasses import dataclass

from trainrig import hardware
from trainrig.errors import ConfigError
from trainrig.estimate.cost import Assumptions


@dataclass(frozen=True)
class DeviceChoice:
    """What a run's time and cost are reckoned for."""

    device: str | None = None  # in the table; None: this machine's GPU if it is there, else a core
    table: str | None = None  # a file like hardware.toml; None: that one
    utilisation: float | None = None  # of the peak; None: what is usual

    def resolve_name(self, offers: hardware.Hardware) -> str:
        """The device. Raises ConfigError if the table has no such one."""
        if self.device is not None:
            offers.find_device(self.device)
            return self.device
        return hardware.identify_local_device(offers)

    def is_emulated(self, device: str, compute: str) -> bool:
        """Whether a core of this machine would compute in numbers that it has no hardware for."""
        here = self.device is None and device in hardware.CPUS
        return here and compute == "bfloat16" and not hardware.cpu_has_bfloat16()

    def check(self) -> None:
        """Raise ConfigError for what cannot be, also where nothing is reckoned for it."""
        self.resolve_name(hardware.load(self.table))
        _ = self.assumed

    @property
    def assumed(self) -> Assumptions:
        """With the usual assumptions. Raises ConfigError for a share that is none."""
        if self.utilisation is None:
            return Assumptions()
        if not 0 < self.utilisation <= 1:
            raise ConfigError(f"--mfu {self.utilisation:g} is no share of a peak: 0 < share <= 1")
        return Assumptions(utilisation=self.utilisation)
