"""Signals to the whole process group, and a terminal that closes, for each command that uses Ray.

The command ends as unfinished with one line, leaves no process behind, and resumes when it is run
again. `timeout` and a shell's `kill %1` signal the group; systemd and Slurm signal each process of
theirs.
"""

import contextlib
import json
import os
import pty
import signal
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from support.waiting import wait_until

from trainrig.config import to_toml
from trainrig.models.decoder import Decoder, DecoderConfig, initialise
from trainrig.tokens.special_tokens import TokenizerFiles
from trainrig.train.checkpoint import write_model

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.chaos]
PATIENCE = 400.0  # s: ends a broken test
MARK = "TRAINRIG_TEST_GROUP"


@dataclass
class Driver:
    """The command line on its own terminal, as the leader of a process group."""

    folder: Path  # folder for temporary files
    said: Path
    pid: int
    terminal: int
    code: int | None = None

    @classmethod
    def start(cls, arguments: list[str], folder: Path, ignores_sighup: bool = False) -> "Driver":
        said = folder / f"said-{time.monotonic_ns()}"
        environment = os.environ | {MARK: str(folder), "OMP_NUM_THREADS": "1"}
        pid, terminal = pty.fork()
        if pid == 0:
            os.dup2(os.open(said, os.O_CREAT | os.O_WRONLY), 2)
            handler = signal.SIG_IGN if ignores_sighup else signal.SIG_DFL
            signal.signal(signal.SIGHUP, handler)
            command = [sys.executable, "-m", "trainrig", *arguments]
            os.execve(sys.executable, command, environment)
        return cls(folder, said, pid, terminal)

    def poll(self) -> int | None:
        if self.code is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self.code = os.waitstatus_to_exitcode(status) if pid else None
        return self.code

    def wait(self) -> int:
        wait_until(lambda: self.poll() is not None, self.said.read_text, seconds=PATIENCE)
        assert self.code is not None
        return self.code

    def wait_for(self, is_there: Callable[[], bool]) -> None:
        wait_until(
            lambda: is_there() or self.poll() is not None, self.said.read_text, seconds=PATIENCE
        )
        assert is_there(), self.said.read_text()

    def list_lines(self) -> list[str]:
        """Return the lines that trainrig printed, except for alarms about so small a run."""
        lines = self.said.read_text().splitlines()
        ours = [line for line in lines if line.startswith("trainrig: ")]
        return [
            line for line in ours if "ALARM" not in line and "continuing an earlier run" not in line
        ]

    def list_left(self) -> list[int]:
        """Return the processes that the driver started and that still live."""
        return [pid for pid in list_marked(self.folder) if pid != self.pid]

    def describe_left(self) -> list[str]:
        """Return the command of each process in `list_left`."""
        return [Path(f"/proc/{pid}/cmdline").read_text() for pid in self.list_left()]

    def close_terminal(self) -> None:
        os.close(self.terminal)
        self.terminal = -1


def list_marked(folder: Path) -> list[int]:
    mark = f"{MARK}={folder}".encode()
    found = list[int]()
    for path in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            state = path.with_name("stat").read_text().rpartition(")")[2].split()[0]
            if mark in path.read_bytes().split(b"\0") and state != "Z":
                found.append(int(path.parts[2]))
    return found


@pytest.fixture
def start(short_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Driver]]:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    started: list[Driver] = []

    def begin(*arguments: str, **options: Any) -> Driver:
        started.append(Driver.start(list(arguments), short_folder, **options))
        return started[-1]

    yield begin
    for pid in list_marked(short_folder):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    for driver in started:
        if driver.poll() is None:
            driver.wait()
        if driver.terminal >= 0:
            driver.close_terminal()


@dataclass
class Way:
    """One command that starts Ray, with its run file, and a check that it is at work."""

    verb: str
    run_file: str
    output: Path
    is_in_midst: Callable[[], bool]


def has_lines(folder: Path, pattern: str, count: int) -> bool:
    return any(len(path.read_text().splitlines()) >= count for path in folder.glob(pattern))


@pytest.fixture
def make_way(
    make_run: Any, tokens: str, tmp_path: Path, short_folder: Path
) -> Callable[[str], Way]:
    output = tmp_path / "out"
    file = tmp_path / "run.toml"

    def write_model_and_prompts() -> dict[str, Any]:
        shape = DecoderConfig(layers=2, channels=64, heads=4, positions=128, vocabulary=320)
        model = Decoder(shape)
        initialise(model, seed=1)
        tokenizer = TokenizerFiles.read(tokens).tokenizer
        write_model(str(tmp_path / "base"), model.config, tokenizer, model.state_dict())
        rows = [json.dumps({"prompt": f"the sea {n}"}) + "\n" for n in range(40)]
        (tmp_path / "prompts.jsonl").write_text("".join(rows))
        lines = [
            f'checkpoint = "{tmp_path}/base"\noutput = "{output}"',
            f'[prompts]\npaths = ["{tmp_path}/prompts.jsonl"]',
            '[[rewards]]\nkind = "PatternShape"\npattern = "e"\nwhole = false\n',
        ]
        return {"head": lines[0], "tables": "\n".join(lines[1:])}

    def pretrain() -> Way:
        training = {"steps": 80, "checkpoints": {"every": 50}}
        run = make_run(output, workers=2, training=training, batches={"epochs": 1e6})
        file.write_text(to_toml(run))
        return Way("pretrain", str(file), output, lambda: has_lines(output, "metrics.jsonl", 4))

    def sweep() -> Way:
        file.write_text(
            f'stage = "sweep"\ntokens = "{tokens}"\noutput = "{output}"\n[design]\n'
            'kind = "Points"\npairs = [[6000.0, 60000.0], [12000.0, 60000.0]]\n'
            "[batches]\nsequence_length = 32\nmicro_batch = 8\nepochs = 1000000.0\n"
            "[training]\nfewest_steps = 80\ncheckpoint_every = 20\n"
        )
        return Way(
            "sweep", str(file), output, lambda: has_lines(output, "trials/*/*/metrics.jsonl", 5)
        )

    def sample() -> Way:
        parts = write_model_and_prompts()
        sizes = "workers = 2\nshard_prompts = 4\nprompt_tokens = 32\nmaximum_tokens = 90\n"
        file.write_text(f'stage = "sample"\n{parts["head"]}\n{sizes}samples = 4\n{parts["tables"]}')
        workers = "trainrig-ray-*/r/session_2*/logs/worker-*"
        return Way("sample", str(file), output, lambda: any(short_folder.glob(workers)))

    def rl() -> Way:
        parts = write_model_and_prompts()
        file.write_text(
            f'stage = "rl"\n{parts["head"]}\nworkers = 1\n{parts["tables"]}'
            "[rollouts]\nactors = 1\nprompts = 2\nsamples = 2\nmicro_batch = 2\n"
            "prompt_tokens = 32\nmaximum_tokens = 60\n"
            '[objective]\nkind = "DAPO"\n[training]\nsteps = 12\n'
        )
        return Way("rl", str(file), output, lambda: has_lines(output, "metrics.jsonl", 2))

    ways = {"pretrain": pretrain, "sweep": sweep, "sample": sample, "rl": rl}
    return lambda name: ways[name]()


SIGNALS: dict[str, Callable[[Driver], None]] = {
    "SIGTERM to the group": lambda driver: os.killpg(driver.pid, signal.SIGTERM),
    "SIGTERM to each process": lambda driver: [
        os.kill(pid, signal.SIGTERM) for pid in list_marked(driver.folder)
    ],
    "SIGHUP": lambda driver: driver.close_terminal(),
}


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("name", "how"),
    [
        ("pretrain", "SIGTERM to the group"),  # attempts of Ray Train
        ("pretrain", "SIGTERM to each process"),
        ("sweep", "SIGHUP"),  # Ray Tune
        ("sample", "SIGTERM to the group"),  # splits by Ray Data
        ("rl", "SIGTERM to the group"),  # rollout actors
    ],
)
def test_a_signal_to_the_group_ends_the_driver_as_unfinished_and_leaves_no_process(
    make_way: Callable[[str], Way],
    start: Callable[..., Driver],
    short_folder: Path,
    name: str,
    how: str,
) -> None:
    way = make_way(name)
    first = start(way.verb, way.run_file)
    first.wait_for(way.is_in_midst)
    SIGNALS[how](first)
    assert first.wait() == 75, first.said.read_text()
    # A driver whose thread waits for Ray does not wait for the processes that it has killed.
    wait_until(lambda: not first.list_left(), first.describe_left)
    assert list(short_folder.glob("trainrig-ray-*")) == []
    (line,) = first.list_lines()
    assert f"stopped by {'SIGHUP' if how == 'SIGHUP' else 'SIGTERM'}; " in line
    events = way.output / "events.jsonl"
    if events.exists():
        kinds = {json.loads(record)["event"] for record in events.read_text().splitlines()}
        assert "run_stopped" in kinds
        assert not kinds & {"grace_over", "cluster_lost", "attempt_failed", "hang_seen"}
    again = start(way.verb, way.run_file)
    assert again.wait() == 0, again.said.read_text()
    assert (way.output / "manifest.json").exists()


@pytest.mark.timeout(900)
def test_a_run_that_ignores_sighup_outlives_its_terminal(
    make_way: Callable[[str], Way], start: Callable[..., Driver]
) -> None:
    way = make_way("pretrain")
    driver = start(way.verb, way.run_file, ignores_sighup=True)
    driver.wait_for(way.is_in_midst)
    driver.close_terminal()
    assert driver.wait() == 0, driver.said.read_text()


@pytest.mark.timeout(900)
@pytest.mark.parametrize("replaced", [False, True])
def test_a_run_whose_folder_is_removed_ends_with_one_line_and_recreates_nothing(
    make_way: Callable[[str], Way],
    start: Callable[..., Driver],
    tmp_path: Path,
    replaced: bool,
) -> None:
    way = make_way("pretrain")
    driver = start(way.verb, way.run_file)
    driver.wait_for(way.is_in_midst)
    way.output.rename(tmp_path / "away")
    if replaced:
        way.output.mkdir()
    assert driver.wait() == 2, driver.said.read_text()
    assert driver.list_left() == []
    (line,) = driver.list_lines()
    what = "replaced by another" if replaced else "removed"
    assert line.startswith(f"trainrig: {way.output}: {what} during the run")
    assert (list(way.output.iterdir()) == []) if replaced else not way.output.exists()
