"""What a program of a stranger's may not do, each tried."""

import platform
import tempfile
import time
from pathlib import Path

import pytest

from trainrig.errors import ConfigError
from trainrig.evaluate.confined import run
from trainrig.evaluate.confined.run import check_confinement, run_confined

pytestmark = pytest.mark.skipif(
    platform.machine() != "x86_64" or platform.system() != "Linux", reason="refused elsewhere"
)


def test_what_computes_passes_and_what_does_not_hold_fails():
    check_confinement()
    library = "import math, re, json, hashlib, collections, itertools, random, decimal, threading"
    threads = "t = threading.Thread(target=print); t.start(); t.join()"
    assert (
        run_confined(f"{library}\n{threads}\nassert math.isqrt(9) == 3", 20, 512).verdict
        == "passed"
    )
    failed = run_confined("assert 1 + 1 == 3, 'no'", 20, 512)
    assert failed.verdict == "failed" and "AssertionError: no" in failed.said


@pytest.mark.parametrize("ending", ["import os; os._exit(0)", "import sys; sys.exit(0)"])
def test_to_end_with_0_is_not_to_pass(ending):
    assert run_confined(ending, 20, 512).verdict == "failed"


# All in one program each of which goes on after a refusal: a start costs a third of a second.
ESCAPES = {
    "write here": "open('x', 'w')",
    "write there": "open({target!r}, 'w')",
    "change": "open({there!r}, 'r+')",
    "remove": "os.unlink({there!r})",
    "truncate": "os.truncate({there!r}, 0)",
    "chmod": "os.chmod({there!r}, 0o777)",
    "utime": "os.utime({there!r})",
    "rename": "os.rename({there!r}, {target!r})",
    "link": "os.symlink('/etc/passwd', 'l')",
    "read": "open('/etc/passwd').read()",
    "read here": "open({there!r}).read()",
    "environment": "open('/proc/self/environ').read()",
    "list": "os.listdir('/home')",
    "socket": "socket.socket()",
    "local socket": "socket.socket(socket.AF_UNIX)",
    "pair": "socket.socketpair()",
    "fork": "os.fork()",
    "start": "subprocess.run(['/bin/true'])",
    "signal": "os.kill(os.getppid(), 0)",
    "limits": "resource.setrlimit(resource.RLIMIT_AS, (-1, -1))",
    "memory": "bytearray(2**30)",
    "much output": "os.write(1, b'x' * 2**21); os.write(1, b'x' * 2**21)",
}


def test_nothing_is_reached_that_is_not_the_interpreter(tmp_path):
    there, target = tmp_path / "there", Path(tempfile.gettempdir()) / "trainrig-test-escape"
    there.write_text("kept")
    before = there.stat()
    lines = ["import os, resource, socket, subprocess"]
    for name, escape in ESCAPES.items():
        code = escape.format(there=str(there), target=str(target))
        lines += ["try:", f"    {code}", "except (OSError, MemoryError, ValueError): pass"]
        lines += [f"else: raise SystemExit({name!r})"]
    outcome = run_confined("\n".join(lines), 30, 512)
    # What it printed on its way has filled its output, so the secret finds no room.
    assert outcome.verdict in ("passed", "failed") and "File too large" in outcome.said
    assert not any(f"\n{name}\n" in f"\n{outcome.said}" for name in ESCAPES), outcome.said
    assert there.read_text() == "kept" and not target.exists()
    after = there.stat()
    assert (after.st_mode, after.st_mtime_ns) == (before.st_mode, before.st_mtime_ns)


@pytest.mark.parametrize("program", ["while True: pass", "import time; time.sleep(600)"])
def test_a_program_does_not_outlive_its_time(program, monkeypatch):
    monkeypatch.setattr(run, "START_SECONDS", 0.5)
    begun = time.monotonic()
    assert run_confined(program, 0.5, 512).verdict == "timed out"
    assert time.monotonic() - begun < 60


def test_where_nothing_can_be_confined_nothing_is_run(monkeypatch):
    broken = Path(run.LAUNCHER).read_text().replace("kernel.confine(", "kernel._landlock_off(")
    monkeypatch.setattr(run, "LAUNCHER", str(_written(broken)))
    with pytest.raises(ConfigError, match="cannot be confined here, so none is run"):
        run_confined("print(1)", 20, 512)


def _written(launcher):
    folder = Path(tempfile.mkdtemp())
    kernel = Path(run.LAUNCHER).with_name("kernel.py").read_text()
    off = "\n\ndef _landlock_off(*given):\n    raise CannotConfine('Landlock is not on')\n"
    (folder / "kernel.py").write_text(kernel + off)
    path = folder / "launcher.py"
    path.write_text(launcher)
    return path
