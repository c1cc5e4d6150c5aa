"""The family tree through averaged, merged, exported and imported models."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.tuning_fixtures import build_tuning, encode_rows, encoder
from typer.testing import CliRunner

from trainrig.attribution.forgetting.run_children import list_children
from trainrig.attribution.learned_steps import _iterate_family
from trainrig.cli import app
from trainrig.evaluate.data_lineage import LineageNode, find_run_folder, trace_lineage
from trainrig.evaluate.lineage.family_page import arrange_family, describe_stage
from trainrig.evaluate.lineage.provenance_record import build_provenance
from trainrig.evaluate.model_card import describe_checkpoint
from trainrig.models.huggingface import HubFolder
from trainrig.posttrain.huggingface.model_folders import export_checkpoint, import_checkpoint
from trainrig.posttrain.huggingface.peft_adapters import export_adapter, import_adapter
from trainrig.posttrain.tuning.fine_tuning import posttrain
from trainrig.train import checkpoint
from trainrig.train.pretrain import pretrain
from trainrig.train.run_file.run_files import Pretraining

__all__ = ["encode_rows", "encoder"]

CHATS = [{"prompt": f"is {n}", "completion": "yes é"} for n in range(12)]


def call(*arguments: str) -> None:
    done = CliRunner().invoke(app, list(arguments))
    assert done.exit_code == 0, done.output


def name_folders(root: LineageNode) -> list[str | None]:
    """Return the name of the folder of each node of a tree, each before its inputs."""
    return [
        node.folder and find_run_folder(node.folder).rpartition("/")[2] for node in root.iterate()
    ]


@pytest.fixture
def runs(
    make_run: Callable[..., Pretraining],
    tokens: str,
    encode_rows: Callable[..., Any],
    without_ray: None,
    tmp_path: Path,
) -> Path:
    """Pretrain, average the last two checkpoints, tune an adapter of that; return the folder."""
    folder = tmp_path / "runs"
    shutil.copytree(Path(tokens).parent, folder, ignore=shutil.ignore_patterns("runs"))
    training = {
        "steps": 4,
        "checkpoints": {"every": 2, "keep": 9},
        "averaging": {"horizons": (2,)},
    }
    base = str(folder / "base")
    pretrain(make_run(base, tokens=str(folder / "tokens"), training=training))
    call("average", base, str(folder / "mean"), "--last", "2")
    encode_rows(CHATS, "chats", held_out=0, sequence_length=47)
    more = {"workers": 1, "lora": {"rank": 2}}
    mean, chats = str(folder / "mean"), str(tmp_path / "chats")
    posttrain(build_tuning(mean, chats, folder / "adapted", None, {"steps": 2}, **more))
    return folder


@pytest.mark.slow
def test_the_tree_goes_on_through_averages_and_merged_adapters(runs: Path) -> None:
    base, mean, adapted = (str(runs / name) for name in ("base", "mean", "adapted"))
    export_checkpoint(adapted, str(runs / "hub"), HubFolder())
    merged = str(runs / "merged")
    import_checkpoint(str(runs / "hub"), merged)

    root = trace_lineage(merged, verify=True)
    assert root.stage == "import" and describe_stage(root) == "imported model"
    names = name_folders(root)
    assert names[:3] == ["merged", "adapted", "mean"]
    averaged = next(node for node in root.iterate() if node.stage == "average")
    assert [(node.role, node.stage) for node in averaged.inputs] == [
        ("step 2", "pretrain"),
        ("step 4", "pretrain"),
    ]
    assert {"base", "tokens", "curated"} <= set(names)
    # The only input in no folder is the one that curation read.
    lost = {node.role for node in root.iterate() if node.folder is None}
    assert not lost & {"checkpoint", "step 2", "step 4", "tokens", "documents"}
    boxes = {box.node.fingerprint: box for box in arrange_family(root).boxes}
    assert len(boxes) == len(root.list_distinct())
    assert boxes[averaged.fingerprint].kind == "model"
    assert boxes[averaged.fingerprint].lines[1] == "averaged weights"
    made = build_provenance(root)["activity"][f"trainrig:run-{averaged.fingerprint}"]
    assert made["prov:label"] == "average"
    card = describe_checkpoint(merged)
    assert card.startswith("## Data") and "| step 2 | pretrain |" in card

    # The same tree after all runs were moved together, without the paths of then.
    moved = runs.rename(runs.parent / "moved")
    tokens_of = {node.fingerprint for node in root.iterate() if node.folder}
    again = trace_lineage(str(moved / "merged"))
    assert {node.fingerprint for node in again.iterate() if node.folder} == tokens_of
    names = [
        (folder.rpartition("/")[2], step)
        for folder, step in _iterate_family(checkpoint.resolve(str(moved / "merged")))
    ]
    assert names == [("adapted", 2), ("base", 4)]
    moved.rename(runs)

    # Steps are traced, and children found, through models without a run.
    family = list(_iterate_family(checkpoint.resolve(merged)))
    assert family == [(adapted, 2), (base, 4)]
    children = {child.folder: child for child in list_children(base)}
    assert list(children) == [mean, adapted, str(runs / "hub"), merged]
    assert children[mean].verb == "average" and children[mean].step == 4
    assert children[mean].left_to_user == (
        "made again by hand, by `trainrig average` of the new models"
    )
    assert children[adapted].left_to_user == f"made again by hand, after {mean}"
    assert children[str(runs / "hub")].parent == children[merged].parent == adapted


@pytest.mark.slow
def test_an_average_over_updates_and_an_imported_adapter_name_their_parents(runs: Path) -> None:
    call("average", str(runs / "base"), str(runs / "horizon"), "--horizon", "2")
    root = trace_lineage(str(runs / "horizon"))
    assert [(node.role, node.folder) for node in root.inputs] == [
        ("checkpoint", checkpoint.resolve(str(runs / "base")))
    ]
    export_adapter(str(runs / "adapted"), str(runs / "peft"))
    import_adapter(str(runs / "peft"), str(runs / "mean"), str(runs / "back"))
    found = {node.role: node for node in trace_lineage(str(runs / "back")).inputs}
    assert {role: find_run_folder(str(node.folder)) for role, node in found.items()} == {
        "base": str(runs / "mean"),
        "checkpoint": str(runs / "adapted"),
    }
