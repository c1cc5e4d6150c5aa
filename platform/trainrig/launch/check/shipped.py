"""Cluster files by name: those that come along, or any file of yours."""

from importlib import resources
from pathlib import Path

from trainrig.config import did_you_mean
from trainrig.errors import ConfigError

SUFFIXES = (".yaml", ".yml")


def clusters_folder() -> Path:
    """`cluster/`, in an installed package or in a checkout."""
    packed = Path(str(resources.files("trainrig"))) / "cluster"
    return packed if packed.is_dir() else Path(__file__).parents[4] / "cluster"


def names() -> list[str]:
    """What `find_cluster` knows without a path: `aws`, `kuberay/rayjob`, …"""
    folder = clusters_folder()
    files = [path for path in sorted(folder.rglob("*.yaml")) if path.stem != "volume"]
    return [path.relative_to(folder).with_suffix("").as_posix() for path in files]


def find_cluster(name: str) -> Path:
    """The file that NAME|FILE means: a file, `cluster/NAME.yaml` here, or one that comes along.

    Raises ConfigError with the nearest name.
    """
    if name.endswith(SUFFIXES):
        if Path(name).is_file():
            return Path(name)
        raise ConfigError(f"{name}: no such file; there come along: {', '.join(names())}")
    for folder in (Path("cluster"), clusters_folder()):
        found = folder / f"{name}.yaml"
        if found.is_file():
            return found
    raise ConfigError(f"no cluster '{name}'{did_you_mean(name, names())}")
