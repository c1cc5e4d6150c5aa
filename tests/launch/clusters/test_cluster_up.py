"""Checks of the files that Ray's launcher uploads, before a head is rented."""

import re
import stat
from pathlib import Path

import pytest

from trainrig.errors import ConfigError
from trainrig.launch.clusters import cluster_up as bringing_up
from trainrig.launch.clusters.cluster_kinds import OpenCluster, open_cluster
from trainrig.launch.clusters.cluster_up import bring_up_cluster
from trainrig.launch.clusters.shipped_clusters import find_cluster

NO_CLOUD = """#!/bin/sh
echo "$@" >> {folder}/asked
echo "[]"
"""


class Rented(Exception):
    """Raised when the launcher is called."""


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> OpenCluster:
    """Open the file for Google Cloud with a user's values filled in, and no machine running."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    for name in ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"):
        monkeypatch.delenv(name, raising=False)
    program = tmp_path / "gcloud"
    program.write_text(NO_CLOUD.format(folder=tmp_path))
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    text = find_cluster("gcp").read_text()
    for example, own in (
        ("my-project", "mine"),
        ("sha256:" + "0" * 64, "sha256:" + "1" * 64),
        ("10.0.0.2:/", "10.0.0.3:/"),
        ("AAAA-YOURS", "AAAA-mine"),
    ):
        text = text.replace(example, own)
    path = tmp_path / "mine.yaml"
    path.write_text(text)

    def rent(*_: object) -> None:
        raise Rented

    monkeypatch.setattr(bringing_up.head_start, "launch_head_by_ray", rent)
    monkeypatch.setattr(bringing_up, "_end_what_was_started", lambda *_: None)
    return open_cluster(str(path))


def refused(cluster: OpenCluster) -> str:
    with pytest.raises(ConfigError) as error:
        bring_up_cluster(cluster, lambda text: None)
    assert "\n" not in str(error.value)
    return str(error.value)


def test_the_created_token_is_the_uploaded_one(cluster: OpenCluster) -> None:
    with pytest.raises(Rented):
        bring_up_cluster(cluster, lambda text: None)


def test_a_token_of_the_environment_must_be_at_the_files_path(
    cluster: OpenCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_AUTH_TOKEN", "a" * 64)
    said = refused(cluster)
    assert said.startswith(f'{cluster.path}: file_mounts["~/.ray/auth_token"]: ~/.ray/auth_token: ')
    assert "its token cannot be read (No such file or directory)" in said
    mounted = tmp_path / ".ray" / "auth_token"
    assert said.endswith(f'(umask 077; printenv RAY_AUTH_TOKEN > "{mounted}")')
    mounted.parent.mkdir()
    mounted.write_text("b" * 64)
    assert "it holds another token" in refused(cluster)
    mounted.write_text("a" * 64 + "\n")
    with pytest.raises(Rented):
        bring_up_cluster(cluster, lambda text: None)


def test_a_token_at_another_path_is_refused(
    cluster: OpenCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = tmp_path / "token"
    mounted = tmp_path / ".ray" / "auth_token"
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(elsewhere))
    mounted.parent.mkdir()
    mounted.write_text("b" * 64)
    assert refused(cluster).endswith(f'(umask 077; cp "{elsewhere}" "{mounted}")')
    elsewhere.write_text("")
    assert re.search(rf"{elsewhere} holds no token; remove it", refused(cluster))


def test_every_other_uploaded_file_must_exist(cluster: OpenCluster, tmp_path: Path) -> None:
    other = tmp_path / "corpus.txt"
    text = cluster.path.read_text()
    cluster.path.write_text(text.replace("file_mounts:\n", f"file_mounts:\n  /data: {other}\n"))
    again = open_cluster(str(cluster.path))
    assert f'file_mounts["/data"]: {other}: does not exist' in refused(again)
    assert (tmp_path / "asked").read_text().count("create") == 0
    other.write_text("")
    with pytest.raises(Rented):
        bring_up_cluster(again, lambda text: None)
