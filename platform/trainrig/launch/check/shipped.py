"""Cluster files by name: those that come along, or any file of yours."""

from importlib import resources
from pathlib import Path

from trainrig.config import suggest_choice
from trainrig.errors import ConfigError

SUFFIXES = (".yaml", ".yml")


def find_clusters_folder() -> Path:
    """`cluster/`, in an installed package or in a checkout."""
    packed = Path(str(resources.files("trainrig"))) / "cluster"
    return packed if packed.is_dir() else Path(__file__).parents[4] / "cluster"


def list_shipped_clusters() -> list[str]:
    """What `find_cluster` knows without a path: `aws`, `kuberay/rayjob`, …"""
    folder = find_clusters_folder()
    files = [path for path in sorted(folder.rglob("*.yaml")) if path.stem != "volume"]
    return [path.relative_to(folder).with_suffix("").as_posix() for path in files]


def find_cluster(name: str) -> Path:
    """The file that NAME|FILE means: a file, `cluster/NAME.yaml` here, or one that comes along.

    Raises ConfigError with the nearest name.
    """
    if name.endswith(SUFFIXES):
        if Path(name).is_file():
            return Path(name)
        raise ConfigError(
            f"{name}: no such file; there come along: {', '.join(list_shipped_clusters())}"
        )
    for folder in (Path("cluster"), find_clusters_folder()):
        found = folder / f"{name}.yaml"
        if found.is_file():
            return found
    raise ConfigError(f"no cluster '{name}'{suggest_choice(name, list_shipped_clusters())}")
