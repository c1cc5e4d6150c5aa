import os
from pathlib import Path

import pytest

from trainrig.quickstart.site import stdlib_pages
from trainrig.quickstart.site.article import Article
from trainrig.quickstart.site.stdlib_pages import Skipped, list_standard_modules, render


def write_modules(folder, **sources):
    for name, source in sources.items():
        (folder / f"{name}.py").write_text(source)
    return list(sources)


def find_page(outcome):
    assert isinstance(outcome, Article)
    return outcome.blocks[0].html


def list_reasons(outcomes):
    return [outcome.reason if isinstance(outcome, Skipped) else "page" for outcome in outcomes]


@pytest.mark.slow
def test_a_module_that_kills_hangs_or_raises_costs_only_itself(tmp_path):
    names = write_modules(
        tmp_path,
        first='"""The first one is fine."""',
        exits="import os\nos._exit(0)",
        crashes="import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)",
        middle='"""The middle one is fine."""',
        hangs="while True: pass",
        raises="raise ZeroDivisionError",
        leaves="raise SystemExit(0)",
        broken="def (:",
        last='"""The last one is fine."""',
    )
    assert list_reasons(render(names, 1, [str(tmp_path)], seconds=2.0)) == [
        "page",
        "killed_the_interpreter",
        "killed_the_interpreter",
        "page",
        "too_slow",
        "raised_ZeroDivisionError",
        "raised_SystemExit",
        "raised_SyntaxError",
        "page",
    ]


def test_modules_run_in_a_home_of_their_own_without_packages_console_or_display(tmp_path):
    source = """
import os, sys
from pathlib import Path
Path.home().joinpath("mark").write_text("x")
Path("mark").write_text("x")
__doc__ = (
    f"home={Path.home()} here={Path.cwd() == Path.home()} display={'DISPLAY' in os.environ} "
    f"packages={any('site-packages' in p for p in sys.path)} site={'site' in sys.modules} "
    f"input={sys.stdin.read()!r} secret={'SECRET' in os.environ}"
)
"""
    os.environ["SECRET"] = "1"
    try:
        (outcome,) = render(write_modules(tmp_path, spy=source), 1, [str(tmp_path)])
    finally:
        del os.environ["SECRET"]
    text = find_page(outcome).replace("&nbsp;", " ")
    assert (
        "home=/home/reader here=True display=False packages=False site=False input='' secret=False"
    ) in text
    assert [path.name for path in tmp_path.iterdir()] == ["spy.py"]


def is_running(pid):
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"  # ended, but not yet reaped


@pytest.mark.timeout(60)
@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="reads /proc")
def test_threads_and_processes_of_a_module_are_ended(tmp_path):
    pid_file = tmp_path / "pid"
    source = f"""
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
open({str(pid_file)!r}, "w").write(str(child.pid))
"""
    render(write_modules(tmp_path, leaver=source), 1, [str(tmp_path)])
    pid = int(pid_file.read_text())
    # The signal was sent; the system decides how soon it takes effect.
    while is_running(pid):
        pass


def test_pages_say_nothing_that_differs_between_runs_or_worker_counts():
    names = ["cgi", "difflib", "os.path", "unittest.main", "smtplib"]
    if "cgi" not in list_standard_modules():  # removed in Python 3.13
        names.remove("cgi")
    first = render(names, 1)
    assert first == render(names, 2)
    assert all("0x" not in find_page(outcome) for outcome in first)
    assert all('href="file:' not in find_page(outcome) for outcome in first)


def test_batches_keep_the_order(tmp_path, monkeypatch):
    monkeypatch.setattr(stdlib_pages, "_BATCH", 2)
    names = write_modules(tmp_path, **{f"m{i}": f'"""Number {i}."""' for i in range(5)})
    pages = render(names, 2, [str(tmp_path)])
    assert [page.path for page in pages] == [f"python/library/m{i}.html" for i in range(5)]


@pytest.mark.parametrize(
    "module",
    ["antigravity", "this", "idlelib.idle", "turtledemo.clock", "test.support", "json.__main__"],
)
def test_modules_with_side_effects_are_not_asked_for(module):
    assert module not in list_standard_modules()


def test_ordinary_modules_are_asked_for():
    assert {"json", "json.decoder", "textwrap", "sys", "math"} <= set(list_standard_modules())
