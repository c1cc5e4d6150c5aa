import errno
import json
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, ClassVar, Literal

import pytest

from trainrig import job, manifest, storage
from trainrig.config import NOT_IDENTITY, RunFile
from trainrig.errors import ClusterError, ConfigError, DataError, OutputTaken, Unfinished
from trainrig.manifest import Manifest
from trainrig.splits import Phase, Split
from trainrig.verbs import VERBS


class Counting(RunFile):
    verb: ClassVar[str] = "count"
    stage: Literal["count"] = "count"
    output: Annotated[str, NOT_IDENTITY]
    upto: int = 3


def count(run: Counting) -> Manifest:
    stage = manifest.claim(run.output, run, {})
    return stage.finished or stage.finish({"upto": run.upto, "deep": {"é": 1}}, {})


@pytest.fixture(autouse=True)
def quiet_again() -> Iterator[None]:
    """Silence trainrig's loggers again, which a job turns on."""
    yield
    logging.getLogger("trainrig").setLevel(logging.NOTSET)


@pytest.fixture
def run_file(tmp_path: Path) -> str:
    path = tmp_path / "run.toml"
    path.write_text(f'stage = "count"\noutput = "{tmp_path}/out"\n')
    return str(path)


def read_outcome(
    capsys: pytest.CaptureFixture[str], stage: Callable[[Counting], Manifest], *arguments: str
) -> tuple[int | str | None, str, str]:
    """Return exit code, stdout and stderr of the job."""
    try:
        job.main(Counting, stage, arguments)
        code: int | str | None = 0
    except SystemExit as ended:
        code = ended.code
    shown = capsys.readouterr()
    return code, shown.out, shown.err


def test_a_job_that_is_done_prints_its_counts_as_json(
    capsys: pytest.CaptureFixture[str], run_file: str
) -> None:
    code, out, err = read_outcome(capsys, count, run_file)
    assert (code, json.loads(out), err) == (0, {"upto": 3, "deep": {"é": 1}}, "")
    assert out.count("\n") == 1


def test_prints_of_a_stage_go_to_stderr(capsys: pytest.CaptureFixture[str], run_file: str) -> None:
    def stage(run: Counting) -> Manifest:
        print("some library says hello")
        return count(run)

    _, out, err = read_outcome(capsys, stage, run_file)
    assert json.loads(out)["upto"] == 3
    assert err == "some library says hello\n"


def test_changes_on_the_command_line_reach_the_run(
    capsys: pytest.CaptureFixture[str], run_file: str
) -> None:
    _, out, _ = read_outcome(capsys, count, run_file, "--set", "upto=4", "--set", "upto=5")
    assert json.loads(out)["upto"] == 5


@pytest.mark.parametrize(
    ("problem", "code", "line"),
    [
        (ConfigError("run.toml: bad"), 2, "run.toml: bad"),
        (DataError("pages: gone"), 2, "pages: gone"),
        (OutputTaken("out: taken"), 2, "out: taken"),
        (ClusterError("s3: down"), 1, "s3: down"),
        (Unfinished("step 3 of 9"), 75, "step 3 of 9"),
        (KeyboardInterrupt(), 130, "interrupted; run the same command to start again"),
        (
            OSError(errno.ENOSPC, "No space", "/big"),
            1,
            "/big: the disk is full; free some space and run the same command again",
        ),
        (
            OSError(errno.EDQUOT, "Quota"),
            1,
            "the disk is full; free some space and run the same command again",
        ),
        (OSError(errno.EROFS, "Read-only file system", "/cd"), 2, "/cd: Read-only file system"),
        (OSError(errno.EIO, "I/O error", "/bad"), 1, "/bad: I/O error; the disk may be failing"),
        (
            storage.UnreadableFile(errno.EIO, "I/O error", "/bad"),
            2,
            "/bad: cannot be read: I/O error; the disk may be failing",
        ),
        (OSError(errno.EACCES, "Permission denied", b"/own"), 2, "/own: Permission denied"),
    ],
)
def test_each_failure_that_is_foreseen_has_its_code_and_one_line(
    capsys: pytest.CaptureFixture[str],
    run_file: str,
    problem: BaseException,
    code: int,
    line: str,
) -> None:
    def stage(run: Counting) -> Manifest:
        raise problem

    assert read_outcome(capsys, stage, run_file) == (code, "", f"trainrig: {line}\n")


@pytest.mark.parametrize(
    ("end", "kept"),
    [
        *((SystemExit(0), 0), (SystemExit(2), 0), (ConfigError("no"), 0)),
        *((ClusterError("no node"), 1), (ZeroDivisionError(), 1)),
    ],
)
def test_the_logs_of_ray_are_kept_only_where_something_failed(
    end: BaseException, kept: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[None] = []
    monkeypatch.setattr(job.ray_local, "keep_logs", lambda: calls.append(None))
    with pytest.raises((SystemExit, ZeroDivisionError)), job.exit_codes():
        raise end
    assert len(calls) == kept


@pytest.mark.parametrize("bug", [ZeroDivisionError(), OSError(errno.EIO, "Input/output error")])
def test_an_unexpected_error_keeps_its_traceback(run_file: str, bug: Exception) -> None:
    def stage(run: Counting) -> Manifest:
        raise bug

    with pytest.raises(type(bug)):
        job.main(Counting, stage, [run_file])


def test_a_full_disk_has_an_error_of_its_own(
    capsys: pytest.CaptureFixture[str], run_file: str
) -> None:
    def stage(run: Counting) -> Manifest:
        # Every write fails because it is full.
        with Path("/dev/full").open("wb", buffering=0) as file:
            file.write(b"x")
        raise AssertionError("a full disk took a byte")

    assert read_outcome(capsys, stage, run_file)[0] == 1


@pytest.mark.parametrize(
    "arguments", [[], ["run.toml", "more.toml"], ["run.toml", "--sett", "a=1"], ["x", "--set"]]
)
def test_a_wrong_command_line_is_the_users_to_fix(
    capsys: pytest.CaptureFixture[str], arguments: list[str]
) -> None:
    code, out, err = read_outcome(capsys, count, *arguments)
    assert (code, out) == (2, "")
    assert "usage: " in err


def test_a_run_file_that_is_not_there_is_the_users_to_fix(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert read_outcome(capsys, count, "none.toml") == (
        2,
        "",
        f"trainrig: none.toml: no such run file (looked in {Path.cwd()})\n",
    )


SCRIPT = """
import os, signal
from typing import Annotated, ClassVar, Literal
from trainrig import job, manifest
from trainrig.config import NOT_IDENTITY, RunFile

class Counting(RunFile):
    verb: ClassVar[str] = "count"
    stage: Literal["count"] = "count"
    output: Annotated[str, NOT_IDENTITY]
    how: str = "whole"

def count(run):
    stage = manifest.claim(run.output, run, {})
    if run.how == "interrupted":
        os.kill(os.getpid(), signal.SIGINT)
    if run.how == "broken":
        raise ZeroDivisionError
    return stage.finished or stage.finish({"upto": 3}, {})

if __name__ == "__main__":
    job.main(Counting, count)
"""


@pytest.mark.parametrize(
    ("how", "code", "out", "last_line"),
    [
        ("whole", 0, '{"upto": 3}\n', "trainrig: {out}: the output is finished"),
        ("interrupted", 130, "", "trainrig: interrupted; run the same command to start again"),
        ("broken", 1, "", "ZeroDivisionError"),
    ],
)
def test_a_script_keeps_results_and_talk_apart(
    tmp_path: Path, run_file: str, how: str, code: int, out: str, last_line: str
) -> None:
    (tmp_path / "count.py").write_text(SCRIPT)
    command = [sys.executable, str(tmp_path / "count.py"), run_file, "--set", f"how={how}"]
    if how == "whole":
        first = subprocess.run(command, capture_output=True, text=True, check=True)
        assert (first.stdout, first.stderr) == (out, "")
    ended = subprocess.run(command, capture_output=True, text=True)
    assert (ended.returncode, ended.stdout) == (code, out)
    assert ended.stderr.splitlines()[-1].startswith(last_line.format(out=tmp_path / "out"))
    assert ("Traceback" in ended.stderr) == (how == "broken")


SIGTERM_DRIVER = """
import os, signal, sys
from trainrig import job
from trainrig.ray_runtime import ray_session, split_processing
from trainrig.splits import Phase, Split

def make_work():
    def work(task):
        if task["n"] == 2:
            os.kill(task["driver"], signal.SIGTERM)
            signal.pause()
        return {}, {}
    return work

with job.exit_codes():
    ray_session.connect(1, "workers")
    splits = [Split(f"s{n}", {"n": n, "driver": os.getpid()}) for n in range(4)]
    split_processing.map_splits(Phase(sys.argv[1], make_work), splits, 1)
"""


@pytest.mark.ray
@pytest.mark.slow
def test_sigterm_ends_a_ray_driver_as_unfinished_with_its_splits_kept(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", SIGTERM_DRIVER, str(tmp_path / "done")],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 75, done.stderr
    assert (
        done.stderr.strip()
        .splitlines()[-1]
        .startswith("trainrig: stopped by SIGTERM; run the same command")
    )
    splits = [Split(f"s{number}", {}) for number in range(4)]
    left = Phase(str(tmp_path / "done"), lambda: lambda task: ({}, {})).find_unfinished(splits)
    assert left == splits[2:]


def test_sigterm_ends_a_job_as_unfinished(tmp_path, capsys):
    def stage(run):
        os.kill(os.getpid(), signal.SIGTERM)

    path = tmp_path / "run.toml"
    path.write_text('stage = "count"\noutput = "o"\n')
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(SystemExit) as ended:
        job.main(Counting, stage, [str(path)])
    assert ended.value.code == 75
    assert "stopped by SIGTERM" in capsys.readouterr().err
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.mark.parametrize(
    ("problem", "kind", "message", "code"),
    [
        (DataError("pages: gone"), "DataError", "pages: gone", 2),
        (ClusterError("s3: down"), "ClusterError", "s3: down", 1),
        (Unfinished("step 3 of 9"), "Unfinished", "step 3 of 9", 75),
        (OSError(errno.ENOSPC, "No space", "/big"), "ClusterError", "/big: the disk is full", 1),
        (KeyError("bug"), "KeyError", "'bug'", 1),
        (KeyboardInterrupt(), "KeyboardInterrupt", "interrupted", 130),
    ],
)
def test_the_exit_of_a_job_states_its_cause(
    tmp_path, monkeypatch, run_file, problem, kind, message, code
):
    def stage(run):
        assert job.OUTCOME not in os.environ, "what this process starts has ends of its own"
        raise problem

    path = tmp_path / "outcome.json"
    monkeypatch.setenv(job.OUTCOME, str(path))
    with pytest.raises((SystemExit, KeyError)):
        job.main(Counting, stage, [run_file])
    written = json.loads(path.read_text())
    assert (written["kind"], written["exit_code"]) == (kind, code)
    assert written["message"].startswith(message)


def test_sigterm_is_an_end_that_others_can_read(tmp_path, monkeypatch, run_file):
    path = tmp_path / "outcome.json"
    monkeypatch.setenv(job.OUTCOME, str(path))
    with pytest.raises(SystemExit):
        job.main(Counting, lambda run: os.kill(os.getpid(), signal.SIGTERM), [run_file])
    assert json.loads(path.read_text()) == {
        "kind": "Unfinished",
        "message": f"stopped by SIGTERM; {job.BEGINS_AGAIN}",
        "exit_code": 75,
    }


@pytest.mark.parametrize("place", ["none/outcome.json", "outcome.json"])
def test_a_job_that_is_done_leaves_nothing_to_read_and_a_lost_place_costs_nothing(
    tmp_path, monkeypatch, capsys, run_file, place
):
    monkeypatch.setenv(job.OUTCOME, str(tmp_path / place))
    job.main(Counting, count, [run_file])
    assert not (tmp_path / place).exists()

    def broken(run):
        raise DataError("gone")

    monkeypatch.setenv(job.OUTCOME, str(tmp_path / "none" / "outcome.json"))
    assert read_outcome(capsys, broken, run_file)[0] == 2


class Resuming(Counting):
    verb: ClassVar[str] = "count"
    resumes: ClassVar[bool] = True


@pytest.mark.parametrize(
    ("model", "said"), [(Counting, "to start again"), (Resuming, "to continue")]
)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_hint_to_repeat_the_command_is_true_for_the_verb(
    model: type[Counting],
    said: str,
    number: int,
    run_file: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit) as ended:
        job.main(model, lambda run: os.kill(os.getpid(), number), [run_file])  # type: ignore[arg-type, return-value]
    assert ended.value.code == (75 if number == signal.SIGTERM else 130)
    assert capsys.readouterr().err.endswith(f"; run the same command {said}\n")


STOPPED_AS_IT_IMPORTS = """
import os, signal, sys
from trainrig import __main__

class Stop:
    def find_spec(self, name, *_):
        if name == sys.argv[1]:
            os.kill(os.getpid(), signal.SIGTERM)

sys.meta_path.insert(0, Stop())
__main__.main(sys.argv[2:])
"""


@pytest.mark.parametrize(
    ("module", "said"),
    [("trainrig.cli", "again"), ("trainrig.scaling.fit.fit_verb", "to start again")],
)
def test_nothing_is_said_to_be_whole_of_a_command_that_makes_its_result_in_one_go(
    module: str, said: str, tmp_path: Path
) -> None:
    """This holds before the command begins and while it runs."""
    ended = subprocess.run(
        [sys.executable, "-c", STOPPED_AS_IT_IMPORTS, module, "fit", str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=120,
    )
    line = f"trainrig: stopped by SIGTERM; run the same command {said}\n"
    assert (ended.returncode, ended.stderr) == (75, line)


def test_only_resumable_verbs_say_that_they_resume() -> None:
    """The other verbs write their result at once: no part of it exists before all of it does."""
    resuming = {name for name, verb in VERBS.items() if verb.load_model().resumes}
    assert resuming == {
        *("curate", "tokenize", "conversations", "pretrain", "posttrain", "rl", "score"),
        *("evaluate", "sweep", "teacher", "sample", "constitutional", "embed"),
        *("index", "mixture"),
    }
