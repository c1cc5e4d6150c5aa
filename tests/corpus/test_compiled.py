"""The cache of compiled functions never returns code of an older source."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import trainrig
from trainrig.corpus import compiled as module

KERNEL = """
from trainrig.corpus.compiled import compile_nogil
from trainrig.corpus.constant import (
    ADDED,
)

@compile_nogil
def more(value: int) -> int:
    return value + ADDED
"""


def call_in_process(package: Path, added: int) -> str:
    """Return the function's value in a separate process, and how often it came from the cache."""
    constant = package / "corpus" / "constant.py"
    constant.write_text(f"ADDED = {added}\n")
    os.utime(constant, (0, 0))  # files of a wheel have one time, whatever the version
    code = "print(more(1), sum(more.dispatcher.stats.cache_hits.values()))"
    return run_in_process(package, f"from trainrig.corpus.kernel import more; {code}")


def run_in_process(package: Path, code: str) -> str:
    """Return what Python code prints in a separate process that has this package."""
    own = {"PYTHONPATH": str(package.parent), "XDG_CACHE_HOME": str(package.parents[1] / "cache")}
    return subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, **own},
    ).stdout.strip()


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """Write a package of one compiled function and the modules that it needs to compile."""
    package = tmp_path / "one" / "trainrig"
    (package / "corpus").mkdir(parents=True)
    for name in ("__init__.py", "corpus/__init__.py", "corpus/compiled.py"):
        shutil.copy(Path(trainrig.__file__).parent / name, package / name)
    (package / "corpus" / "kernel.py").write_text(KERNEL)
    return package


@pytest.mark.slow
def test_a_constant_from_another_file_is_never_an_old_one(package: Path) -> None:
    assert call_in_process(package, 1) == "2 0"
    assert call_in_process(package, 1) == "2 1"
    assert call_in_process(package, 5) == "6 0"
    assert call_in_process(package, 1) == "2 1"


@pytest.mark.slow
def test_compiled_code_is_reused_by_the_same_package_elsewhere(package: Path) -> None:
    """Copy the package, as it is copied to the folder of each job on a cluster."""
    assert call_in_process(package, 1) == "2 0"
    other = package.parents[1] / "other" / "trainrig"
    shutil.copytree(package, other)
    assert call_in_process(other, 1) == "2 1"


CALLER = """
from trainrig.corpus.compiled import compile_nogil

@compile_nogil
def add(left: int, right: int) -> int:
    return left + right

@compile_nogil
def add_constants(value: int) -> int:
    return add(add(value, 1), add(value, 2))
"""


@pytest.mark.slow
def test_a_function_is_compiled_once_for_all_constants_that_callers_pass(package: Path) -> None:
    (package / "corpus" / "kernel.py").write_text(CALLER)
    code = "print(k.add_constants(5), len(k.add.inner.signatures), k.add(1, 2))"
    for compiled in (1, 0):  # the second process takes the caller from the cache
        found = run_in_process(package, f"import trainrig.corpus.kernel as k; {code}")
        assert found == f"13 {compiled} 3"


def test_without_a_writable_user_cache_functions_are_kept_next_to_the_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")  # no folder can be made below it
    monkeypatch.setattr(module, "_ROOT", tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert module._find_folder.__wrapped__() == tmp_path / "cache" / "trainrig" / "compiled"
    for nowhere in (str(tmp_path / "file"), "relative"):
        monkeypatch.setenv("XDG_CACHE_HOME", nowhere)
        assert module._find_folder.__wrapped__() == tmp_path / "__pycache__" / "compiled"
    monkeypatch.setattr(module, "_ROOT", tmp_path / "file")
    assert module._find_folder.__wrapped__().name.startswith("trainrig-compiled-")


def test_the_shipped_functions_depend_on_their_sources() -> None:
    corpus = Path(module.__file__).parent
    shingles = module._find_imports(corpus / "signatures" / "shingles.py")
    assert corpus / "signatures" / "normalised_texts.py" in shingles  # compiled into its code
    assert corpus / "dedup" / "exact_repeats.py" not in shingles
    extra = corpus.parents[1] / "trainrig_contrib" / "datatrove_signals"
    counts = module._find_imports(extra / "datatrove_counts.py")
    assert {extra / "spacy_tables.py", corpus / "signals" / "text_arrays.py"} <= counts
    assert len(module._compute_digest(extra / "datatrove_counts.py")) == 16
