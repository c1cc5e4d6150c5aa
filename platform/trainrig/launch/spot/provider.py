"""Detection of this machine's cloud, and of the source of its notices."""

from collections.abc import Mapping
from pathlib import Path

from trainrig.errors import ConfigError
from trainrig.launch.spot import aws, gcp
from trainrig.launch.spot.kubernetes import PodEnd
from trainrig.launch.spot.metadata import Endpoint
from trainrig.launch.spot.notices import NoticeSource

PROVIDERS = ("aws", "gcp", "kubernetes")
VENDOR = Path("/sys/class/dmi/id/sys_vendor")  # manufacturer of the machine, from its firmware
VENDORS = {"Amazon EC2": "aws", "Google": "gcp"}


def detect(environment: Mapping[str, str], vendor: Path = VENDOR) -> str:
    """Return the provider of this machine, without network requests. Raises ConfigError."""
    if "KUBERNETES_SERVICE_HOST" in environment:  # set by Kubernetes in every container
        return "kubernetes"
    made_by = vendor.read_text().strip() if vendor.exists() else "unknown maker"
    if made_by in VENDORS:
        return VENDORS[made_by]
    raise ConfigError(
        f"made by {made_by}: not a machine of a known cloud; give its provider by "
        f"--provider {'|'.join(PROVIDERS)}"
    )


def make_source(
    provider: str, environment: Mapping[str, str], endpoint: str, grace: float, now: bool
) -> NoticeSource:
    """Build the source of notices of `provider`. Raises ConfigError.

    `endpoint` is the URL of another metadata service, or empty. For `grace` and `now` see PodEnd.
    """
    if provider == "kubernetes":
        return PodEnd(grace, now)
    if provider == "aws":
        own = environment.get(aws.ENDPOINT_VARIABLE, aws.ENDPOINT)
        return aws.InstanceMetadata(Endpoint.parse(endpoint or own))
    own = environment.get(gcp.ENDPOINT_VARIABLE, gcp.ENDPOINT)
    return gcp.ComputeMetadata(Endpoint.parse(endpoint or own))
