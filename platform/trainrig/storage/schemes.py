"""The kinds of storage by the scheme of their locations, and how a location finds its kind."""

import functools
import re
from collections.abc import Callable

from trainrig.errors import ConfigError
from trainrig.storage.backend import Backend
from trainrig.storage.local_files import LOCAL

LOCAL_SCHEME = "file"
SCHEME = re.compile(r"([a-z][a-z0-9+.-]*)://")


def _make_s3() -> Backend:
    from trainrig.storage.s3_objects import S3

    return S3


def _make_google() -> Backend:
    from trainrig.storage.obstore_objects import make_google

    return make_google()


def _make_azure() -> Backend:
    from trainrig.storage.obstore_objects import make_azure

    return make_azure()


# A backend is made at the first location of its scheme, because its library may not be installed.
SCHEMES: dict[str, Callable[[], Backend]] = {
    LOCAL_SCHEME: lambda: LOCAL,
    "s3": _make_s3,
    "gs": _make_google,
    "az": _make_azure,
}


@functools.cache
def make_backend(scheme: str) -> Backend:
    """Return the storage of `scheme`, made at the first call."""
    return SCHEMES[scheme]()


def find_backend(location: str) -> Backend:
    """Return the storage that holds `location`. Raises ConfigError for an unknown scheme."""
    named = SCHEME.match(location)
    if named is None:
        return LOCAL
    if named[1] not in SCHEMES:
        known = ", ".join(f"{scheme}://" for scheme in SCHEMES)
        raise ConfigError(
            f"{location}: there is no storage for {named[0]}; name a path, or a location that "
            f"begins with one of {known}"
        )
    try:
        return make_backend(named[1])
    except ConfigError as error:  # The backend's package is not installed.
        raise ConfigError(f"{location}: {error}") from None


def resolve(location: str) -> str:
    """Return `location`, or the path that a `file://` location names."""
    return location.removeprefix(f"{LOCAL_SCHEME}://")


def is_remote(location: str) -> bool:
    """Return whether `location` lies in a bucket, and not on a disk of this machine."""
    return find_backend(location).is_remote


def split_scheme(location: str) -> tuple[str, str]:
    """Split `location` into its scheme, which is empty for a path, and the rest."""
    named = SCHEME.match(location)
    return (named[1], location[named.end() :]) if named else ("", location)
