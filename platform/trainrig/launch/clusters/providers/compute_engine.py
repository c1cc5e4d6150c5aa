"""Provider for instances of a Google Cloud project, found by their labels through gcloud."""

from collections.abc import Mapping, Sequence
from typing import Any

from trainrig.launch.clusters.providers.commands import ask, tell
from trainrig.launch.clusters.providers.machine import CloudMachine

CLUSTER_LABEL = "trainrig-cluster"
EXPIRES_LABEL = "trainrig-expires"
RAY_LABEL = "ray-cluster-name"
POOL_LABEL = "ray-user-node-type"
KIND_LABEL = "ray-node-type"
DELETED = 600.0  # seconds that gcloud may take for a deletion


class Compute:
    """Instances and disks of trainrig's clusters in all zones of `project`."""

    def __init__(self, project: str) -> None:
        self._project = project

    def machines(self, cluster: str | None) -> Sequence[CloudMachine]:
        """List machines; see Provider."""
        ours = (
            f"labels.{CLUSTER_LABEL}={cluster} OR labels.{RAY_LABEL}={cluster}"
            if cluster
            else f"labels.{CLUSTER_LABEL}:* OR labels.{RAY_LABEL}:*"
        )
        found = ask(
            [*self._build_command("instances", "list"), f"--filter={ours}", "--format=json"]
        )
        loose = f"({ours}) AND -users:*"  # disks that are attached to no instance
        disks = ask([*self._build_command("disks", "list"), f"--filter={loose}", "--format=json"])
        return [
            *(_parse_machine("instance", instance) for instance in found),
            *(_parse_machine("disk", disk) for disk in disks),
        ]

    def end(self, machines: Sequence[CloudMachine]) -> None:
        """End machines; see Provider. Heads come first, as they would start others."""
        for leading in (True, False):
            for what in ("instance", "disk"):
                for zone in sorted({m.place for m in machines}):
                    names = [
                        m.id
                        for m in machines
                        if (m.kind, m.place, m.head) == (what, zone, leading)
                        and m.state != "STOPPING"
                    ]
                    if names:
                        command = [
                            *self._build_command(f"{what}s", "delete"),
                            *names,
                            f"--zone={zone}",
                        ]
                        tell([*command, "--quiet"], DELETED)

    def _build_command(self, *what: str) -> list[str]:
        return ["gcloud", "compute", *what, f"--project={self._project}"]


def _parse_machine(kind: str, found: Mapping[str, Any]) -> CloudMachine:
    labels = found.get("labels") or {}
    spot = (found.get("scheduling") or {}).get("provisioningModel") == "SPOT"
    return CloudMachine(
        found["name"],
        kind,
        labels.get(CLUSTER_LABEL) or labels.get(RAY_LABEL, ""),
        found["status"],
        found["zone"].rpartition("/")[2],
        "head" if labels.get(KIND_LABEL) == "head" else labels.get(POOL_LABEL, ""),
        found.get("machineType", "").rpartition("/")[2],
        ("spot" if spot else "on-demand") if kind == "instance" else "",
        labels.get(EXPIRES_LABEL, ""),
    )
