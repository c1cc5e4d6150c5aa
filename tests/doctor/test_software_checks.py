"""`trainrig doctor` names wrong packages and unreachable clusters."""

import socket
from collections.abc import Iterator

import pytest

from trainrig.doctor import software_checks


@pytest.mark.parametrize(
    ("requirement", "severity", "found"),
    [
        ("numpy>=2.0", "ok", "all 1 required packages"),
        ("numpy<2.0", "problem", "but trainrig needs <2.0"),
        ("no-such-package-of-anyone>=1", "problem", "no-such-package-of-anyone is not installed"),
        ("no-such-package; extra == 'wandb'", "ok", "all 0 required packages"),
        ("no-such-package; python_version < '3'", "ok", "all 0 required packages"),
    ],
)
def test_a_missing_or_unfit_package_is_named(requirement: str, severity: str, found: str) -> None:
    diagnosis = software_checks.check_packages([requirement])
    assert diagnosis.severity == severity
    assert found in diagnosis.found
    assert bool(diagnosis.advice) == (severity == "problem")


def test_an_untested_python_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(software_checks, "TESTED", "CPython 3.11 on Linux m68k")
    assert software_checks.check_python().severity == "warning"
    monkeypatch.setattr(software_checks, "OLDEST", (9, 0))
    assert software_checks.check_python().severity == "problem"


@pytest.fixture
def port() -> Iterator[int]:
    """Yield a port that accepts connections."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def test_a_named_cluster_must_accept_connections(
    port: int, closed_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for address, severity in (
        (f"127.0.0.1:{port}", "ok"),
        (f"ray://127.0.0.1:{port}", "ok"),
        (f"127.0.0.1:{closed_port}", "problem"),
        ("127.0.0.1", "problem"),
        ("host:port", "problem"),
    ):
        monkeypatch.setenv("RAY_ADDRESS", address)
        diagnosis = software_checks.check_ray()
        assert (diagnosis.severity, address in diagnosis.found) == (severity, True)
