"""constraints.txt lists exactly what `pip install -c constraints.txt -e ".[dev,docs]"` installs."""

import re
import tomllib
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]
WANTED = [Requirement(line) for line in PROJECT["dependencies"] + EXTRAS["dev"]]
OF_DOCS = [Requirement(line) for line in EXTRAS["docs"]]
HEADING = "# Brought by the extra `docs` alone"


def read_pins(text: str) -> dict[str, str]:
    pins = re.findall(r"^([\w.-]+)==(\S+)$", text, re.MULTILINE)
    return {canonicalize_name(name): version for name, version in pins}


TESTED, _, ONLY_FOR_DOCS = (ROOT / "constraints.txt").read_text().partition(HEADING)
PINNED = read_pins(TESTED)
PINNED_FOR_DOCS = read_pins(ONLY_FOR_DOCS)
# Dependencies of torch's CUDA build that its CPU build lacks.
ONLY_WITH_CUDA = re.compile(r"nvidia-.*|cuda-.*|triton")


def list_dependencies(wanted: Requirement, seen: set[tuple[str, frozenset[str]]]) -> Iterator[str]:
    """Yield the names of `wanted` and of all its dependencies in this environment."""
    name = canonicalize_name(wanted.name)
    key = (name, frozenset(wanted.extras))
    if key in seen:
        return
    seen.add(key)
    yield name
    for line in metadata.requires(name) or ():
        requirement = Requirement(line)
        extras = wanted.extras or {""}
        if requirement.marker is None or any(
            requirement.marker.evaluate({"extra": one}) for one in extras
        ):
            yield from list_dependencies(requirement, seen)


@pytest.mark.parametrize("wanted", WANTED + OF_DOCS, ids=lambda requirement: requirement.name)
def test_every_requirement_has_an_allowed_pinned_version(wanted: Requirement) -> None:
    assert wanted.specifier.contains((PINNED | PINNED_FOR_DOCS)[canonicalize_name(wanted.name)])


def test_the_extras_that_decide_what_is_published_are_tested() -> None:
    """Without these extras their tests are skipped."""
    tested = {canonicalize_name(requirement.name) for requirement in WANTED}
    for extra in ("datatrove", "mlflow", "optuna", "wandb"):
        assert {canonicalize_name(Requirement(line).name) for line in EXTRAS[extra]} <= tested
    assert "warcio" in tested  # part of no extra: only tests read archives with it


def test_several_minor_releases_of_ray_may_be_installed() -> None:
    """The tested one is pinned; `ray_runtime/ray_private.py` has a fallback for private names."""
    (ray,) = [requirement for requirement in WANTED if requirement.name == "ray"]
    major, minor, _ = PINNED["ray"].split(".")
    assert ray.specifier.contains(PINNED["ray"])
    assert ray.specifier.contains(f"{major}.{int(minor) + 1}.0")
    assert not ray.specifier.contains(f"{int(major) + 1}.0.0")


def test_all_that_comes_along_is_pinned_and_nothing_else() -> None:
    seen: set[tuple[str, frozenset[str]]] = set()
    come = {name for wanted in WANTED for name in list_dependencies(wanted, seen)}
    assert {name for name in come - PINNED.keys() if not ONLY_WITH_CUDA.fullmatch(name)} == set()
    assert PINNED.keys() - come == set()


def test_all_that_the_site_needs_is_pinned_and_nothing_else() -> None:
    """It is no part of `dev`, so `make site` brings it first."""
    pytest.importorskip("sphinx")
    seen: set[tuple[str, frozenset[str]]] = set()
    come = {name for wanted in OF_DOCS for name in list_dependencies(wanted, seen)}
    assert come - PINNED.keys() == PINNED_FOR_DOCS.keys()
