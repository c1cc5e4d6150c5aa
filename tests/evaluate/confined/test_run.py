"""What confined programs may and may not do, each tried, and the verdicts of tests."""

import os
import platform
import resource
import tempfile
import time
from pathlib import Path

import pytest
from support.escapes import ESCAPES
from support.honest import HONEST, UNFIT

from trainrig.errors import ConfigError
from trainrig.evaluate.confined import run
from trainrig.evaluate.confined.run import check_confinement, run_confined

pytestmark = pytest.mark.skipif(
    platform.machine() != "x86_64" or platform.system() != "Linux", reason="refused elsewhere"
)
ADD = "def add(a, b): return a + b"
# Limits that a program might change in the process that waits for it.
LIMITS = [value for name, value in vars(resource).items() if name.startswith("RLIMIT_")]


def _read_state(file):
    """Return the state that a program must not change: limits, environment, signals, and a file."""
    status = file.stat()
    return (
        [resource.getrlimit(limit) for limit in LIMITS],
        dict(os.environ),
        os.getpriority(os.PRIO_PROCESS, 0),
        os.sched_getaffinity(0),
        (file.read_text(), status.st_mode, status.st_mtime_ns),
    )


def test_the_suite_has_sixty_escapes_and_more():
    check_confinement()
    assert len(ESCAPES) >= 60


@pytest.mark.parametrize("name", ESCAPES)
def test_no_escape_and_no_cheat_passes(name, tmp_path, monkeypatch):
    monkeypatch.setattr(run, "START_SECONDS", 3.0)
    there = tmp_path / "there"
    there.write_text("kept")
    before = _read_state(there)
    program, tests = (
        text.replace("THERE", str(there)).replace("TRAINER", str(os.getpid()))
        for text in ESCAPES[name]
    )
    outcome = run_confined(program, tests, 0.5, 512)
    assert outcome.verdict in ("failed", "timed out")
    assert _read_state(there) == before
    assert list(tmp_path.iterdir()) == [there]


@pytest.mark.parametrize("name", HONEST)
def test_an_honest_program_passes(name):
    outcome = run_confined(*HONEST[name], 20, 512)
    assert outcome.verdict == "passed", outcome.said


@pytest.mark.parametrize("name", UNFIT)
def test_tests_that_cannot_run_fail_with_a_reason(name):
    program, tests, said = UNFIT[name]
    outcome = run_confined(program, tests, 20, 512)
    assert outcome.verdict == "failed" and said in outcome.said


def test_a_failure_has_the_error_message():
    failed = run_confined(ADD, "assert add(1, 1) == 3, 'no'", 20, 512)
    assert failed.verdict == "failed" and "AssertionError: no" in failed.said
    broken = run_confined("1 / 0", "", 20, 512)
    assert broken.verdict == "failed" and "ZeroDivisionError" in broken.said


@pytest.mark.parametrize("ending", ["import os; os._exit(0)", "import sys; sys.exit(0)"])
@pytest.mark.parametrize("tests", ["", "pass"])
def test_to_end_with_0_is_not_to_pass(ending, tests):
    assert run_confined(ending, tests, 20, 512).verdict == "failed"


def test_tests_that_catch_everything_do_not_pass_a_program_that_is_gone():
    tests = "try:\n    add(1, 2)\nexcept BaseException:\n    pass"
    gone = "import os\ndef add(a, b): os._exit(0)"
    assert run_confined(gone, tests, 20, 512).verdict == "failed"


@pytest.mark.parametrize("tests", ["while True: pass", "assert add(1, 2) == 3"])
def test_no_process_outlives_its_time_limit(tests, monkeypatch):
    monkeypatch.setattr(run, "START_SECONDS", 0.5)
    program = ADD if tests.startswith("while") else "import time; time.sleep(600)"
    begun = time.monotonic()
    assert run_confined(program, tests, 0.5, 512).verdict == "timed out"
    assert time.monotonic() - begun < 60


def _write_launcher(changed, of, to):
    """Copy the launcher's folder with `of` replaced by `to` in the module `changed`."""
    folder = Path(tempfile.mkdtemp())
    for module in Path(run.LAUNCHER).parent.glob("*.py"):
        text = module.read_text()
        if module.name == changed:
            assert of in text
            text = text.replace(of, to)
        (folder / module.name).write_text(text)
    return str(folder / "launcher.py")


@pytest.mark.parametrize("which", ["(*limits, more_calls=(kernel.WAIT4,))", "(*limits)"])
def test_where_nothing_can_be_confined_nothing_is_run(which, monkeypatch):
    off = "((_ for _ in ()).throw(OSError('Landlock is not on')), 1, 1)"
    launcher = _write_launcher("launcher.py", f"kernel.confine{which}", f"kernel.confine{off}")
    monkeypatch.setattr(run, "LAUNCHER", launcher)
    with pytest.raises(ConfigError, match="this machine cannot confine them"):
        run_confined(ADD, "assert add(1, 2) == 3", 20, 512)


def test_without_namespaces_programs_run_with_one_warning(monkeypatch, capfd):
    # clone refuses this flag, as it refuses all namespaces where they are forbidden.
    launcher = _write_launcher("kernel.py", "_NAMESPACES | _SIGCHLD", "0x20200")
    monkeypatch.setattr(run, "LAUNCHER", launcher)
    run._warn_of_shared_namespaces.cache_clear()
    for _ in range(2):
        assert run_confined(ADD, "assert add(1, 2) == 3", 20, 512).verdict == "passed"
    assert capfd.readouterr().err.count("without separate namespaces") == 1
    parent = "import os, resource\ndef limit(): resource.prlimit(os.getppid(), 0, (1, 1))"
    assert run_confined(parent, "limit()", 20, 512).verdict == "failed"


def test_sets_have_one_order_in_every_run():
    program = "def order(): return list({'a', 'b', 'c', 'd', 'e'})"
    said = {run_confined(program, "assert 0, order()", 20, 512).said for _ in range(3)}
    assert len(said) == 1
