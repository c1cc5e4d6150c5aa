"""Search for cluster files by name: the shipped ones, or any file of the user."""

from importlib import resources
from pathlib import Path

from trainrig.config import suggest_choice
from trainrig.errors import ConfigError

SUFFIXES = (".yaml", ".yml")


def find_clusters_folder() -> Path:
    """Return the folder `cluster/` of an installed package or of a checkout."""
    packed = Path(str(resources.files("trainrig"))) / "cluster"
    return packed if packed.is_dir() else Path(__file__).parents[4] / "cluster"


def list_shipped_clusters() -> list[str]:
    """Return the names of the shipped cluster files, such as `aws` and `kuberay/rayjob`."""
    folder = find_clusters_folder()
    files = [path for path in sorted(folder.rglob("*.yaml")) if path.stem != "volume"]
    return [path.relative_to(folder).with_suffix("").as_posix() for path in files]


def find_cluster(name: str) -> Path:
    """Return the file that NAME|FILE means: a file, `cluster/NAME.yaml` here, or a shipped one.

    Raises ConfigError with the nearest name.
    """
    if name.endswith(SUFFIXES):
        if Path(name).is_file():
            return Path(name)
        raise ConfigError(
            f"{name}: no such file; trainrig comes with {', '.join(list_shipped_clusters())}"
        )
    for folder in (Path("cluster"), find_clusters_folder()):
        found = folder / f"{name}.yaml"
        if found.is_file():
            return found
    raise ConfigError(f"no cluster '{name}'{suggest_choice(name, list_shipped_clusters())}")
