"""Choice of the device for which a run's time and cost are estimated."""

from dataclasses import dataclass

from trainrig import hardware
from trainrig.errors import ConfigError
from trainrig.estimate.cost import Assumptions


@dataclass(frozen=True)
class DeviceChoice:
    """The device for which time and cost are estimated, as the command line gives it."""

    # Name in the hardware table; None: this machine's GPU, or a CPU core without one.
    device: str | None = None
    table: str | None = None  # path of a file like hardware.toml; None: hardware.toml
    # Share of the peak that training reaches; None: the default assumption.
    utilisation: float | None = None

    def resolve_name(self, offers: hardware.Hardware) -> str:
        """Return the name of the device. Raises ConfigError if the table does not have it."""
        if self.device is not None:
            offers.find_device(self.device)
            return self.device
        return hardware.identify_local_device(offers)

    def is_emulated(self, device: str, compute: str) -> bool:
        """Return whether this machine's CPU would have to emulate the dtype `compute`."""
        here = self.device is None and device in hardware.CPUS
        return here and compute == "bfloat16" and not hardware.cpu_has_bfloat16()

    def check(self) -> None:
        """Raise ConfigError for an unknown device or an invalid share of the peak."""
        self.resolve_name(hardware.load(self.table))
        _ = self.assumed

    @property
    def assumed(self) -> Assumptions:
        """The assumptions, with `utilisation` if set. Raises ConfigError for an invalid share."""
        if self.utilisation is None:
            return Assumptions()
        if not 0 < self.utilisation <= 1:
            raise ConfigError(f"--mfu ({self.utilisation:g}) must be above 0 and at most 1")
        return Assumptions(utilisation=self.utilisation)
