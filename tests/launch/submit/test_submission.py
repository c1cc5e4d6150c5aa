"""Runs by `trainrig submit` on a cluster that has nothing of trainrig but the upload."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from support.two_nodes import two_nodes

from trainrig import config
from trainrig.corpus.curate import Curation, curate

pytestmark = [pytest.mark.ray, pytest.mark.slow]


@dataclass
class User:
    """A user who reaches a cluster of two nodes and keeps its records at home."""

    cluster: Any
    folder: Path
    environment: dict[str, str]

    def trainrig(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "trainrig", *arguments],
            capture_output=True,
            text=True,
            cwd=self.folder,
            env=self.environment,
            timeout=300,
        )


@pytest.fixture(scope="module")
def user(tmp_path_factory: pytest.TempPathFactory) -> Iterator[User]:
    folder = tmp_path_factory.mktemp("user")
    with two_nodes() as cluster:
        cluster.start_head(0)
        cluster.add_node("second", 2)
        cluster.wait_for_nodes(2)
        kept = {n: v for n, v in os.environ.items() if not n.startswith("RAY_")}
        yield User(
            cluster,
            folder,
            kept
            | {
                "RAY_AUTH_TOKEN_PATH": str(cluster.token),
                "RAY_API_SERVER_ADDRESS": cluster.address,
                "TRAINRIG_HOME": str(folder / "home"),
            },
        )


PAGES = "".join(
    json.dumps({"text": f"Page {n} tells of harbours, lamps and the {n * 7919} ships. " * 8}) + "\n"
    for n in range(40)
)
CURATE = """
stage = "curate"
output = "documents"
workers = 2

[[sources]]
name = "pages"
paths = ["pages.jsonl"]
filters = [{ kind = "Length", min_characters = 50 }]
"""


def sums(folder: Path) -> dict[str, Any]:
    found = json.loads((folder / "manifest.json").read_text())
    return found["files"]


def test_a_submitted_run_gives_the_local_results(user: User) -> None:
    """The head has no room for workers, so the other node does the work."""
    (user.folder / "pages.jsonl").write_text(PAGES)
    (user.folder / "curate.toml").write_text(CURATE)
    ended = user.trainrig("submit", "curate", "curate.toml", "--json")
    assert ended.returncode == 0, ended.stderr
    found = json.loads(ended.stdout)
    assert (found["state"], found["exit_code"], found["attempt"]) == ("done", 0, 1)
    changes = [f"output={user.folder}/here", f"sources.0.paths=['{user.folder}/pages.jsonl']"]
    curate(config.load(Curation, str(user.folder / "curate.toml"), ["workers=0", *changes]))
    assert sums(user.folder / "documents") == sums(user.folder / "here")
    again = user.trainrig("submit", "curate", "curate.toml")
    assert (again.returncode, again.stdout) == (0, "")
    assert "already finished; nothing to do" in again.stderr


def test_more_workers_than_the_clusters_capacity_are_refused(user: User) -> None:
    """The head reports no autoscaler."""
    (user.folder / "pages.jsonl").write_text(PAGES)
    (user.folder / "curate.toml").write_text(CURATE)
    changes = ["--set", "workers=3", "--set", "output=more"]
    ended = user.trainrig("submit", "curate", "curate.toml", *changes)
    assert ended.returncode == 2
    assert "workers: 3 of 1 CPU each, but the cluster has space for at most 2" in ended.stderr
    assert not (user.folder / "more").exists()


def test_a_wrong_token_is_one_line(user: User) -> None:
    (user.folder / "pages.jsonl").write_text(PAGES)
    (user.folder / "curate.toml").write_text(CURATE)
    user.environment["RAY_AUTH_TOKEN"] = "f" * 64
    try:
        ended = user.trainrig("submit", "curate", "curate.toml", "--set", "output=other")
    finally:
        del user.environment["RAY_AUTH_TOKEN"]
    assert ended.returncode == 2
    assert f"{user.cluster.address}: the token is refused" in ended.stderr
    assert "Traceback" not in ended.stderr


@pytest.mark.soak
def test_local_versions_can_be_installed_on_the_cluster(user: User) -> None:
    """Submit with pinned versions, which pip finds installed and does not download."""
    (user.folder / "pages.jsonl").write_text(PAGES)
    (user.folder / "curate.toml").write_text(CURATE)
    options = ["--set", "output=pinned", "--set", "workers=0", "--environment", "pinned"]
    ended = user.trainrig("submit", "curate", "curate.toml", *options, "--json")
    assert ended.returncode == 0, ended.stderr
    assert json.loads(ended.stdout)["state"] == "done"
    events = (
        user.folder / "home" / "runs" / json.loads(ended.stdout)["id"] / "events.jsonl"
    ).read_text()
    assert "other_versions" not in events
