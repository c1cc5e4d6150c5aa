"""Checks of Python, the installed packages and Ray."""

import os
import platform
import socket
import sys
from importlib import metadata
from urllib.parse import urlsplit

from packaging.requirements import Requirement

from trainrig.doctor.diagnosis import Diagnosis
from trainrig.ray_runtime import session_folder

PACKAGE = "trainrig"
OLDEST = (3, 11)  # `requires-python` of pyproject.toml
TESTED = "CPython 3.11 on Linux x86_64"
INSTALL = "pip install -c constraints.txt -e ."
ANSWER = 5.0  # time limit in s for a cluster to accept a connection
# Values of RAY_ADDRESS that name no address of a running cluster.
NO_ADDRESS = ("", "local", "auto")


def check_python() -> Diagnosis:
    """Check that this Python and system are those that trainrig is tested with."""
    version = ".".join(platform.python_version_tuple()[:2])
    here = f"{platform.python_implementation()} {version} on {platform.system()}"
    here = f"{here} {platform.machine()}"
    found = f"{here} ({platform.python_version()}, {sys.executable})"
    if sys.version_info < OLDEST:
        needed = ".".join(map(str, OLDEST))
        advice = f"install Python {needed}, and make a new virtual environment with it"
        return Diagnosis("python", "problem", found, advice)
    if here != TESTED:
        advice = f"trainrig is tested with {TESTED}; run `make test` before you rely on it"
        return Diagnosis("python", "warning", found, advice)
    return Diagnosis("python", "ok", found)


def check_packages(requirements: list[str] | None = None) -> Diagnosis:
    """Check that each required package is installed in a version that trainrig allows.

    Args:
        requirements: the required packages; None: those of the installed trainrig.
    """
    if requirements is None:
        try:
            requirements = metadata.requires(PACKAGE) or []
        except metadata.PackageNotFoundError:
            advice = f"versions were not compared; install trainrig to compare them: {INSTALL}"
            return Diagnosis("packages", "warning", "trainrig itself is not installed", advice)
    wanted = [Requirement(line) for line in requirements]
    wanted = [one for one in wanted if one.marker is None or one.marker.evaluate({"extra": ""})]
    wrong = [text for requirement in wanted if (text := _describe_mismatch(requirement))]
    if wrong:
        return Diagnosis("packages", "problem", "; ".join(wrong), INSTALL)
    return Diagnosis("packages", "ok", f"all {len(wanted)} required packages, in allowed versions")


def _describe_mismatch(requirement: Requirement) -> str:
    """Return why the installed version does not fit `requirement`; empty if it does."""
    try:
        version = metadata.version(requirement.name)
    except metadata.PackageNotFoundError:
        return f"{requirement.name} is not installed"
    if requirement.specifier.contains(version, prereleases=True):
        return ""
    return f"{requirement.name} is {version}, but trainrig needs {requirement.specifier}"


def check_ray() -> Diagnosis:
    """Check that a local Ray can make its private folder, or that the named cluster answers."""
    try:
        version = metadata.version("ray")
    except metadata.PackageNotFoundError:
        return Diagnosis("ray", "problem", "Ray is not installed", INSTALL)
    address = os.environ.get("RAY_ADDRESS", "")
    if address not in NO_ADDRESS:
        return _check_address(version, address)
    folder = session_folder.make_private_folder()  # raises ConfigError with the advice
    session_folder.remove_private_folder(folder)
    return Diagnosis("ray", "ok", f"{version}; a local Ray keeps its sockets in {folder.parent}")


def _check_address(version: str, address: str) -> Diagnosis:
    """Check that something accepts connections at `address`, a value of RAY_ADDRESS."""
    try:
        parts = urlsplit(address if "://" in address else f"//{address}")
        host = parts.hostname
        port = parts.port
    except ValueError:  # the port is no number
        host = port = None
    if host is None or port is None:
        advice = "write HOST:PORT, such as 10.0.0.1:6379, or unset it for a local Ray"
        return Diagnosis("ray", "problem", f"RAY_ADDRESS={address} names no host and port", advice)
    try:
        socket.create_connection((host, port), timeout=ANSWER).close()
    except OSError as error:
        found = f"RAY_ADDRESS={address}: no connection: {error.strerror or error}"
        advice = "start that cluster, correct the address, or unset it for a local Ray"
        return Diagnosis("ray", "problem", found, advice)
    return Diagnosis("ray", "ok", f"{version}; {address} accepts connections")
