"""Records of the parents of models that no run made."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file
from support.tiny_models import write_untrained_model

from trainrig.errors import DataError
from trainrig.evaluate import data_lineage
from trainrig.evaluate.data_lineage import trace_lineage
from trainrig.evaluate.model_card import describe_checkpoint
from trainrig.models.huggingface import HubFolder
from trainrig.posttrain.huggingface.model_folders import export_checkpoint, import_checkpoint
from trainrig.train import checkpoint
from trainrig.train.checkpoint.model_parents import (
    MOST_BYTES,
    PARENTS,
    ParentModel,
    find_checkpoint,
    find_exported_parents,
    read_parents,
    record_parents,
)


@pytest.fixture
def model(tmp_path: Path) -> str:
    """Write a model that no run made, and return its checkpoint."""
    return write_untrained_model(tmp_path / "model", seed=1)


def test_an_import_takes_over_the_parents_of_unchanged_weights(model: str, tmp_path: Path) -> None:
    hub = tmp_path / "hub"
    export_checkpoint(model, str(hub), HubFolder())
    (parent,) = find_exported_parents(str(hub))
    assert (parent.role, parent.path) == ("checkpoint", model)
    assert parent.content == checkpoint.compute_content_key(model)
    import_checkpoint(str(hub), str(tmp_path / "same"))
    record = read_parents(str(tmp_path / "same"))
    assert record is not None and (record.verb, record.parents) == ("import", (parent,))

    weights = load_file(hub / "model.safetensors")
    name = min(weights)
    save_file({**weights, name: weights[name] + 1}, hub / "model.safetensors")
    assert find_exported_parents(str(hub)) == ()  # other software trained it further
    import_checkpoint(str(hub), str(tmp_path / "changed"))
    assert read_parents(str(tmp_path / "changed")) is None


def test_equal_exports_are_equal_wherever_they_lie(model: str, tmp_path: Path) -> None:
    run, _, rest = model.partition("/checkpoints/")
    copied = shutil.copytree(run, tmp_path / "else/where" / Path(run).name)
    here, there = Path(run).parent / "hub", copied.parent / "hub"
    export_checkpoint(model, str(here), HubFolder())
    export_checkpoint(f"{copied}/checkpoints/{rest}", str(there), HubFolder())
    written = (here / PARENTS).read_bytes()
    assert written == (there / PARENTS).read_bytes() and str(tmp_path).encode() not in written
    (parent,) = find_exported_parents(str(there))
    assert parent.path == f"{copied}/checkpoints/{rest}"
    assert find_checkpoint(parent, str(there)) == parent.path


def test_the_record_does_not_change_the_model(model: str, tmp_path: Path) -> None:
    hub = tmp_path / "hub"
    export_checkpoint(model, str(hub), HubFolder())
    written = (hub / PARENTS).read_bytes()
    export_checkpoint(model, str(hub), HubFolder(), keep=True)
    assert (hub / PARENTS).read_bytes() == written
    first = import_checkpoint(str(hub), str(tmp_path / "run"), keep=True)
    (hub / PARENTS).unlink()
    second = import_checkpoint(str(hub), str(tmp_path / "plain"))
    keys = [checkpoint.compute_content_key(facts["checkpoint"]) for facts in (first, second)]
    assert keys[0] == keys[1]
    # A killed import, whose record was written before its checkpoint, is started over.
    (Path(first["checkpoint"]) / "manifest.json").unlink()
    import_checkpoint(str(hub), str(tmp_path / "run"), keep=True)
    assert checkpoint.resolve(str(tmp_path / "run")) == first["checkpoint"]


def test_nothing_is_recorded_without_parents(tmp_path: Path) -> None:
    record_parents(str(tmp_path), "import", {})
    assert not list(tmp_path.iterdir()) and read_parents(str(tmp_path)) is None


def test_an_export_replaces_a_damaged_record_and_one_of_another_checkpoint(
    model: str, tmp_path: Path
) -> None:
    hub = tmp_path / "hub"
    export_checkpoint(model, str(hub), HubFolder())
    written = (hub / PARENTS).read_bytes()
    other = json.loads(written)
    other["parents"][0]["content"] = "0" * 64
    for damage in (b"{", b" " * (MOST_BYTES + 1), json.dumps(other).encode()):
        (hub / PARENTS).write_bytes(damage)
        export_checkpoint(model, str(hub), HubFolder(), keep=True)
        assert (hub / PARENTS).read_bytes() == written


def test_a_parent_is_found_where_it_was_and_beside_but_not_with_other_weights(
    model: str, tmp_path: Path
) -> None:
    content = checkpoint.compute_content_key(model)
    parent = ParentModel(role="checkpoint", content=content, path=model)
    near = str(tmp_path / "elsewhere" / "averaged")
    assert find_checkpoint(parent, near) == model
    (tmp_path / "elsewhere").mkdir()
    moved = (tmp_path / "model").rename(tmp_path / "elsewhere" / "model")
    assert find_checkpoint(parent, near) == model.replace(f"{tmp_path}/model", str(moved))
    write_untrained_model(tmp_path / "model", seed=2)
    assert find_checkpoint(parent, near) == model.replace(f"{tmp_path}/model", str(moved))
    assert find_checkpoint(parent, str(tmp_path / "averaged")) is None


@pytest.mark.parametrize(
    "place",
    ["s3://a-company/runs/base", "foo://runs/base", "a\0b", "/"],
    ids=["bucket", "unknown scheme", "no path", "root"],
)
def test_a_record_of_another_machine_stops_neither_tree_nor_card_nor_export(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    hub = tmp_path / "hub"
    export_checkpoint(model, str(hub), HubFolder())
    record = json.loads((hub / PARENTS).read_text())
    record["parents"][0] |= {
        "path": f"{place}/checkpoints/step_00000000/attempt-0001",
        "content": "1" * 64,
    }
    (hub / PARENTS).write_text(json.dumps(record))
    imported = import_checkpoint(str(hub), str(tmp_path / "imported"))["checkpoint"]
    (lost,) = trace_lineage(imported).inputs
    assert (lost.folder, lost.fingerprint) == (None, "1" * 64)
    assert "| checkpoint | – | `1111111111111111` |" in describe_checkpoint(imported)
    export_checkpoint(imported, str(tmp_path / "again"), HubFolder())


def test_records_lie_in_a_bucket_too(model: str, tmp_path: Path, s3: str) -> None:
    bucket = f"{s3}/models"
    export_checkpoint(model, f"{bucket}/hub", HubFolder())
    (parent,) = find_exported_parents(f"{bucket}/hub/")
    assert parent.path == model
    imported = import_checkpoint(f"{bucket}/hub", f"{bucket}/imported")["checkpoint"]
    again = import_checkpoint(f"{bucket}/hub", f"{bucket}/imported", keep=True)["checkpoint"]
    assert again == imported
    record_parents(f"{bucket}/mean", "average", {"step 0": imported})
    record = read_parents(f"{bucket}/mean")
    assert record is not None
    (mean,) = record.parents
    assert (mean.path, find_checkpoint(mean, f"{bucket}/mean")) == (imported, imported)
    (below,) = trace_lineage(imported).inputs
    assert below.folder == model


def test_a_family_that_averages_again_and_again_is_read_once(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    last = [write_untrained_model(tmp_path / f"run-{number}", seed=number) for number in range(3)]
    for level in range(4):
        parents = {f"step {step}": path for step, path in enumerate(last)}
        last = []
        for number in range(3):
            folder = tmp_path / f"mean-{level}-{number}"
            record_parents(str(folder), "average", parents)
            last.append(write_untrained_model(folder, seed=10 * level + number + 20))
    calls = []
    describe = data_lineage._describe_found

    def count(role: str, fingerprint: str, *others: Any) -> Any:
        calls.append(fingerprint)
        return describe(role, fingerprint, *others)

    monkeypatch.setattr(data_lineage, "_describe_found", count)
    root = trace_lineage(last[0])
    assert len(list(root.iterate())) == 1 + 3 + 9 + 27 + 81
    assert [node.role for node in root.inputs] == ["step 0", "step 1", "step 2"]
    assert len(root.list_distinct()) == 1 + 3 * 4
    assert len(calls) == len(set(calls)) == 3 * 4


@pytest.mark.parametrize(
    ("change", "message"),
    [({"format": 2}, "format: Input should be 1"), ({"parents": []}, "parents: Tuple should have")],
)
def test_a_damaged_record_is_named(
    model: str, tmp_path: Path, change: dict[str, object], message: str
) -> None:
    record_parents(str(tmp_path), "average", {"step 1": model})
    path = tmp_path / PARENTS
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(DataError, match=rf"{PARENTS}: {message}.*; restore the file, or delete it"):
        read_parents(str(tmp_path))


def test_a_file_of_gigabytes_is_not_read(tmp_path: Path) -> None:
    with (tmp_path / PARENTS).open("wb") as file:
        file.truncate(2**33)
    with pytest.raises(DataError, match="has 8,589,934,592 bytes, more than the 4,194,304 of any"):
        read_parents(str(tmp_path))
