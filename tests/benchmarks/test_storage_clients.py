"""Clients of object stores in turns: trainrig with boto3, obstore and s3fs, in processes."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import util
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.bench

HERE = Path(__file__).parent
ROUNDS = 3


@contextmanager
def serve(*arguments: str) -> Iterator[str]:
    """Yield the address of an object server."""
    command = [sys.executable, str(HERE / "object_server.py"), *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        try:
            yield server.stdout.readline().strip()
        finally:
            server.terminate()


def measure(name: str) -> dict[str, Any]:
    """Return the figures of one client, measured against new servers."""
    keys = {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b"}
    path = os.pathsep.join(filter(None, sys.path))
    environment = os.environ | keys | {"AWS_DEFAULT_REGION": "us-east-1", "PYTHONPATH": path}
    with serve() as fast, serve("0.02") as slow:
        command = [sys.executable, str(HERE / "storage_client.py"), name, fast, slow]
        done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.timeout(1_800)
def test_the_s3_client_is_as_correct_as_its_peers() -> None:
    peers = [name for name in ("obstore", "s3fs") if util.find_spec(name)]
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in ("boto3", *peers)}
    for _ in range(ROUNDS):
        for name, rounds in found.items():
            rounds.append(measure(name))
    print(json.dumps(found))
    assert all(r["rounds_with_one_winner_of_20"] == 20 for r in found["boto3"])
    assert all(r["burst"]["failed"] == 0 for r in found["boto3"])
    assert all(r["survives_fork"] for r in found["boto3"])
