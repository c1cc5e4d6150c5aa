"""Which cloud this machine is of, and where that leaves its notices."""

from collections.abc import Mapping
from pathlib import Path

from trainrig.errors import ConfigError
from trainrig.launch.spot import aws, gcp
from trainrig.launch.spot.kubernetes import PodEnd
from trainrig.launch.spot.metadata import Endpoint
from trainrig.launch.spot.notices import NoticeSource

PROVIDERS = ("aws", "gcp", "kubernetes")
VENDOR = Path("/sys/class/dmi/id/sys_vendor")  # who made the machine, says its firmware
VENDORS = {"Amazon EC2": "aws", "Google": "gcp"}


def detect(environment: Mapping[str, str], vendor: Path = VENDOR) -> str:
    """The provider of this machine. Asks nobody. Raises ConfigError."""
    if "KUBERNETES_SERVICE_HOST" in environment:  # Kubernetes gives it to every container
        return "kubernetes"
    made_by = vendor.read_text().strip() if vendor.exists() else "nobody who says so"
    if made_by in VENDORS:
        return VENDORS[made_by]
    raise ConfigError(
        f"made by {made_by}: a machine of no cloud known here; name its provider by "
        f"--provider {'|'.join(PROVIDERS)}"
    )


def make_source(
    provider: str, environment: Mapping[str, str], endpoint: str, grace: float, now: bool
) -> NoticeSource:
    """Where the notices of `provider` come from. Raises ConfigError.

    `endpoint`: the URL of a metadata service in the place of the provider's own, or empty. `grace`
    and `now`: see PodEnd.
    """
    if provider == "kubernetes":
        return PodEnd(grace, now)
    if provider == "aws":
        own = environment.get(aws.ENDPOINT_VARIABLE, aws.ENDPOINT)
        return aws.InstanceMetadata(Endpoint.parse(endpoint or own))
    own = environment.get(gcp.ENDPOINT_VARIABLE, gcp.ENDPOINT)
    return gcp.ComputeMetadata(Endpoint.parse(endpoint or own))
