"""Fixtures and hooks of several folders: an S3 server, real data, this checkout in children."""

import contextlib
import datetime
import itertools
import json
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from hypothesis import settings
from moto.s3.responses import S3Response
from moto.server import ThreadedMotoServer

from trainrig.processes.child_process import ensure_home
from trainrig.ray_runtime import ray_session
from trainrig.storage import s3_objects

pytest_plugins = (
    "support.fixtures",
    "support.fault_fixtures",
    "support.metadata_service",
    "support.s3_proxy",
)
TESTS = Path(__file__).parent
PLATFORM = TESTS.parent / "platform"
# Files that take minutes, the longest first.
MINUTES = ("smoke/test_quickstart.py", "smoke/test_jobs.py")

# The machine is shared, so the time of a Hypothesis example says nothing about the code.
settings.register_profile("trainrig", deadline=None)
settings.load_profile("trainrig")

# A fixture that restores the environment must not take back a home that was made in its scope.
ensure_home()

# Ray reads some of these once, at its import, which may happen in any test.
for name, value in ray_session.ENVIRONMENT.items():
    os.environ.setdefault(name, value)

# Processes that tests start import the same trainrig and `support` as the tests do.
os.environ["PYTHONPATH"] = os.pathsep.join(
    [str(PLATFORM), str(TESTS), *filter(None, [os.environ.get("PYTHONPATH")])]
)

# No test uses the account of the person who runs it. A client reads these when it is made, maybe by
# a thread that outlives its test, so they hold for the whole process.
os.environ |= {
    "AWS_ACCESS_KEY_ID": "nobody",
    "AWS_SECRET_ACCESS_KEY": "nothing",
    "AWS_DEFAULT_REGION": "us-east-1",
}

# A shell's background job ignores Ctrl-C, and so would its child processes.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    with contextlib.suppress(ValueError):  # not in the main thread
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def _loggers_as_they_were() -> Iterator[None]:
    """Restore the settings of trainrig's loggers after each test."""
    logger = logging.getLogger("trainrig")
    level = logger.level
    handlers = list(logger.handlers)
    yield
    logger.setLevel(level)
    logger.handlers[:] = handlers


def describe_tree(folder: Path) -> dict[str, Any]:
    """Return the commit of the work tree that contains `folder`, and whether files differ from it.

    Results, which measurements write, are not compared.
    """

    def ask(*command: str) -> str:
        told = subprocess.run(["git", *command], capture_output=True, text=True, cwd=folder)
        return told.stdout.strip()

    changed = ask("status", "--porcelain", "--", ":/", ":(top,exclude,glob)**/results/**")
    return {"commit": ask("rev-parse", "HEAD"), "changed": bool(changed)}


@pytest.fixture
def write_result(request: pytest.FixtureRequest) -> Callable[[str, dict[str, Any]], None]:
    """Return `write_result("kills.json", found)`, which writes a file in the test's `results`.

    It adds the day, the commit, and whether files had changed since.
    """
    place = request.path.parent / "results"

    def write(name: str, found: dict[str, Any]) -> None:
        stamp = {"date": datetime.date.today().isoformat(), **describe_tree(place.parent)}
        place.mkdir(exist_ok=True)
        (place / name).write_text(json.dumps(stamp | found, indent=1) + "\n")

    return write


def pytest_make_parametrize_id(config: pytest.Config, val: object, argname: str) -> str | None:
    """Return a constant name for gzip data, which contains the time of its compression.

    Otherwise two processes that collect the same tests could get different names.
    """
    return "gzip" if isinstance(val, bytes) and b"\x1f\x8b\x08" in val else None


# Markers of tests that run only on request, and the command that runs them.
ASKED_FOR = {
    "bench": "measures; run by `make bench`",
    "soak": "takes long; run by `make soak`",
    "chaos": "kills what it runs on; run by `make chaos`",
}
QUICK = "takes seconds; run by `make test-all`"
LATER = "left for another run: the minutes for slow and chaos tests were over"
BEGUN = time.monotonic()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--quick", action="store_true", help="skip tests that are marked slow")
    parser.addoption(
        "--slow-minutes",
        type=float,
        default=float("inf"),
        help="skip slow and chaos tests that would begin more than so many minutes from the start",
    )
    parser.addoption(
        "--slow-from",
        type=int,
        default=0,
        help="start with this one of the files that have slow tests, and wrap around",
    )


@pytest.hookimpl(tryfirst=True)  # before any fixture is set up
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip slow and chaos tests once `--slow-minutes` have passed.

    CI has a time limit, and its machines differ twofold in speed.
    """
    over = time.monotonic() - BEGUN > 60 * item.config.getoption("--slow-minutes")
    if over and any(map(item.get_closest_marker, ("slow", "chaos"))):
        pytest.skip(LATER)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print one line for each reason of skipped tests, not one for each test."""
    skipped = terminalreporter.stats.get("skipped", [])
    reasons = Counter(_format_reason(report) for report in skipped)
    if reasons:
        terminalreporter.section("skipped, by reason")
    for reason, count in reasons.most_common():
        terminalreporter.write_line(f"{count:5} {reason}")


def _format_reason(report: pytest.TestReport | pytest.CollectReport) -> str:
    told = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    return told.removeprefix("Skipped: ")


_buckets = (f"bucket-{number}" for number in itertools.count())


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    asked = config.getoption("-m") or ""
    for item in items:
        marker = next(filter(item.get_closest_marker, ASKED_FOR), None)
        if marker and marker not in asked:
            item.add_marker(pytest.mark.skip(reason=ASKED_FOR[marker]))
        elif config.getoption("--quick") and item.get_closest_marker("slow"):
            item.add_marker(pytest.mark.skip(reason=QUICK))
    _put_long_files_first(items, config.getoption("--slow-from"))


def _put_long_files_first(items: list[pytest.Item], first: int) -> None:
    """Sort long test files first, so that no process is left alone with one at the end.

    Files that take minutes come first, by name, then those that start Ray, then those that are slow
    otherwise, both from the `first` on, then the rest. Ray comes early because in two runs of all
    tests, no GCS started any more in a process that had run slow tests of other kinds for a quarter
    of an hour. The cause is not known.
    """
    assert all((TESTS / name).is_file() for name in MINUTES)
    on_ray = dict.fromkeys(item.path for item in items if item.get_closest_marker("ray"))
    slow = dict.fromkeys(
        item.path for item in items if any(map(item.get_closest_marker, ("slow", "chaos")))
    )
    place: dict[Path, int] = {}
    for paths in (list(on_ray), [path for path in slow if path not in on_ray]):
        begin = first % len(paths) if paths else 0
        for path in (*paths[begin:], *paths[:begin]):
            place[path] = len(place)

    def turn(item: pytest.Item) -> int:
        name = item.path.relative_to(TESTS).as_posix() if item.path.is_relative_to(TESTS) else ""
        if name in MINUTES:
            return MINUTES.index(name)
        return len(MINUTES) + place.get(item.path, len(place))

    items.sort(key=turn)


@pytest.fixture(scope="session")
def s3_server() -> Iterator[str]:
    """Yield the address of an S3 server on this machine, for `s3` and for proxies."""
    _make_conditional_writes_atomic()
    logging.getLogger("werkzeug").setLevel(logging.ERROR)  # otherwise each request prints a line
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    s3_objects.get_client.cache_clear()
    server.stop()


def _make_conditional_writes_atomic() -> None:
    """Make conditional writes atomic, as on S3.

    Of several writers with `If-None-Match: *`, S3 lets one win; moto checks first and writes later.
    """
    one_at_a_time = threading.Lock()
    put_object = S3Response.put_object

    def put_object_alone(response: S3Response) -> Any:
        with one_at_a_time:
            return put_object(response)

    S3Response.put_object = put_object_alone


@pytest.fixture
def s3(s3_server: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return a new bucket as `s3://bucket`, for this process and its children."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3_server)
    bucket = next(_buckets)
    if s3_objects.get_client().meta.endpoint_url != s3_server:  # a test without a bucket made it
        s3_objects.get_client.cache_clear()
    s3_objects.get_client().create_bucket(Bucket=bucket)
    return f"s3://{bucket}"


@pytest.fixture(scope="session")
def test_data() -> Path:
    """Return the folder of larger real data, and skip the test where there is none."""
    folder = os.environ.get("TRAINRIG_TEST_DATA")
    if not folder:
        pytest.skip("TRAINRIG_TEST_DATA names no folder of real data")
    return Path(folder)


@pytest.fixture(scope="module")
def local_ray() -> None:
    """Start a local Ray, which this process keeps from file to file.

    So its workers start once, and import once what all stages import. It ends with the process, or
    when a test needs another and calls `ray.shutdown`.
    """
    with mock.patch.dict(os.environ):
        os.environ.pop("RAY_ADDRESS", None)
        ray_session.connect(1, "tests")


# Packages that take from half a second to several seconds to import.
SLOW = (
    "torch",
    "ray",
    "scipy",
    "pyarrow",
    "transformers",
    "numba",
    "matplotlib",
    "pandas",
    "boto3",
)
# Runs each command in a fork of a process that has imported what all commands share.
_COMMANDS = """
import json, os, sys, tempfile, traceback
from trainrig import check, cli
from trainrig.verbs import VERBS

for verb in VERBS.values():
    verb.load_model()
for line in sys.stdin:
    arguments, folder = json.loads(line)
    with tempfile.TemporaryFile("w+") as said, tempfile.TemporaryFile("w+") as ended:
        if not (child := os.fork()):
            os.chdir(folder)
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            os.dup2(said.fileno(), 1)
            os.dup2(said.fileno(), 2)
            code = 0
            try:
                cli.main(arguments)
            except SystemExit as end:
                code = end.code or 0
            except BaseException:
                traceback.print_exc()
                code = -1
            sys.stdout.flush()
            sys.stderr.flush()
            slow = [name for name in sys.argv[1:] if name in sys.modules]
            json.dump([code, slow], ended)
            ended.flush()
            os._exit(0)
        os.waitpid(child, 0)
        for file in (said, ended):
            file.seek(0)
        print(json.dumps([*json.load(ended), said.read()]), flush=True)
"""


@pytest.fixture(scope="session")
def _commands() -> Iterator[subprocess.Popen[str]]:
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-c", _COMMANDS, *SLOW], **pipes) as process:
        yield process
        process.communicate()


@pytest.fixture
def imported(_commands: subprocess.Popen[str]) -> Callable[..., tuple[list[str], str]]:
    """Return `imported("check", run_file)`: the slow packages a command imports, and its output.

    SLOW lists the packages. The command must end with `code`.
    """

    def run(
        *arguments: str | Path, cwd: Path | None = None, code: int = 0
    ) -> tuple[list[str], str]:
        assert _commands.stdin and _commands.stdout
        told = [list(map(str, arguments)), str(cwd or Path.cwd())]
        _commands.stdin.write(json.dumps(told) + "\n")
        _commands.stdin.flush()
        answer = _commands.stdout.readline()
        assert answer, "the process of commands has ended"
        found, slow, said = json.loads(answer)
        assert found == code, said
        return slow, said

    return run
