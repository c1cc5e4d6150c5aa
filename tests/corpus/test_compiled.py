"""What is kept on disk is never what an older source said."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import trainrig
from trainrig.corpus import compiled as module

KERNEL = """
from trainrig.corpus.compiled import compiled
from trainrig.corpus.constant import (
    ADDED,
)

@compiled
def more(value: int) -> int:
    return value + ADDED
"""


def answer(package: Path, added: int) -> str:
    """What the function says in a process of its own, and how often it was found compiled."""
    constant = package / "corpus" / "constant.py"
    constant.write_text(f"ADDED = {added}\n")
    os.utime(constant, (0, 0))  # as a wheel's files have one time, whatever the version
    told = "print(more(1), sum(more.stats.cache_hits.values()))"
    return subprocess.run(
        [sys.executable, "-c", f"from trainrig.corpus.kernel import more; {told}"],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": str(package.parent)},
    ).stdout.strip()


def test_a_constant_from_another_file_is_never_an_old_one(tmp_path: Path) -> None:
    package = tmp_path / "trainrig"
    (package / "corpus").mkdir(parents=True)
    for name in ("__init__.py", "corpus/__init__.py", "corpus/compiled.py"):
        shutil.copy(Path(trainrig.__file__).parent / name, package / name)
    (package / "corpus" / "kernel.py").write_text(KERNEL)
    assert answer(package, 1) == "2 0"
    assert answer(package, 1) == "2 1"
    assert answer(package, 5) == "6 0"


def test_a_package_that_is_only_read_has_its_functions_kept_elsewhere(
    tmp_path: Path, monkeypatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(module, "_ROOT", tmp_path / "file")  # no folder can be made below it
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert module._place.__wrapped__() == tmp_path / "cache" / "trainrig" / "compiled"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert module._place.__wrapped__().name.startswith("trainrig-compiled-")


def test_the_shipped_functions_hang_on_what_they_are_made_of() -> None:
    folder = Path(module.__file__).parent
    shingles = module._imported(folder / "dedup" / "shingles.py")
    assert folder / "dedup" / "letters.py" in shingles  # whose flags are in its code
    assert folder / "dedup" / "exact.py" not in shingles
