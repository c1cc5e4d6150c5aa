"""Output for people, in a pseudo-terminal and without one."""

import functools
import io
import json
import logging
import os
import pty
import re
import select
import subprocess
import sys
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console
from support.waiting import wait_until

from trainrig import terminal
from trainrig.errors import ClusterError
from trainrig.terminal import Terminal
from trainrig.train.run.run_folder import RunFolder

# A stage of a hundred steps that takes a moment, so that a live panel redraws.
STAGE = """
    import sys, time
    from trainrig.terminal import Terminal

    terminal = Terminal()
    terminal.listen()
    with terminal.only_results_on_stdout(), terminal.stage("curate", "splits") as advance:
        for done in range(101):
            advance(done, 100)
            time.sleep(0.005)
        print("said by somebody else")
    terminal.say("done: [all] of it")
    print("the result")
"""
ANIMATION = re.compile(r"\r|\x1b\[[0-9]*[AK]|\x1b\[\?25l")  # carriage return, cursor up, hidden
COLOUR = re.compile(r"\x1b\[[0-9;]*m")


@dataclass(frozen=True)
class Shown:
    """Stdout of a process, and the terminal output of its stderr."""

    out: str
    err: str


def make_environment(changes: Mapping[str, str]) -> dict[str, str]:
    quiet = {"CI", "NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE", "COLUMNS"}
    kept = {name: value for name, value in os.environ.items() if name not in quiet}
    return kept | {"TERM": "xterm-256color"} | changes


def run_in_terminal(code: str, **changes: str) -> Shown:
    """Run `code` with stderr on a pseudo-terminal."""
    ours, theirs = pty.openpty()
    command = [sys.executable, "-c", textwrap.dedent(code)]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=theirs, env=make_environment(changes)
    )
    os.close(theirs)
    seen = b""
    while True:
        select.select([ours], [], [])
        try:
            read = os.read(ours, 65536)
        except OSError:  # Linux reports so when the last holder of the other end is closed
            break
        if not read:
            break
        seen += read
    os.close(ours)
    out, _ = process.communicate()
    assert process.returncode == 0, seen
    return Shown(out.decode(), seen.decode())


def run_off_terminal(code: str, **changes: str) -> Shown:
    ended = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        capture_output=True,
        text=True,
        check=True,
        env=make_environment(changes),
    )
    return Shown(ended.stdout, ended.stderr)


def test_in_a_terminal_there_is_one_live_panel() -> None:
    shown = run_in_terminal(STAGE)
    assert ANIMATION.search(shown.err)
    assert COLOUR.search(shown.err)
    assert "curate" in shown.err
    assert shown.out == "the result\n"
    assert "said by somebody else" in shown.err
    assert "done: [all] of it" in shown.err


def test_off_a_terminal_there_are_plain_lines_and_few() -> None:
    shown = run_off_terminal(STAGE)
    lines = shown.err.splitlines()
    assert shown.err == shown.err.replace("\r", "").replace("\x1b", "")
    progress = [f"curate: {done} of 100 splits" for done in range(0, 101, 10)]
    assert lines == [*progress, "said by somebody else", "done: [all] of it"]
    assert shown.out == "the result\n"


def test_in_continuous_integration_nothing_moves() -> None:
    shown = run_in_terminal(STAGE, CI="true")
    assert not ANIMATION.search(shown.err.replace("\r\n", "\n"))
    assert "curate: 50 of 100 splits" in shown.err


def test_no_color_is_obeyed() -> None:
    shown = run_in_terminal(STAGE, NO_COLOR="1")
    colours = {code for match in COLOUR.findall(shown.err) for code in match[2:-1].split(";")}
    assert not {code for code in colours if re.fullmatch(r"3[0-8]|4[0-8]|9[0-7]", code)}
    assert "curate" in shown.err


STAGE_ON_RAY = """
    import sys, tempfile, time
    from trainrig.ray_runtime import ray_session
    from trainrig.ray_runtime.split_processing import map_splits
    from trainrig.splits import Phase, Split
    from trainrig.terminal import Terminal

    def make_work():
        def work(task):
            time.sleep(0.2)
            return {}, {}
        return work

    terminal = Terminal()
    terminal.listen()
    ray_session.connect(1, "workers")
    with (
        tempfile.TemporaryDirectory() as folder,
        terminal.only_results_on_stdout(),
        terminal.stage("our own line", "splits") as advance,
    ):
        splits = [Split(f"s{number}", {}) for number in range(12)]
        map_splits(Phase(folder, make_work, title="curate: read pages"), splits, 1, advance)
    print("the result")
"""


@pytest.mark.ray
@pytest.mark.slow
def test_in_a_terminal_ray_shows_the_operators_of_a_pipeline_under_their_names() -> None:
    shown = run_in_terminal(STAGE_ON_RAY, COLUMNS="120", RAY_ADDRESS="local")
    assert "MapBatches(curate: read pages)" in shown.err
    assert shown.out == "the result\n"
    bars = shown.err.partition("MapBatches")[2].rpartition("MapBatches")[0]
    assert "our own line" not in bars


@pytest.mark.ray
@pytest.mark.slow
def test_off_a_terminal_ray_shows_no_bars() -> None:
    shown = run_off_terminal(STAGE_ON_RAY, RAY_ADDRESS="local")
    assert shown.out == "the result\n"
    lines = shown.err.splitlines()
    assert lines == [
        f"our own line: {done} of 12 splits" for done in (0, 2, 3, 4, 5, 6, 8, 9, 10, 11, 12)
    ]


# --- in this process, without a terminal


@pytest.fixture(autouse=True)
def loggers_as_before() -> Iterator[None]:
    logger = logging.getLogger("trainrig")
    before = logger.handlers, logger.level, logger.propagate
    yield
    logger.handlers, logger.level, logger.propagate = before


def test_prints_of_workers_go_to_stderr_and_rays_death_notice_is_not_repeated(
    capsys: pytest.CaptureFixture[str],
) -> None:
    notice = "(raylet) A worker died or was killed while executing a task by an unexpected error."
    with Terminal().only_results_on_stdout():
        print("two\nlines")
        print(notice)
        print()
    print("a result")
    shown = capsys.readouterr()
    assert (shown.out, shown.err) == ("a result\n", "two\nlines\n")


def test_our_loggers_are_heard_once_and_without_marks_of_a_log(
    capsys: pytest.CaptureFixture[str],
) -> None:
    Terminal().listen()
    Terminal().listen()
    logging.getLogger("trainrig.train").info("attempt %d failed", 1)
    logging.getLogger("trainrig.train").debug("of no interest")
    assert capsys.readouterr().err == "trainrig: attempt 1 failed\n"


def test_a_long_line_is_not_cut_and_brackets_are_text(capsys: pytest.CaptureFixture[str]) -> None:
    line = "[bold]" + "x" * 500
    Terminal().say(line)
    assert capsys.readouterr().err == line + "\n"


def test_a_table_has_two_columns(capsys: pytest.CaptureFixture[str]) -> None:
    Terminal().print_table({"loss": "6.47 → 5.36", "[report]": "x/report.html"})
    rows = [line.rstrip() for line in capsys.readouterr().err.splitlines()]
    assert rows == ["loss      6.47 → 5.36", "[report]  x/report.html"]


def test_trials_are_a_live_table_of_those_under_way() -> None:
    screen = io.StringIO()
    shown = Terminal()
    shown.live = True
    shown.console = Console(file=screen, force_terminal=True, width=90, color_system=None)
    with shown.show_trials("sweep") as advance:
        rows = [{"trial": f"n{number}", "": "loss [3.2]"} for number in range(25)]
        advance(3, 40, rows)
        text = screen.getvalue()
        advance(40, 40, [])
    assert "sweep: 3 of 40 runs" in text and "and 5 more" in text
    assert "n19" in text and "n20" not in text and "loss [3.2]" in text
    assert "sweep: 40 of 40 runs" in screen.getvalue()


def test_off_a_terminal_trials_are_few_lines(capsys: pytest.CaptureFixture[str]) -> None:
    with Terminal().show_trials("sweep") as advance:
        for done in range(101):
            advance(done, 100, [{"trial": "n1"}, {"trial": "n2"}])
    lines = capsys.readouterr().err.splitlines()
    assert lines[1:3] == [f"sweep: {done} of 100 runs, 2 under way" for done in (10, 20)]
    assert len(lines) == 11


@pytest.mark.parametrize("of", [1, 3, 10, 97, 5_000])
def test_off_a_terminal_a_stage_is_at_most_a_line_a_tenth_of_the_way(
    capsys: pytest.CaptureFixture[str], of: int
) -> None:
    with Terminal().stage("tokenize", "splits") as advance:
        for done in range(of + 1):
            advance(done, of)
            advance(done, of)
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) <= 11
    assert lines[0] == f"tokenize: 0 of {of} splits"
    assert lines[-1] == f"tokenize: {of} of {of} splits"


def test_off_a_terminal_a_slow_stage_is_heard_of_now_and_then(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = iter([0.0, *(terminal.LINE_SECONDS * n + 1 for n in (0, 1, 2))])
    monkeypatch.setattr(terminal.time, "monotonic", functools.partial(next, now))
    with Terminal().stage("tokenize", "splits") as advance:
        for done in (0, 1, 2, 2):  # no progress gives no line
            advance(done, 1_000)
    lines = capsys.readouterr().err.splitlines()
    assert lines == ["tokenize: 0 of 1000 splits", "tokenize: 2 of 1000 splits"]


def make_metrics_line(step: int, loss: float | None, attempt: int = 1) -> str:
    line = {"step": step, "attempt": attempt, "time": step / 2, "train/loss": loss}
    line |= {"train/tokens_per_second": 12_345.6, "cluster/workers": 2}
    return json.dumps(line) + "\n"


@pytest.mark.parametrize(
    ("attempts", "loss", "note"),
    [
        (1, 6.4702, "loss 6.470, 12,346 tokens/s (6,173 each), 2 workers, 0.0 s left"),
        (2, 6.4702, "loss 6.470, 12,346 tokens/s (6,173 each), 2 workers, 1 restart, 0.0 s left"),
        (4, None, "loss NaN, 12,346 tokens/s (6,173 each), 2 workers, 3 restarts, 0.0 s left"),
    ],
)
def test_training_is_followed_by_what_it_writes(
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    attempts: int,
    loss: float | None,
    note: str,
) -> None:
    folder = RunFolder(str(tmp_path))
    with Terminal().show_training("pretrain", str(tmp_path), 40):
        for number in range(1, attempts + 1):
            folder.record("attempt_started", attempt=number, workers=2)
        lines = make_metrics_line(39, 7.0, attempts) + make_metrics_line(40, loss, attempts)
        (tmp_path / "metrics.jsonl").write_text(lines)
    assert capsys.readouterr().err.splitlines()[-1] == f"pretrain: 40 of 40 steps, {note}"


def test_in_a_terminal_training_is_one_line_that_fits_it(tmp_path: Path) -> None:
    lines = make_metrics_line(119, 2.5) + make_metrics_line(120, 2.31)
    shown = run_in_terminal(
        f"""
        import time
        from pathlib import Path
        from trainrig.terminal import Terminal

        with Terminal().show_training("pretrain", {str(tmp_path)!r}, 5_000):
            Path({str(tmp_path)!r}, "metrics.jsonl").write_text({lines!r})
            time.sleep(1.5)
        """,
        COLUMNS="100",
    )
    seen = COLOUR.sub("", shown.err)
    assert "0/5000 steps, starting" in seen
    line = "120/5000 steps, loss 2.310, 12,346 tokens/s (6,173 each), 2 workers, 40 min 40 s left"
    assert line in seen  # on one line: nothing is wrapped or cut


def test_a_line_too_long_for_the_terminal_is_cut_at_its_end(tmp_path: Path) -> None:
    measured = {"train/mfu": 0.41, "time/data": 0.02, "memory/peak_gib": 61.3}
    line = json.dumps(json.loads(make_metrics_line(39, 2.5)) | measured) + "\n"
    shown = run_in_terminal(
        f"""
        import time
        from pathlib import Path
        from trainrig.terminal import Terminal

        with Terminal().show_training("pretrain", {str(tmp_path)!r}, 40):
            Path({str(tmp_path)!r}, "metrics.jsonl").write_text({line!r})
            time.sleep(1.5)
        """,
        COLUMNS="100",
    )
    seen = COLOUR.sub("", shown.err)
    assert "39/40 steps, loss 2.500, 12,346 tokens/s (6,173 each) at 41% MFU, 2 workers" in seen
    assert "waits" in seen and "61.3 GiB" not in seen


@pytest.mark.parametrize("steps", [40, 20])
def test_progress_does_not_show_results_of_an_earlier_call(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, steps: int
) -> None:
    """The run is finished, and is requested again or with fewer steps than it has."""
    RunFolder(str(tmp_path)).record("attempt_started", attempt=1, workers=2)
    (tmp_path / "metrics.jsonl").write_text(make_metrics_line(39, 7.0) + make_metrics_line(40, 6.5))
    with Terminal().show_training("pretrain", str(tmp_path), steps):
        pass
    assert capsys.readouterr().err == ""


def test_training_that_has_not_begun_is_nothing_to_tell(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    with Terminal().show_training("pretrain", str(tmp_path), 40):
        pass
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("fault", [ClusterError("503 Slow Down"), OSError("gone")])
def test_a_storage_that_refuses_costs_a_line_of_progress_and_nothing_else(
    fault: Exception,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    looks: list[None] = []
    look = terminal.ProgressFollower.look

    def refuses_twice(follower: terminal.ProgressFollower) -> Any:
        looks.append(None)
        if len(looks) <= 2:
            raise fault
        return look(follower)

    monkeypatch.setattr(terminal.ProgressFollower, "look", refuses_twice)
    monkeypatch.setattr(terminal, "FOLLOW_SECONDS", 0.01)
    with Terminal().show_training("pretrain", str(tmp_path), 40):
        RunFolder(str(tmp_path)).record("attempt_started", attempt=1, workers=2)
        (tmp_path / "metrics.jsonl").write_text(make_metrics_line(40, 6.5))
        wait_until(lambda: len(looks) >= 3)
    said = capsys.readouterr().err
    assert "Traceback" not in said
    assert said.splitlines()[-1].startswith("pretrain: 40 of 40 steps")


def test_training_that_fails_is_no_longer_followed(tmp_path: Path) -> None:
    import threading

    before = threading.active_count()
    with pytest.raises(ZeroDivisionError), Terminal().show_training("pretrain", str(tmp_path), 40):
        raise ZeroDivisionError
    assert threading.active_count() == before


def get_last_line(capsys: pytest.CaptureFixture[str], counts: Mapping[str, Any]) -> str:
    """Return the last line about a stage that has done two splits with these `counts`."""

    def stage(run: Any, progress: terminal.Advance) -> Any:
        progress(2, 2)
        return SimpleNamespace(counts=counts)

    terminal.show(
        Terminal(), SimpleNamespace(verb="tokenize", output="out", progress="splits"), stage
    )
    progress, last = capsys.readouterr().err.splitlines()
    assert progress == "tokenize: 2 of 2 splits"
    return last


@pytest.mark.parametrize(
    ("refused", "words"),
    [
        ({"no_text": 15, "not_json": 1_001}, ", refused 1,016 rows: see quarantine/"),
        ({"no_text": 1}, ", refused 1 row: see quarantine/"),
        ({}, ""),
    ],
)
def test_the_last_line_of_a_stage_tells_numbers_and_that_rows_were_refused(
    capsys: pytest.CaptureFixture[str], refused: dict[str, int], words: str
) -> None:
    counts = {"loss": 6.47021, "train_tokens": 12_345, "tokens_of": {"a": 5}, "refused": refused}
    line = "tokenize: out: loss 6.47, train_tokens 12,345"
    assert get_last_line(capsys, counts) == line + words
