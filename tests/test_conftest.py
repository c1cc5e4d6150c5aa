"""How the suite runs: what it says of skipped tests, and how its processes begin."""

import ast
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

TESTS = Path(__file__).parent
# Forks itself before it has a thread, so that its rows share what was imported.
FORKS = {"gpu/step_table.py"}
# By these a process that may have threads would be copied in the middle of what they do.
FORKING = ("os.fork", "os.forkpty", "multiprocessing.Process", "multiprocessing.Pool", "Pool")


def test_skips_are_told_by_reason(pytestconfig: pytest.Config) -> None:
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


def forks(path: Path) -> Iterator[int]:
    """The lines of a file by which its own process forks; what it writes for others is text."""
    for node in ast.walk(ast.parse(path.read_text())):
        if not isinstance(node, ast.Call):
            continue
        called = ast.unparse(node.func)
        given = [ast.unparse(each) for each in (*node.args, *(k.value for k in node.keywords))]
        pool = called.endswith("ProcessPoolExecutor")
        if (
            called in FORKING
            or (called.endswith("get_context") and given in ([], ["'fork'"]))
            or (pool and "mp_context" not in [word.arg for word in node.keywords])
        ):
            yield node.lineno


def test_no_process_with_threads_is_forked() -> None:
    """One hung at its end: the pool's workers held a lock that a thread of pytest's had taken."""
    found = {
        str(path.relative_to(TESTS)): list(forks(path))
        for path in sorted(TESTS.rglob("*.py"))
        if "fork" in (text := path.read_text()) or "Pool" in text or "multiprocessing" in text
    }
    assert {name for name, lines in found.items() if lines} == FORKS
