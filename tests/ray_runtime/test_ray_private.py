"""The private parts of Ray are few, are used in one module, and each has a public fallback."""

import ast
import importlib
import re
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from trainrig.errors import ClusterError
from trainrig.ray_runtime import ray_private

PACKAGE = Path(ray_private.__file__).parents[1]
# Parts of module paths, or imported names, that are private without an underscore.
PRIVATE_PATHS = ("core.generated", "v2.api", "_raylet")
ADDRESS = "127.0.0.1:6379"
NEEDS = [{"CPU": 1.0}, {"CPU": 1.0}]


def _list_imports(path: Path) -> list[tuple[str, str]]:
    """Return (module, name) of all imports from Ray anywhere in a file."""
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "ray":
            found += [(node.module or "", alias.name) for alias in node.names]
        elif isinstance(node, ast.Import):
            found += [(alias.name, "") for alias in node.names if alias.name.split(".")[0] == "ray"]
    return found


def _is_private(module: str, name: str) -> bool:
    hidden = any(part.startswith("_") for part in [*module.split("."), name] if part)
    return hidden or any(path in module for path in PRIVATE_PATHS)


REACHED = sorted(
    {found for found in _list_imports(Path(ray_private.__file__)) if _is_private(*found)}
    | {tuple(ray_private.LOCAL_NODE_PROVIDER.rsplit(".", 1))}
)


@pytest.mark.slow
def test_nothing_else_imports_what_is_private() -> None:
    files = [path for path in PACKAGE.rglob("*.py") if path.name != "ray_private.py"]
    found = {
        str(path.relative_to(PACKAGE)): [
            imported for imported in _list_imports(path) if _is_private(*imported)
        ]
        for path in files
    }
    assert {path: imports for path, imports in found.items() if imports} == {}


def test_at_most_five_private_names_are_used() -> None:
    assert len(REACHED) <= 5, REACHED


@pytest.mark.slow
def test_nothing_of_ray_is_overwritten() -> None:
    """A patch, or an assignment to an attribute of a module of Ray."""
    assigned = re.compile(r"^\s*ray\.[\w.]+ = |setattr\(ray\b", re.MULTILINE)
    for path in PACKAGE.rglob("*.py"):
        text = path.read_text()
        assert not assigned.search(text), path
        if re.search(r"^\s*(from unittest import mock|import unittest)", text, re.MULTILINE):
            assert not _list_imports(path), path


@pytest.mark.parametrize(
    ("module", "name"), REACHED, ids=[".".join(reached) for reached in REACHED]
)
def test_every_private_name_exists(module: str, name: str) -> None:
    assert hasattr(importlib.import_module(module), name)


@pytest.fixture
def without_private_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the private modules as absent as in a release of Ray that has moved them."""
    import ray  # noqa: F401  # its own imports of them stay

    for module, _ in REACHED:
        monkeypatch.setitem(sys.modules, module, None)


@pytest.mark.usefixtures("without_private_names")
class TestFallbacks:
    def test_no_node_is_known_to_drain(self) -> None:
        assert ray_private.list_draining_nodes() == {}

    def test_all_resources_of_live_nodes_count_as_free(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        import ray

        def node(name: str, alive: bool) -> dict[str, Any]:
            return {"NodeID": name, "Alive": alive, "Resources": {"CPU": 2.0}}

        monkeypatch.setattr(ray, "nodes", lambda: [node("live", True), node("dead", False)])
        assert ray_private.list_free_resources() == {"live": {"CPU": 2.0}}

    def test_nodes_are_requested_from_the_autoscaler_itself(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        from ray.autoscaler import sdk

        asked: list[Any] = []
        monkeypatch.setattr(sdk, "request_resources", lambda bundles: asked.append(bundles))
        requests = ray_private.NodeRequests("run")
        requests.send(NEEDS, 60.0)
        requests.cancel()
        assert asked == [NEEDS, []]

    def test_a_trainer_is_one_for_torch(self, monkeypatch: pytest.MonkeyPatch) -> None:
        taken: dict[str, Any] = {}
        stand_in = SimpleNamespace(TorchTrainer=lambda loop, **options: taken.update(options))
        monkeypatch.setitem(sys.modules, "ray.train.torch", stand_in)
        ray_private.make_trainer(print, "backend", train_loop_config={})
        assert taken == {"torch_config": "backend", "train_loop_config": {}}

    def test_a_head_is_asked_by_the_state_api_and_drains_by_its_command(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        found = SimpleNamespace(node_id="n", node_ip="10.0.0.1", labels=None)
        state = SimpleNamespace(list_nodes=lambda *arguments, **options: [found])
        monkeypatch.setitem(sys.modules, "ray.util.state", state)
        commands: list[list[str]] = []

        def run(command: list[str], **options: Any) -> Any:
            commands.append(command)
            return SimpleNamespace(returncode=1, stderr="Error\nno such node\n")

        monkeypatch.setattr(ray_private.subprocess, "run", run)
        head = ray_private.HeadClient(ADDRESS)
        assert head.read_cluster_id() is None
        assert head.list_live_nodes(5.0) == [ray_private.LiveNode("n", "10.0.0.1", {})]
        assert head.drain("n", "taken back", 0.0, 5.0) == "no such node"
        assert commands[0][1:] == [
            "drain-node",
            f"--address={ADDRESS}",
            "--node-id=n",
            "--reason=DRAIN_NODE_REASON_PREEMPTION",
            "--reason-message=taken back",
            "--deadline-remaining-seconds=0",
        ]

    def test_a_cluster_on_one_machine_is_refused(self) -> None:
        with pytest.raises(ClusterError, match="start them by `ray start`"):
            ray_private.find_local_node_provider()


def test_ray_numbers_the_reason_of_a_drain_as_trainrig_does() -> None:
    from ray.core.generated import autoscaler_pb2

    names = autoscaler_pb2.DrainNodeReason.Name(ray_private.PREEMPTION)  # type: ignore[attr-defined]
    assert names == "DRAIN_NODE_REASON_PREEMPTION"
