"""The test suite itself: its reports of skipped tests, and the start of its processes."""

import ast
import subprocess
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

TESTS = Path(__file__).parent
# The first is a process of its own that shows which clients hang after a fork. The second forks
# before it has a thread, so that its rows share its imports.
FORKS = {"gpu/own_process.py"}
# These copy a process that may have threads in the middle of their work.
FORKING = ("os.fork", "os.forkpty", "multiprocessing.Process", "multiprocessing.Pool", "Pool")


def test_skips_are_reported_by_reason(pytestconfig: pytest.Config) -> None:
    conftest = pytestconfig.pluginmanager.get_plugin(str(TESTS / "conftest.py"))
    lines: list[str] = []
    reports = [SimpleNamespace(longrepr=("a.py", n, "Skipped: no GPU")) for n in range(250)]
    reports += [SimpleNamespace(longrepr=("b.py", 1, "Skipped: no network"))]
    shown = SimpleNamespace(
        stats={"skipped": reports}, section=lambda *title: None, write_line=lines.append
    )
    assert conftest is not None
    conftest.pytest_terminal_summary(shown)
    assert lines == ["  250 no GPU", "    1 no network"]
    assert "s" not in pytestconfig.option.reportchars.lower().replace("fe", "")


def test_results_say_whether_they_are_of_what_was_committed(
    pytestconfig: pytest.Config, tmp_path: Path
) -> None:
    conftest = pytestconfig.pluginmanager.get_plugin(str(TESTS / "conftest.py"))
    assert conftest is not None

    def git(*arguments: str) -> str:
        name = ("-c", "user.name=a", "-c", "user.email=a@b.c", "-c", "commit.gpgsign=false")
        told = subprocess.run(["git", *name, *arguments], cwd=tmp_path, capture_output=True)
        assert told.returncode == 0, told.stderr
        return told.stdout.decode().strip()

    measured = tmp_path / "tests" / "a.py"
    found = tmp_path / "tests" / "results" / "a.json"
    found.parent.mkdir(parents=True)
    measured.write_text("1")
    git("init", "-q")
    git("add", ".")
    git("commit", "-q", "-m", "a")
    commit = git("rev-parse", "HEAD")
    found.write_text("{}")
    assert conftest.describe_tree(measured.parent) == {"commit": commit, "changed": False}
    measured.write_text("2")
    assert conftest.describe_tree(measured.parent) == {"commit": commit, "changed": True}
    git("commit", "-q", "-a", "-m", "b")
    assert not conftest.describe_tree(measured.parent)["changed"]
    (tmp_path / "b.py").touch()  # git does not know it yet
    assert conftest.describe_tree(measured.parent)["changed"]


def list_forks(path: Path) -> Iterator[int]:
    """Yield the lines of a file that fork its own process; code in strings does not count."""
    for node in ast.walk(ast.parse(path.read_text())):
        if not isinstance(node, ast.Call):
            continue
        called = ast.unparse(node.func)
        given = [
            ast.unparse(argument) for argument in (*node.args, *(k.value for k in node.keywords))
        ]
        pool = called.endswith("ProcessPoolExecutor")
        if (
            called in FORKING
            or (called.endswith("get_context") and given in ([], ["'fork'"]))
            or (pool and "mp_context" not in [word.arg for word in node.keywords])
        ):
            yield node.lineno


def test_no_process_with_threads_is_forked() -> None:
    """Forking hung at the end: the pool's workers held a lock that a thread of pytest had taken."""
    found = {
        str(path.relative_to(TESTS)): list(list_forks(path))
        for path in sorted(TESTS.rglob("*.py"))
        if "fork" in (text := path.read_text()) or "Pool" in text or "multiprocessing" in text
    }
    assert {name for name, lines in found.items() if lines} == FORKS
