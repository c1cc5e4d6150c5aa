"""`submit`, `jobs`, `logs` and `stop`, with real supervisors and commands, on jobs without Ray."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
from support.launch import jobs_server
from support.waiting import wait_until

from trainrig import cli, storage
from trainrig.launch.supervise.run_record import Home, RunRecord

NEVER_DONE = 50_000  # pages: most of a minute of a core; a test stops the run long before
PATIENCE = 120.0  # s: ends a broken test

TOKENIZER = """
stage = "tokenizer"
output = "tokenizer"

[[documents]]
kind = "JSONL"
paths = ["pages.jsonl"]
source = "pages"

[tokenizer]
kind = "ByteLevelBPE"
vocabulary = 270
"""
# Takes long in one process: pages of many different words, measured one after another.
CURATE = """
stage = "curate"
output = "documents"
workers = 0

[[sources]]
name = "pages"
paths = ["pages-*.jsonl"]
filters = [{ kind = "Length", min_characters = 5 }]
"""


@dataclass
class User:
    """A user with a command line, a folder and a home for records."""

    cluster: Any
    folder: Path
    environment: dict[str, str]

    def start(self, *arguments: str) -> "subprocess.Popen[str]":
        return subprocess.Popen(
            [sys.executable, "-m", "trainrig", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=self.folder,
            env=self.environment,
        )

    def does(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        with self.start(*arguments) as process:
            try:
                out, err = process.communicate(timeout=PATIENCE)
            except subprocess.TimeoutExpired:
                process.kill()  # without this, waiting for it would have no bound
                raise
            return subprocess.CompletedProcess(arguments, process.returncode, out, err)

    def run(self) -> RunRecord:
        """Return the only run, once it is recorded."""
        return wait_until(lambda: Home(str(self.folder / "home")).list())[0]

    def wait_for_event(self, name: str, attempt: int = 1) -> dict[str, Any]:
        run = self.run()
        return wait_until(lambda: [e for e in run.read_events(attempt) if e["event"] == name])[0]


@pytest.fixture
def user(tmp_path: Path) -> Iterator[User]:
    pages = [{"text": f"page {n} " + "of harbours and lamps " * 9} for n in range(50)]
    (tmp_path / "pages.jsonl").write_text("".join(json.dumps(page) + "\n" for page in pages))
    (tmp_path / "tokenizer.toml").write_text(TOKENIZER)
    (tmp_path / "curate.toml").write_text(CURATE)
    with jobs_server.serving() as cluster:
        kept = {n: v for n, v in os.environ.items() if not n.startswith("RAY_")}
        found = {
            "RAY_AUTH_TOKEN": jobs_server.TOKEN,
            "RAY_API_SERVER_ADDRESS": cluster.address,
            "TRAINRIG_HOME": str(tmp_path / "home"),
        }
        yield User(cluster, tmp_path, kept | found)


def much_to_curate(folder: Path, pages: int = 320) -> None:
    for part in range(8):
        lines = [
            json.dumps({"text": " ".join(f"word{part}x{n}x{k}" for k in range(100))})
            for n in range(pages // 8)
        ]
        (folder / f"pages-{part}.jsonl").write_text("\n".join(lines) + "\n")


def shift_submission(run: RunRecord, seconds: float) -> None:
    """Record the newest attempt as submitted by a clock that is `seconds` ahead."""
    path = storage.join(run.path, "attempts", f"{run.find_newest_attempt():04d}.json")
    entry = json.loads(storage.read(path))
    storage.write(
        path, json.dumps(entry | {"submitted_at": entry["submitted_at"] + seconds}).encode()
    )


def sums(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "manifest.json").read_text())["files"]


@pytest.mark.slow
def test_a_run_is_submitted_followed_and_done_once(user: User) -> None:
    submitted = user.does("submit", "tokenizer", "tokenizer.toml", "--json")
    assert submitted.returncode == 0, submitted.stderr
    found = json.loads(submitted.stdout)
    assert (found["state"], found["exit_code"], found["attempt"]) == ("done", 0, 1)
    assert found["output"] == str(user.folder / "tokenizer")
    assert re.search(r"ok +resources +no workers", submitted.stderr)
    said = user.does("logs", found["id"][:9])  # the beginning of the id is enough
    assert said.returncode == 0
    assert said.stdout.splitlines()[-1].startswith(f"tokenizer: {user.folder}/tokenizer: ")
    again = user.does("submit", "tokenizer", "tokenizer.toml")
    assert (again.returncode, again.stdout) == (0, "")
    assert again.stderr.strip().endswith("already finished; nothing to do")
    assert len(user.cluster.jobs) == user.cluster.uploads == 1
    followed = user.does("logs", found["id"], "--follow")
    assert followed.returncode == 0
    assert followed.stdout == said.stdout
    user.cluster.jobs.clear()  # simulates the loss of the cluster
    (row,) = json.loads(user.does("jobs", "--json").stdout)
    assert (row["id"], row["state"], row["attempts"]) == (found["id"], "done", 1)
    assert re.search(rf"^tokenizer +{found['id']} +done +all ", user.does("jobs").stdout, re.M)
    other = user.does("submit", "tokenizer", "tokenizer.toml", "--set", "tokenizer.vocabulary=275")
    assert other.returncode == 2
    assert "tokenizer.vocabulary: 270 there, 275 here" in other.stderr
    assert len(user.cluster.jobs) == 0 and user.cluster.uploads == 1


@pytest.mark.slow
def test_a_run_may_be_in_a_bucket_entirely(s3: str, user: User) -> None:
    storage.write(f"{s3}/pages.jsonl", (user.folder / "pages.jsonl").read_bytes())
    user.environment |= {n: v for n, v in os.environ.items() if n.startswith("AWS_")}
    user.environment["TRAINRIG_HOME"] = f"{s3}/home"
    # An address for documentation: not this machine.
    user.cluster.nodes[0]["node_ip"] = "203.0.113.7"
    places = ["--set", f"documents.0.paths=['{s3}/pages.jsonl']", "--set", f"output={s3}/tokenizer"]
    ended = user.does("submit", "tokenizer", "tokenizer.toml", *places, "--json")
    assert ended.returncode == 0, ended.stderr
    found = json.loads(ended.stdout)
    assert (found["state"], found["output"]) == ("done", f"{s3}/tokenizer")
    assert f"tokenizer: {s3}/tokenizer: " in ended.stderr  # the lines are the run's log
    assert f"tokenizer: {s3}/tokenizer: " in user.does("logs", found["id"]).stdout
    assert json.loads(user.does("jobs", "--json").stdout)[0]["state"] == "done"
    assert not (user.folder / "home").exists()


@pytest.mark.slow
def test_the_commands_exit_code_is_returned(user: User) -> None:
    (user.folder / "pages.jsonl").write_text('{"no": "text"}\n')
    ended = user.does("submit", "tokenizer", "tokenizer.toml", "--json")
    found = json.loads(ended.stdout)
    assert (ended.returncode, found["exit_code"], found["cause"]) == (2, 2, "data")
    assert found["message"] in ended.stderr
    assert "Traceback" not in ended.stderr


@pytest.mark.slow
def test_a_run_under_way_is_joined_and_stopped(user: User) -> None:
    much_to_curate(user.folder, NEVER_DONE)
    detached = user.does("submit", "curate", "curate.toml", "--detach", "--json")
    assert detached.returncode == 0, detached.stderr
    run = json.loads(detached.stdout)["id"]
    other = user.does("submit", "curate", "curate.toml", "--set", "sources.0.name=other")
    assert other.returncode == 2
    assert (
        "is already running there with another run file (sources[0].name: 'pages'" in other.stderr
    )
    user.cluster.ray = "1.0"  # a client that only connects has nothing to upload
    with user.start("submit", "curate", "curate.toml") as joined:
        assert joined.stderr is not None
        assert "already running" in joined.stderr.readline()
        stopped = user.does("stop", run, "--json")
        assert stopped.returncode == 0, stopped.stderr
        found = json.loads(stopped.stdout)
        assert (found["state"], found["exit_code"], found["forced"]) == ("stopped", 75, False)
        _, err = joined.communicate(timeout=PATIENCE)
    assert joined.returncode == 75, err
    assert len(user.cluster.jobs) == 1


@pytest.mark.slow
def test_joining_a_run_needs_its_own_settings_or_none(user: User) -> None:
    user.cluster.hold = 1
    prices = resources.files("trainrig").joinpath("hardware.toml").read_text()
    (user.folder / "prices.toml").write_text(prices)
    limits = ["--grace", "5m", "--retries", "lost node=2", "--hardware", "prices.toml"]
    command = ["submit", "tokenizer", "tokenizer.toml", "--detach"]
    assert user.does(*command, *limits).returncode == 0
    other = user.does(*command, "--grace", "2m", "--deadline", "12h", "--environment", "pinned")
    assert other.returncode == 2
    said = other.stderr.splitlines()[-1]
    assert f"{user.run().id}: already running with --deadline none, not 12h, --grace 5m" in said
    assert "--grace 5m, not 2m, --environment cluster, not pinned; to change that, " in said
    assert f"`trainrig stop {user.run().id} --home {user.run().home}`" in said
    for given in ([], limits):
        joined = user.does(*command, *given)
        assert joined.returncode == 0, joined.stderr
        assert "already running" in joined.stderr
    assert len(user.cluster.jobs) == 1


@pytest.mark.slow
def test_joining_a_run_keeps_its_settings(user: User) -> None:
    user.cluster.hold = 2
    command = ["submit", "tokenizer", "tokenizer.toml"]
    options = ["--pending", "1s", "--grace", "5m", "--environment", "pinned", "--detach"]
    assert user.does(*command, *options).returncode == 0
    # Otherwise a slow machine is too late and the run counts as lost.
    shift_submission(user.run(), seconds=3600)
    joined = user.does(*command, "--json")
    assert "already running" in joined.stderr
    assert json.loads(joined.stdout)["attempt"] == 2, joined.stderr
    first, second = user.run().read_attempts()
    assert first.limits == second.limits and second.limits["grace"] == 300
    sent = [json.loads(body) for body in user.cluster.heard if b'"entrypoint"' in body]
    assert ["pip" in job["runtime_env"] for job in sent] == [True, True]


@pytest.mark.slow
def test_a_lost_run_submitted_again_has_a_new_time_limit(user: User) -> None:
    run = Home(str(user.folder / "home")).create("tokenizer", str(user.folder / "tokenizer"))
    run.take_attempt("job", user.cluster.address, "", {"pending": 0.0})
    user.cluster.hold = 1
    command = ["submit", "tokenizer", "tokenizer.toml", "--deadline", "12h", "--detach"]
    assert user.does(*command).returncode == 0
    second = run.read_attempt(2)
    assert run.find_request_time(second) == second.submitted_at


@pytest.mark.soak
def test_a_stopped_run_resumes_to_the_same_bytes(user: User) -> None:
    much_to_curate(user.folder, pages=16_000)
    here = user.does("curate", "curate.toml", "--set", "output=here")
    assert here.returncode == 0, here.stderr
    assert user.does("submit", "curate", "curate.toml", "--detach").returncode == 0
    done = user.folder / "documents" / "scratch" / "done"
    wait_until(lambda: list(done.rglob("*.json")))
    stopped = user.does("stop", user.run().id)
    assert stopped.returncode == 0, stopped.stderr
    assert stopped.stdout.startswith(f"{user.run().id}: stopped")
    assert not (user.folder / "documents" / "manifest.json").exists()
    ended = user.does("submit", "curate", "curate.toml", "--json")
    found = json.loads(ended.stdout)
    assert (ended.returncode, found["state"], found["attempt"]) == (0, "done", 2)
    assert sums(user.folder / "documents") == sums(user.folder / "here")


@pytest.mark.slow
def test_no_secret_of_the_submitter_travels_with_a_job(user: User) -> None:
    canaries = {"AWS_SECRET_ACCESS_KEY": "canary-of-aws", "HF_TOKEN": "canary-of-hf"}
    user.environment |= canaries
    ended = user.does("submit", "tokenizer", "tokenizer.toml", "--notify", "true", "--json")
    assert ended.returncode == 0, ended.stderr
    said = b"".join(user.cluster.heard) + (ended.stdout + ended.stderr).encode()
    kept = [path.read_bytes() for path in (user.folder / "home").rglob("*") if path.is_file()]
    assert b"trainrig.launch.supervise.entrypoint" in said and kept
    for canary in (*canaries.values(), user.environment["RAY_AUTH_TOKEN"]):
        assert not any(canary.encode() in text for text in (said, *kept))


@pytest.mark.slow
def test_ctrl_c_leaves_the_run_running(user: User) -> None:
    much_to_curate(user.folder, NEVER_DONE)
    with user.start("submit", "curate", "curate.toml") as follower:
        user.wait_for_event("started")
        follower.send_signal(signal.SIGINT)
        _, err = follower.communicate(timeout=PATIENCE)
    assert follower.returncode == 130
    assert "continues without being followed" in err
    assert user.run().read_status().alive
    stopped = user.does("stop", user.run().id, "--now")
    assert stopped.returncode == 0, stopped.stderr
    assert user.run().read_status().state in ("stopped", "preempted")


@pytest.mark.chaos
def test_an_attendant_that_dies_is_sent_again_and_no_more_often_than_allowed(user: User) -> None:
    much_to_curate(user.folder)
    command = ["submit", "curate", "curate.toml", "--json", "--retries", "lost node=1"]
    with user.start(*command) as follower:
        for attempt in (1, 2):
            user.wait_for_event("started", attempt)
            user.cluster.kill(user.run().read_attempt(attempt).submission_id)
        out, err = follower.communicate(timeout=PATIENCE)
    assert follower.returncode == 1, err
    found = json.loads(out)
    assert (found["state"], found["cause"], found["attempt"]) == ("failed", "lost node", 2)
    assert "its job ended (FAILED) without recording an end" in found["message"]
    assert err.count("submitted again") == 1
    assert [attempt.number for attempt in user.run().read_attempts()] == [1, 2]


@pytest.mark.chaos
def test_a_job_that_does_not_start_is_submitted_once_more(user: User) -> None:
    user.cluster.hold = 1
    ended = user.does("submit", "tokenizer", "tokenizer.toml", "--pending", "1s", "--json")
    assert ended.returncode == 0, ended.stderr
    assert json.loads(ended.stdout)["attempt"] == 2
    assert "waited for: Job has not started yet: no room on the head" in ended.stderr
    assert len(user.cluster.stopped) == 1


@pytest.mark.chaos
def test_a_job_that_never_starts_fails_with_the_missing_resources(user: User) -> None:
    user.cluster.hold = 2
    ended = user.does("submit", "tokenizer", "tokenizer.toml", "--pending", "1s", "--json")
    assert ended.returncode == 1
    found = json.loads(ended.stdout)
    assert (found["state"], found["attempt"]) == ("failed", 2)
    assert found["message"].endswith("waited for: Job has not started yet: no room on the head.")


@pytest.mark.slow
def test_a_run_that_waits_for_its_start_is_stopped_at_once(user: User) -> None:
    user.cluster.hold = 1
    assert user.does("submit", "tokenizer", "tokenizer.toml", "--detach").returncode == 0
    stopped = user.does("stop", user.run().id, "--json")
    assert stopped.returncode == 0, stopped.stderr
    assert json.loads(stopped.stdout)["state"] == "stopped"
    assert user.run().read_state() == "stopped"


@pytest.mark.soak
def test_a_log_is_followed_with_the_cluster_gone(user: User) -> None:
    much_to_curate(user.folder)
    assert user.does("submit", "curate", "curate.toml", "--detach").returncode == 0
    with user.start("logs", user.run().id, "-f") as follower:
        user.wait_for_event("started")
        user.cluster.answer = lambda *_: (503, "gone")
        out, err = follower.communicate(timeout=PATIENCE)
    assert follower.returncode == 0, err
    assert out.splitlines()[-1].startswith(f"curate: {user.folder}/documents: ")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["submit", "tokenizer", "tokenizer.toml", "--deadline", "soon"],
            "--deadline soon: not a duration",
        ),
        *(
            (
                ["submit", "tokenizer", "tokenizer.toml", option, "12"],
                f"{option} 12: the unit is missing",
            )
            for option in ("--deadline", "--pending", "--grace")
        ),
        (["submit", "tokenizer", "tokenizer.toml", "--retries", "often"], "write it as CAUSE=N"),
        (["submit", "tokenizer", "tokenizer.toml", "--retries", "moon=1"], "no cause 'moon'"),
        (["submit", "tokenizer", "tokenizer.toml", "--max-cost", "-1"], "max_cost"),
        (["submit", "tokenizer", "tokenizer.toml", "--environment", "pined"], "'pinned'?"),
        (["submit", "tokenize", "tokenizer.toml"], "1 problem; nothing was uploaded"),
        (["logs", "../../etc"], "no run '../../etc'"),
        (["stop", "nothing"], "no run 'nothing'"),
    ],
)
def test_a_wrong_command_line_is_one_line(
    user: User,
    arguments: list[str],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(user.folder)
    for name in user.environment.keys() - os.environ.keys():
        monkeypatch.setenv(name, user.environment[name])
    with pytest.raises(SystemExit) as ended:
        cli.main(arguments)
    assert ended.value.code == 2
    said = capfd.readouterr()
    assert (said.out, "Traceback" in said.err) == ("", False)
    assert message in said.err.splitlines()[-1]
    assert not user.cluster.jobs and not user.cluster.uploads


def test_the_beginning_of_an_id_names_a_run(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    run = Home(str(tmp_path)).create("tokenizer", "/x/tokenizer")
    run.take_attempt("job-1", "http://127.0.0.1:1", "", {})
    with contextlib.closing(run.open_log(1)) as log:
        log.write(b"its log\n")
    run.record("ended", 1, state="done", exit_code=0)
    for verb, said in (("logs", "its log\n"), ("stop", f"{run.id}: done\n")):
        with pytest.raises(SystemExit) as ended:
            cli.main([verb, "tok", "--home", str(tmp_path)])
        assert (ended.value.code, capfd.readouterr().out) == (0, said)


def test_the_table_is_empty_at_first(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    for option in ([], ["--json"]):
        with pytest.raises(SystemExit) as ended:
            cli.main(["jobs", "--home", str(tmp_path), *option])
        assert ended.value.code == 0
    said = capfd.readouterr()
    assert (json.loads(said.out), said.err.count("no runs")) == ([], 1)


def test_a_check_alone_submits_nothing(user: User) -> None:
    checked = user.does("submit", "tokenizer", "tokenizer.toml", "--check", "--json")
    assert checked.returncode == 0
    found = json.loads(checked.stdout)
    assert found["problems"] == 0
    assert {finding["verdict"] for finding in found["preflight"]} == {"ok"}
    assert not user.cluster.jobs and not user.cluster.uploads
    with contextlib.suppress(FileNotFoundError):
        assert not list((user.folder / "home").iterdir())
