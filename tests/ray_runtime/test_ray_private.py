"""The private parts of Ray exist where `ray_private` looks for them, and are used nowhere else."""

import ast
import importlib
from pathlib import Path

import pytest

from trainrig.ray_runtime import ray_private

PACKAGE = Path(ray_private.__file__).parents[1]
# Parts of module paths, or imported names, that are private without an underscore.
PRIVATE_PATHS = ("core.generated", "v2.api", "autoscaler.sdk")


# A cluster's head runs ray_pools.py without any other file of trainrig.
ALONE = ("ray_private.py", "ray_pools.py")


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


@pytest.mark.slow
def test_nothing_else_imports_what_is_private() -> None:
    files = [path for path in PACKAGE.rglob("*.py") if path.name not in ALONE]
    found = {
        str(path.relative_to(PACKAGE)): [
            imported for imported in _list_imports(path) if _is_private(*imported)
        ]
        for path in files
    }
    assert {path: imports for path, imports in found.items() if imports} == {}


REACHED = sorted(imported for imported in _list_imports(Path(ray_private.__file__)) if imported[1])


@pytest.mark.parametrize(
    ("module", "name"), REACHED, ids=[".".join(reached) for reached in REACHED]
)
def test_every_private_import_exists(module: str, name: str) -> None:
    assert hasattr(importlib.import_module(module), name)


@pytest.mark.parametrize(
    ("module", "owner", "names"),
    [
        (
            "ray._private.state",
            "state",
            ("get_draining_nodes", "available_resources_per_node", "_connect_and_get_accessor"),
        ),
    ],
)
def test_every_patched_name_exists(module: str, owner: str, names: tuple[str, ...]) -> None:
    """A patch of a name that is never read would silently do nothing."""
    held = getattr(importlib.import_module(module), owner)
    assert [name for name in names if not hasattr(held, name)] == []


def test_the_provider_of_local_nodes_is_there() -> None:
    module, _, name = ray_private.LOCAL_NODE_PROVIDER.rpartition(".")
    assert hasattr(importlib.import_module(module), name)


def test_the_records_of_workers_have_the_fields_that_are_read() -> None:
    from ray.core.generated import common_pb2, gcs_pb2

    worker = gcs_pb2.WorkerTableData()  # type: ignore[attr-defined]
    assert worker.worker_address.node_id == b""
    assert (worker.pid, worker.exit_type) == (0, 0)
    assert common_pb2.WorkerExitType.NODE_OUT_OF_MEMORY  # type: ignore[attr-defined]
