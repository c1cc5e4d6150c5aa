"""Ray servers started by trainrig refuse unauthenticated calls; docs/security.md explains this."""

import ast
import functools
import ipaddress
import json
import re
import subprocess
import sys
from pathlib import Path

import grpc
import psutil
import pytest

import trainrig
from trainrig.ray_runtime.ray_session import TOKEN

PLATFORM = Path(trainrig.__file__).parent


def own_processes():
    return [psutil.Process(), *psutil.Process().children(recursive=True)]


LISTENS = """
import json, psutil
from trainrig.ray_runtime import ray_session
ray_session.join()
own = psutil.Process()
print(json.dumps([
    (process.name(), connection.laddr.ip)
    for process in (own, *own.children(recursive=True))
    for connection in process.net_connections(kind="inet")
    if connection.status == psutil.CONN_LISTEN
]))
"""


@pytest.mark.slow
@pytest.mark.ray
def test_a_local_ray_listens_on_loopback_alone(monkeypatch):
    """In a process of its own, because another test may have imported Ray before."""
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    ended = subprocess.run([sys.executable, "-c", LISTENS], capture_output=True, text=True)
    assert "listens on the network" not in ended.stderr
    listening = json.loads(ended.stdout.splitlines()[-1])
    assert {"gcs_server", "raylet"} <= {name for name, _ in listening}

    def is_loopback(address):
        parsed = ipaddress.ip_address(address)
        return (getattr(parsed, "ipv4_mapped", None) or parsed).is_loopback

    assert not [(name, address) for name, address in listening if not is_loopback(address)]


def call_server(port, method, *metadata):
    """Return the status of a call to a Ray server; an empty message is always valid."""
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        call = channel.unary_unary(method)
        try:
            call(b"", metadata=metadata, timeout=60)
        except grpc.RpcError as error:
            return error.code()
    return grpc.StatusCode.OK


NODES = "/ray.rpc.NodeInfoGcsService/GetAllNodeInfo"
DRAIN = "/ray.rpc.autoscaler.AutoscalerStateService/DrainNode"
JOBS = "/ray.rpc.JobInfoGcsService/GetAllJobInfo"
STATISTICS = "/ray.rpc.NodeManagerService/GetNodeStats"


@pytest.mark.ray
@pytest.mark.parametrize("method", [NODES, DRAIN, JOBS, STATISTICS])
def test_no_server_of_ray_s_answers_without_the_token(local_ray, method):
    import ray

    (node,) = ray.nodes()
    control_store = int(ray.get_runtime_context().gcs_address.rpartition(":")[2])
    port = node["NodeManagerPort"] if method == STATISTICS else control_store
    assert call_server(port, method) == grpc.StatusCode.UNAUTHENTICATED
    wrong = ("authorization", f"Bearer {'0' * 64}")
    assert call_server(port, method, wrong) == grpc.StatusCode.UNAUTHENTICATED
    right = ("authorization", f"Bearer {TOKEN.expanduser().read_text().strip()}")
    assert call_server(port, method, right) != grpc.StatusCode.UNAUTHENTICATED


@pytest.mark.ray
def test_the_token_is_in_no_command_line(local_ray):
    token = TOKEN.expanduser().read_text().strip()
    assert len(token) >= 32
    assert TOKEN.expanduser().stat().st_mode & 0o077 == 0
    assert not [p.name() for p in own_processes() if token in " ".join(p.cmdline())]


# Channels between trainrig's processes that no other user can reach: a pipe, a socket in a folder
# of its owner alone, or Ray, which requires the token.
CHANNELS = {
    "corpus/extract/guard.py",
    "corpus/extract/guarded.py",
    "ray_runtime/split_workers.py",
    "scaling/sweep/trial_process.py",
    "train/elastic/rank.py",
    "train/elastic/ray_attempt.py",
}
# The user's own functions, which a run file names and its fingerprint covers; no checkpoint or row
# can name one.
USERS_OWN = {"posttrain/rewards/user_code_worker.py"}
# Programs of a model and their tests, each in a confined process of its own.
CONFINED = {"evaluate/confined/judge.py", "evaluate/confined/program.py"}
RUNS_CODE = {
    ("pickle", "load"),
    ("pickle", "loads"),
    ("pickle", "Unpickler"),
    ("marshal", "loads"),
    ("shelve", "open"),
    ("joblib", "load"),
    ("torch", "load"),
    ("dcp", "load"),
    ("yaml", "load"),
    ("yaml", "unsafe_load"),
    ("yaml", "full_load"),
    ("os", "system"),
    ("", "eval"),
    ("", "exec"),
}


@functools.cache
def calls():
    """Return (file, module, function, keywords) of each call by name in the package."""
    return list(_calls())


def _calls():
    for path in sorted(PLATFORM.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Call):
                continue
            name = str(path.relative_to(PLATFORM))
            function = node.func
            keywords = {
                word.arg: word.value.value
                for word in node.keywords
                if isinstance(word.value, ast.Constant)
            }
            if isinstance(function, ast.Attribute):
                module = function.value.id if isinstance(function.value, ast.Name) else "(…)"
                yield name, module, function.attr, keywords
            elif isinstance(function, ast.Name):
                yield name, "", function.id, keywords


@pytest.mark.slow
def test_nothing_that_can_run_code_is_read_from_a_file():
    found = {name for name, module, function, _ in calls() if (module, function) in RUNS_CODE}
    assert found == CHANNELS | USERS_OWN | CONFINED
    for keyword in ("allow_pickle", "trust_remote_code", "shell"):
        assert not [name for name, _, _, words in calls() if words.get(keyword)]


@pytest.mark.slow
def test_the_page_names_the_native_parsers_that_are_loaded():
    """Check libraries that have ever been named, or that read untrusted files."""
    names = {
        "lxml": "trafilatura",  # uses it to parse
        "resiliparse": "resiliparse",
        "FastWARC": "fastwarc",
        "zlib-ng": "zlib_ng",
        "Arrow": "pyarrow",
        "fastText": "fasttext",
    }
    imported = {
        name.split(".")[0]
        for path in PLATFORM.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        for name in (
            [node.module or ""]
            if isinstance(node, ast.ImportFrom)
            else [alias.name for alias in node.names]
            if isinstance(node, ast.Import)
            else []
        )
    }
    page = (PLATFORM.parents[1] / "docs" / "security.md").read_text()
    (section,) = re.findall(r"\*\*Native parsers\*\*(.*?)\n- ", page, re.DOTALL)
    loaded = section.partition(". ")[0]
    assert {name for name in names if name in loaded} == {
        name for name, module in names.items() if module in imported
    }


@pytest.mark.slow
def test_no_archive_is_unpacked():
    unpacking = {("zipfile", "extractall"), ("tarfile", "open"), ("shutil", "unpack_archive")}
    assert not [name for name, module, function, _ in calls() if (module, function) in unpacking]
