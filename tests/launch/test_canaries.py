"""Secrets of a run, searched for in every byte that the run leaves."""

import contextlib
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
from support.random_pages import make_lines

from trainrig import config, storage
from trainrig.corpus.curation_settings import Curation, CurationSource
from trainrig.corpus.filters.filters import Length
from trainrig.launch.supervise.attempt_ends import Limits
from trainrig.launch.supervise.run_record import Home

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.chaos]

SECRETS = {
    "AWS_SECRET_ACCESS_KEY": "canary-of-aws-0123456789abcdef",
    "AWS_SESSION_TOKEN": "canary-of-session-0123456789abcdef",
    "HF_TOKEN": "hf_canary0123456789abcdef",
    "WANDB_API_KEY": "canaryofwandb0123456789abcdef0123456789ab",
    "RAY_AUTH_TOKEN": "canaryofray0123456789abcdef0123456789abcdef0123456789abcdef01234",
}


def list_files(folder):
    """Yield (path, bytes) of all files below a folder, including hidden ones."""
    for path in sorted(Path(folder).rglob("*")):
        if path.is_file() and not path.is_symlink():
            yield str(path), path.read_bytes()


@pytest.fixture(scope="module")
def ray_folder():
    """Make a folder for the logs of this test's Ray; its path is short, for Ray's sockets."""
    with tempfile.TemporaryDirectory(prefix="ray-", dir="/tmp") as folder:
        yield folder


def test_no_secret_is_in_anything_that_an_attended_run_leaves(s3, ray_folder, tmp_path):
    storage.write(f"{s3}/pages.jsonl", make_lines(60))
    source = CurationSource(name="web", paths=(f"{s3}/pages.jsonl",), filters=(Length(),))
    run = Curation(output=f"{s3}/out", workers=1, sources=(source,))
    home = str(tmp_path / "home")
    record = Home(home).create(run.verb, run.output)
    storage.write(record.run_file, config.to_toml(run).encode())
    limits = Limits(notify=None).model_dump(mode="json")
    record.take_attempt("job-{attempt}", "http://here", "", limits)
    environment = {**os.environ, **SECRETS, "RAY_TMPDIR": ray_folder}
    environment.pop("RAY_ADDRESS", None)
    supervise = [sys.executable, "-m", "trainrig.launch.supervise.entrypoint", f"--home={home}"]
    supervise += [f"--run={record.id}", "--attempt=1"]
    left = {}
    with (tmp_path / "stdout").open("wb") as out, (tmp_path / "stderr").open("wb") as err:
        process = subprocess.Popen(supervise, env=environment, stdout=out, stderr=err)
        while process.poll() is None:  # Ray's logs are removed at the end of a successful run
            with contextlib.suppress(OSError):
                for path, data in list_files(ray_folder):
                    left[path] = data
            time.sleep(0.1)
    stdout, stderr = ((tmp_path / name).read_bytes() for name in ("stdout", "stderr"))
    assert process.returncode == 0, stderr.decode()[-2000:]
    left |= dict(list_files(home)) | dict(list_files(ray_folder))
    left |= {path: storage.read(path) for path in storage.list_files(s3)}
    left |= {"stdout": stdout, "stderr": stderr}
    kinds = {Path(path).suffix for path in left}
    assert {".json", ".toml", ".jsonl", ".txt", ".parquet", ".html", ".out"} <= kinds
    assert [path for path, data in left.items() if s3.encode() in data]  # the search works
    for name, secret in SECRETS.items():
        assert not [path for path, data in left.items() if secret.encode() in data], name
    assert not [path for path, data in left.items() if is_pickle(path, data)]


def is_pickle(path, data):
    """Return whether a file begins like a pickle, except in Ray's own folder."""
    return "/session_" not in path and data[:2] in (b"\x80\x03", b"\x80\x04", b"\x80\x05")
