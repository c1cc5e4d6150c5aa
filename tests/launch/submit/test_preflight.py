"""Checks before an upload, which report all problems at once.

The dashboard is a stand-in, because Ray's would have to be of another version.
"""

import contextlib
import json
import platform
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from moto.s3.responses import S3Response
from support.launch import jobs_server

from trainrig import cli, storage
from trainrig.config import ResourceRequest
from trainrig.launch.ray_jobs import ClusterNode, RayJobs
from trainrig.launch.submit import uploads
from trainrig.launch.submit.cluster_view import ClusterView
from trainrig.launch.submit.preflight import Preflight, SubmissionRequest, examine
from trainrig.launch.supervise.attempt_ends import Limits
from trainrig.launch.supervise.run_record import Home
from trainrig.ray_runtime.ray_pools import NodePool

ELSEWHERE = "203.0.113.7"  # an address for documentation, which belongs to no machine

node = jobs_server.node
TOKEN = jobs_server.TOKEN


@pytest.fixture
def dashboard(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.setenv("RAY_AUTH_TOKEN", TOKEN)
    monkeypatch.delenv("RAY_API_SERVER_ADDRESS", raising=False)
    with jobs_server.serving() as found:
        yield found
        assert not found.uploads and not found.jobs, "something was sent before all was well"


CURATE = """
stage = "curate"
output = "{place}/documents"
workers = {workers}

[[sources]]
name = "pages"
paths = ["{place}/pages.jsonl"]
filters = [{{ kind = "Length", min_characters = 5 }}]
"""
SWEEP = """
stage = "sweep"
tokens = "{place}/tokens"
output = "{place}/sweep"
trials.gpus = 1.0

[design]
kind = "Grid"
parameters = [20_000, 40_000]
tokens = [80_000, 160_000]
"""


@pytest.fixture
def make_request(tmp_path: Path, dashboard: Any) -> Callable[..., SubmissionRequest]:
    """Return a function that makes requests for a valid run, except for the given changes."""

    def make(
        text: str = CURATE, place: str | None = None, workers: str = "2", **changes: Any
    ) -> SubmissionRequest:
        place = place or str(tmp_path)
        with contextlib.suppress(Exception):  # the bucket may not exist
            storage.write(f"{place}/pages.jsonl", b'{"text": "a page"}\n')
        run_file = tmp_path / "run.toml"
        run_file.write_text(text.format(place=place, workers=workers))
        given = {"verb": "curate", "address": dashboard.address, "home": f"{tmp_path}/home"}
        return SubmissionRequest(run_file=str(run_file), **{**given, **changes})

    return make


def list_problems(found: Preflight) -> list[tuple[str, str]]:
    return [(problem.what, problem.text) for problem in found.problems]


def one_problem(found: Preflight) -> tuple[str, str]:
    (problem,) = list_problems(found)
    assert "\n" not in problem[1]
    return problem


def test_a_valid_run_has_no_problems(
    make_request: Callable[..., SubmissionRequest],
) -> None:
    found = examine(make_request())
    assert not list_problems(found)
    said = {finding.what: finding.text for finding in found.findings}
    assert said["resources"] == "workers: 2 of 1 CPU each: 4 fit now"
    assert said["versions"].startswith(f"Ray {metadata.version('ray')}, Python 3.")
    assert not storage.list_files(found.home.path)
    assert not storage.list_files(found.output)


@pytest.mark.slow
def test_an_address_where_nothing_answers(make_request: Callable[..., SubmissionRequest]) -> None:
    what, text = one_problem(examine(make_request(address="http://127.0.0.1:9")))
    assert what == "cluster"
    assert text.startswith("http://127.0.0.1:9: no Ray dashboard answers (Connection refused)")
    what, text = one_problem(examine(make_request(address="ftp://somewhere")))
    assert "not the address of a cluster's dashboard" in text
    what, text = one_problem(examine(make_request(address="http://no-such-host.invalid:8265")))
    assert "no Ray dashboard answers" in text


def test_a_server_that_is_not_ray_is_refused(
    make_request: Callable[..., SubmissionRequest], dashboard: Any
) -> None:
    dashboard.answer = lambda *_: (404, "404: Not Found")
    assert "is this Ray's dashboard?" in one_problem(examine(make_request()))[1]
    dashboard.answer = lambda *_: (200, ["no", "metadata"])
    assert "the answer is not from Ray" in one_problem(examine(make_request()))[1]
    dashboard.answer = lambda *_: (200, "<html>")
    assert "the answer is not from Ray" in one_problem(examine(make_request()))[1]


def test_a_wrong_or_missing_token_is_refused(
    make_request: Callable[..., SubmissionRequest], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_AUTH_TOKEN", "wrong")
    assert "the token is refused" in one_problem(examine(make_request()))[1]
    monkeypatch.setenv("RAY_AUTH_TOKEN", "a\nb: c")
    assert "has characters that no token has" in one_problem(examine(make_request()))[1]
    monkeypatch.delenv("RAY_AUTH_TOKEN")
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(tmp_path / "none"))
    assert "a token is required, but none was found" in one_problem(examine(make_request()))[1]


def test_a_token_does_not_follow_a_redirect(
    make_request: Callable[..., SubmissionRequest], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []

    class Elsewhere(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            seen.append(self.path)
            self.send_response(302)
            self.send_header("Location", "/taken")
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Elsewhere) as server:
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        address = f"http://127.0.0.1:{server.server_port}"
        assert "status 302" in one_problem(examine(make_request(address=address)))[1]
        server.shutdown()
    assert seen == ["/api/v0/cluster_metadata"]


def test_a_token_does_not_go_to_a_proxy(dashboard: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")  # no server listens there
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    assert RayJobs(dashboard.address).fetch_versions()


def test_other_versions_on_the_cluster(
    make_request: Callable[..., SubmissionRequest], dashboard: Any
) -> None:
    dashboard.ray = "2.54.0"
    dashboard.python = "3.10.12"
    what, text = one_problem(examine(make_request()))
    assert what == "versions"
    assert "the cluster has Ray 2.54.0, but this machine has" in text
    assert "the cluster has Python 3.10.12" in text
    dashboard.ray = metadata.version("ray")
    dashboard.python = ".".join(platform.python_version().split(".")[:2]) + ".99"
    assert not list_problems(examine(make_request()))


def test_a_run_file_of_another_verb(make_request: Callable[..., SubmissionRequest]) -> None:
    what, text = one_problem(examine(make_request(verb="tokenize")))
    assert what == "run file"
    assert "use `trainrig curate" in text
    assert "did you mean 'curate'" in one_problem(examine(make_request(verb="currate")))[1]


def test_gpus_that_no_pool_has(
    make_request: Callable[..., SubmissionRequest], dashboard: Any, tmp_path: Path
) -> None:
    dashboard.pools = [{"name": "cpu", "resources": {"CPU": 8}, "labels": {}, "most": 4}]
    (tmp_path / "tokens").mkdir()
    (tmp_path / "tokens" / "begun").write_text("")
    found = examine(make_request(SWEEP, verb="sweep"))
    assert dashboard.questions == 1
    what, text = one_problem(found)
    assert what == "resources"
    assert text == (
        "trials.gpus: 1 of 1 CPU and 1 GPU each, but no node and no pool has GPUs (cpu: "
        "4 nodes of 8 CPU); set trials.gpus = 0, or add a pool with GPUs to the cluster file"
    )


PRETRAIN = """
stage = "pretrain"
tokens = "{place}/tokens"
output = "{place}/model"
workers = {workers}
training.steps = 5

[model]
layers = 2
channels = 32
heads = 4
kv_heads = 2
positions = 48
vocabulary = 320

[batches]
sequence_length = 32
global_batch = 8
micro_batch = 2
"""
CLUSTER = "trainrig.io/cluster"
INSTANCE = "trainrig.io/instance"
GPUS = {
    "name": "gpu",
    "resources": {"CPU": 96, "GPU": 8},
    "labels": {INSTANCE: "p5.48xlarge"},
    "most": 2,
}
PRICES = (Path(__file__).parents[1] / "prices.toml").read_text()


@pytest.fixture
def pretrain(
    make_request: Callable[..., SubmissionRequest], tmp_path: Path
) -> Callable[..., SubmissionRequest]:
    """Return a function that makes requests to train on existing tokens."""
    (tmp_path / "tokens").mkdir()
    (tmp_path / "tokens" / "begun").write_text("")
    return lambda **changes: make_request(PRETRAIN, verb="pretrain", **changes)


@pytest.mark.slow
def test_training_is_estimated_for_future_gpus_though_cpus_are_up(
    pretrain: Callable[..., SubmissionRequest], dashboard: Any
) -> None:
    dashboard.nodes[0]["labels"] = {CLUSTER: "aws"}
    dashboard.pools = [GPUS]
    said = {finding.what: finding.text for finding in examine(pretrain()).findings}
    assert dashboard.questions == 1
    asked = "workers: 2 of 1 CPU and 1 GPU each"
    assert said["resources"].startswith(f"{asked}: 0 fit now, 16 with the nodes")
    assert "h on h100 x 2" in said["cost"]


def test_one_machine_or_stages_without_accelerators_need_no_query_of_pools(
    pretrain: Callable[..., SubmissionRequest],
    make_request: Callable[..., SubmissionRequest],
    dashboard: Any,
) -> None:
    dashboard.pools = [GPUS]
    said = {finding.what: finding.text for finding in examine(pretrain()).findings}
    assert said["resources"] == "workers: 2 of 1 CPU each: 4 fit now"
    dashboard.nodes[0]["labels"] = {CLUSTER: "aws"}
    assert not list_problems(examine(make_request()))
    assert dashboard.questions == 0


def test_a_table_of_prices_is_read_before_anything_is_sent(
    pretrain: Callable[..., SubmissionRequest], dashboard: Any, tmp_path: Path
) -> None:
    dashboard.nodes.append(node(4) | {"is_head_node": False, "labels": {INSTANCE: "mine"}})
    table = tmp_path / "prices.toml"
    limits = Limits(hardware=str(table))
    table.write_text(PRICES)
    said = {finding.what: finding.text for finding in examine(pretrain(limits=limits)).findings}
    assert said["hardware"] == f"{table}: 1 instances with prices"
    assert "h on core x 2" in said["cost"] and " USD (1 mine, " in said["cost"]
    table.write_text(PRICES.replace("usd = 2.0", "usd = -2.0"))
    what, text = one_problem(examine(pretrain(limits=limits)))
    assert what == "hardware" and str(table) in text and "greater than 0" in text
    table.unlink()
    assert one_problem(examine(pretrain(limits=limits)))[1].startswith(f"{table}: no such")


def test_a_limit_in_dollars_wants_a_price_of_all_that_may_come(
    make_request: Callable[..., SubmissionRequest], dashboard: Any, tmp_path: Path
) -> None:
    dashboard.nodes[0]["labels"] = {CLUSTER: "aws", INSTANCE: "m7i.2xlarge"}
    dashboard.pools = [GPUS | {"labels": {INSTANCE: "mine"}}]
    what, text = one_problem(examine(make_request(limits=Limits(max_cost=5.0))))
    assert what == "max cost"
    assert text == (
        "max_cost cannot be enforced: no price for 'mine'; "
        "give a table with these prices by --hardware"
    )
    assert not list_problems(examine(make_request()))
    dashboard.pools = [GPUS]
    assert not list_problems(examine(make_request(limits=Limits(max_cost=5.0))))
    dashboard.nodes[0]["labels"] = {CLUSTER: "local", INSTANCE: "laptop"}  # nothing is rented
    dashboard.pools = [GPUS | {"labels": {INSTANCE: "laptop"}}]
    assert not list_problems(examine(make_request(limits=Limits(max_cost=5.0))))
    dashboard.nodes[0]["labels"] = {CLUSTER: "aws"}
    text = one_problem(examine(make_request(limits=Limits(max_cost=5.0))))[1]
    assert f"no price for nodes without {INSTANCE}" in text


def test_another_live_run_gives_a_warning_as_each_pays_for_all_nodes(
    make_request: Callable[..., SubmissionRequest], dashboard: Any, tmp_path: Path
) -> None:
    home = Home.choose(f"{tmp_path}/home")
    elsewhere = home.create("curate", "s3://b/elsewhere")
    elsewhere.take_attempt("a", "http://another:8265", "", {})
    assert not [
        finding for finding in examine(make_request()).findings if finding.verdict == "warning"
    ]
    other = home.create("curate", "s3://b/other")
    other.take_attempt("b", dashboard.address, "", {})
    own = home.create("curate", f"{tmp_path}/documents")
    own.record("ended", 1, state="failed")
    (warning,) = [
        finding for finding in examine(make_request()).findings if finding.verdict == "warning"
    ]
    assert warning.text == (
        f"other runs are live on this cluster: {other.id}; each is charged for all nodes"
    )
    dashboard.nodes[0]["labels"] = {CLUSTER: "aws"}  # another cluster could have the same address
    assert not [
        finding for finding in examine(make_request()).findings if finding.verdict == "warning"
    ]
    other.take_attempt("c", "http://10.0.0.1:8265", "aws", {})
    assert [
        finding.what for finding in examine(make_request()).findings if finding.verdict == "warning"
    ]


def _node(cpus: float, gpus: float = 0.0) -> ClusterNode:
    return ClusterNode("203.0.113.9", False, {"CPU": cpus, "GPU": gpus}, {})


@pytest.mark.parametrize(
    ("least", "pools", "verdict"),
    [
        (4, [], "ok"),
        (5, [], "problem"),
        (16, [NodePool("cpu", {"CPU": 8.0}, {}, 2)], "ok"),
        (17, [NodePool("cpu", {"CPU": 8.0}, {}, 2)], "problem"),
        (5, None, "unknown"),
    ],
)
def test_capacity_counts_nodes_and_pools(
    least: int, pools: list[NodePool] | None, verdict: str
) -> None:
    view = ClusterView("http://c", "1", "3.11", [_node(4.0), _node(0.5)], pools)
    assert view.check_capacity(ResourceRequest(least, 64))[0] == verdict


def test_stages_without_accelerators_have_the_capacity_of_their_pool() -> None:
    cpu = {"trainrig.io/pool": "cpu"}
    gpu = {"trainrig.io/pool": "gpu"}
    pools = [
        NodePool("small", {"CPU": 2.0}, cpu, 1),
        NodePool("large", {"CPU": 96.0, "GPU": 8.0}, gpu, 4),
    ]
    nodes = [ClusterNode("203.0.113.9", False, {"CPU": 96.0, "GPU": 8.0}, gpu)]
    view = ClusterView("http://c", "1", "3.11", nodes, pools)
    assert view.check_capacity(ResourceRequest(2, 2, pool="cpu"))[0] == "ok"
    assert view.check_capacity(ResourceRequest(3, 3, pool="cpu"))[0] == "problem"
    assert view.check_capacity(ResourceRequest(8, 8, gpus=1.0))[1].endswith("8 fit now")
    assert view.check_capacity(ResourceRequest(33, 33, gpus=1.0))[0] == "problem"
    assert view.check_capacity(ResourceRequest(1, 1, cpus=0.0))[0] == "ok"


def test_disks_that_the_cluster_does_not_see(
    make_request: Callable[..., SubmissionRequest], dashboard: Any, tmp_path: Path
) -> None:
    dashboard.nodes = [node(4, address=ELSEWHERE)]
    found = list_problems(examine(make_request()))
    assert [what for what, _ in found] == ["home", "output", "sources[0].paths[0]"]
    assert all("which the cluster at" in text for _, text in found)
    assert "set --home (or TRAINRIG_HOME) to the URL of a bucket" in found[0][1]


def test_all_in_a_bucket_is_seen_by_any_cluster(
    make_request: Callable[..., SubmissionRequest], dashboard: Any, s3: str
) -> None:
    dashboard.nodes = [node(4, address=ELSEWHERE)]
    found = examine(make_request(place=f"{s3}/data", home=f"{s3}/home"))
    assert not list_problems(found)
    assert storage.list_files(s3) == [f"{s3}/data/pages.jsonl"]


def test_a_missing_bucket_and_one_without_rights_are_refused(
    make_request: Callable[..., SubmissionRequest],
    dashboard: Any,
    s3: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    request = make_request(home="s3://no-such-bucket/home")
    what, text = one_problem(examine(request))
    assert what == "home"
    assert "bucket does not exist" in text
    request = make_request(place=f"{s3}/data", home=f"{s3}/home")
    _refuse_writes(monkeypatch)
    found = list_problems(examine(request))
    assert {what for what, _ in found} == {"home", "output"}
    assert all("cannot be written to from this machine" in text for _, text in found)


def _refuse_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the server answer as S3 does to a user without rights."""
    body = "<Error><Code>AccessDenied</Code><Message>Access Denied</Message></Error>"
    monkeypatch.setattr(S3Response, "put_object", lambda *_: (403, {}, body))


def test_missing_inputs_are_refused(
    make_request: Callable[..., SubmissionRequest], tmp_path: Path
) -> None:
    request = make_request()
    (tmp_path / "pages.jsonl").unlink()
    what, text = one_problem(examine(request))
    assert what == "sources[0].paths[0]"
    assert "does not exist" in text


def test_a_package_too_large_names_its_ten_largest(
    make_request: Callable[..., SubmissionRequest], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "code" / "trainrig"
    (folder / "__pycache__").mkdir(parents=True)
    (folder / ".git").mkdir()
    for number in range(12):
        (folder / f"weights{number:02d}.bin").write_bytes(b"x" * (1000 + number))
        (folder / ".git" / str(number)).write_bytes(b"x" * 5000)
    (folder / "__pycache__" / "module.pyc").write_bytes(b"x" * 5000)
    monkeypatch.setattr(uploads, "LIMIT", 12_066)
    assert len(uploads.find_files_to_pack(folder)) == 12
    monkeypatch.setattr(uploads, "LIMIT", 12_065)
    monkeypatch.setattr(uploads.trainrig, "__file__", str(folder / "__init__.py"))
    what, text = one_problem(examine(make_request()))
    assert what == "upload"
    assert text.count(".bin (") == 10
    assert "weights11.bin" in text
    assert "weights01.bin" not in text


@pytest.mark.slow
def test_another_run_in_the_output(
    make_request: Callable[..., SubmissionRequest],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    request = make_request()
    with pytest.raises(SystemExit):
        cli.main(["curate", request.run_file, "--set", "workers=0"])
    capsys.readouterr()
    assert not list_problems(examine(request))
    assert examine(request).finished is not None
    # The rules may still be applied again.
    ahead = examine(make_request(changes=["url_duplicates=true"]))
    assert not list_problems(ahead)
    assert ahead.finished is None
    what, text = one_problem(examine(make_request(changes=["sources.0.name=others"])))
    assert what == "output"
    assert "made by another run (sources[0].name: 'pages' there, 'others' here)" in text


def test_all_problems_are_reported_at_once_with_exit_code_2(
    make_request: Callable[..., SubmissionRequest],
    dashboard: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    dashboard.ray = "2.54.0"
    request = make_request(workers="9")
    (tmp_path / "pages.jsonl").unlink()
    monkeypatch.setenv("TRAINRIG_HOME", str(tmp_path / "run.toml"))  # a file, not a folder
    arguments = ["submit", "curate", request.run_file, "--address", dashboard.address]
    with pytest.raises(SystemExit) as ended:
        cli.main([*arguments, "--json"])
    assert ended.value.code == 2
    said = capfd.readouterr()
    table = json.loads(said.out)["preflight"]
    wrong = [row["what"] for row in table if row["verdict"] == "problem"]
    assert wrong == ["versions", "home", "sources[0].paths[0]"]
    assert said.err.strip() == "trainrig: submit: 3 problems; nothing was uploaded"
    with pytest.raises(SystemExit) as ended:
        cli.main(arguments)
    said = capfd.readouterr()
    assert said.out == ""
    assert said.err.count("problem ") == 3
    assert "Traceback" not in said.err
