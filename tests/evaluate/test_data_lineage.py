import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from support.tiny_models import write_untrained_model
from typer.testing import CliRunner

from trainrig import manifest, storage
from trainrig.cli import app
from trainrig.errors import DataError
from trainrig.evaluate import data_lineage
from trainrig.evaluate.data_lineage import (
    LineageNode,
    format_value,
    render_card_section,
    render_lineage,
    trace_lineage,
)
from trainrig.evaluate.model_card import describe_checkpoint
from trainrig.train import checkpoint
from trainrig.train.pretrain import pretrain
from trainrig.train.run_file.run_files import Pretraining


@pytest.fixture
def model(
    make_run: Callable[..., Pretraining], tokens: str, without_ray: None, tmp_path: Path
) -> str:
    """Train a run of 4 updates on tokens beside it, and return its folder."""
    shutil.copytree(Path(tokens).parent, tmp_path / "data")
    run = make_run(
        tmp_path / "data/model",
        tokens=str(tmp_path / "data/tokens"),
        training={"steps": 4, "checkpoints": {"every": 4}},
    )
    pretrain(run)
    return str(tmp_path / "data/model")


def find_nodes(root: LineageNode, role: str) -> list[LineageNode]:
    return [node for node in root.iterate() if node.role == role]


@pytest.mark.slow
def test_a_checkpoint_is_traced_to_its_documents(model: str, tmp_path: Path) -> None:
    data = tmp_path / "data"
    root = trace_lineage(model, verify=True)
    assert (root.stage, root.counts["steps"]) == ("pretrain", 4)
    (tokens,) = find_nodes(root, "tokens")
    assert tokens.folder == str(data / "tokens")
    assert tokens.fingerprint == manifest.read_manifest(str(data / "tokens")).content
    of_tokens, of_tokenizer = find_nodes(root, "documents")
    assert of_tokens == of_tokenizer and of_tokens.folder == str(data / "curated")
    assert of_tokens.settings["filters"]["made-up"]
    assert all(node.verified for node in root.iterate())

    lines = list(render_lineage(root))
    assert any(line.endswith("as above") for line in lines)
    assert lines[-1].startswith("4 of 4 outputs and inputs were found; all files")
    card = describe_checkpoint(model)
    assert "## Training" in card
    assert "\n".join(render_card_section(root)) in card

    (data / "tokens").rename(tmp_path / "elsewhere")
    (lost,) = find_nodes(trace_lineage(model), "tokens")
    assert (lost.folder, lost.fingerprint, lost.inputs) == (None, tokens.fingerprint, ())
    done = CliRunner().invoke(
        app, ["lineage", model, "--search", str(tmp_path / "elsewhere"), "--json"]
    )
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)["inputs"][0]
    assert (found["role"], found["folder"]) == ("tokens", str(tmp_path / "elsewhere"))

    (index,) = (tmp_path / "elsewhere/train").glob("*00.ends")
    damaged = bytearray(index.read_bytes())
    damaged[0] ^= 1
    index.write_bytes(damaged)
    with pytest.raises(DataError, match=r"00\.ends: damaged: its SHA-256 differs"):
        trace_lineage(model, [str(tmp_path / "elsewhere")], verify=True)


def test_values_are_shown_in_words() -> None:
    counts = {f"rule{number}": number for number in range(9)}
    assert (
        format_value(counts) == "rule8 8, rule7 7, rule6 6, rule5 5, rule4 4, rule3 3, and 3 more"
    )
    assert [
        format_value(value) for value in (1_000, None, {}, [], {"kind": "DPO", "beta": 0.1})
    ] == [*("1,000", "none", "none", "none", "DPO")]
    assert format_value({"web": ["Length", "Words"]}) == "web: Length, Words"


def test_a_path_without_a_checkpoint_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="nowhere"):
        trace_lineage(str(tmp_path / "nowhere"))


def flip_byte(path: Path) -> None:
    damaged = bytearray(path.read_bytes())
    damaged[len(damaged) // 2] ^= 1
    path.write_bytes(damaged)


def find_weights(path: str) -> Path:
    return max(
        (file for file in Path(path).rglob("*") if file.is_file()),
        key=lambda file: file.stat().st_size,
    )


def test_damaged_weights_of_a_model_without_a_run_are_not_verified(tmp_path: Path) -> None:
    base = write_untrained_model(tmp_path / "base")
    assert trace_lineage(base, verify=True).verified
    resolved = checkpoint.resolve(base)
    key = checkpoint.compute_content_key(resolved)
    flip_byte(find_weights(base))
    catalogue = data_lineage._Catalogue([str(tmp_path)])
    with pytest.raises(DataError, match="damaged"):
        data_lineage._describe_input("base", key, catalogue, True, frozenset())
    # without --verify, its weights are not read
    found = data_lineage._describe_input("base", key, catalogue, False, frozenset())
    assert (found.fingerprint, found.verified) == (key, False)


@pytest.mark.slow
def test_a_damaged_input_does_not_stop_the_card_of_a_checkpoint(model: str, tmp_path: Path) -> None:
    resolved = checkpoint.resolve(model)
    key = checkpoint.compute_content_key(resolved)
    catalogue = data_lineage._Catalogue([str(tmp_path / "data")])
    flip_byte(find_weights(resolved))
    found = data_lineage._describe_input("checkpoint", key, catalogue, False, frozenset())
    assert (found.folder, found.stage) == (resolved, "pretrain")
    with pytest.raises(DataError, match="damaged"):
        data_lineage._describe_input("checkpoint", key, catalogue, True, frozenset())
    flip_byte(find_weights(resolved))  # whole again

    run_file = Path(model, "run.toml")
    run_file.write_bytes(b"[" + run_file.read_bytes())
    lost = data_lineage._describe_input("checkpoint", key, catalogue, False, frozenset())
    assert (lost.folder, lost.fingerprint) == (None, key)
    with pytest.raises(DataError, match="not TOML"):
        data_lineage._describe_input("checkpoint", key, catalogue, True, frozenset())
    card = describe_checkpoint(model)
    assert "## Data" in card and "not found" in card


def test_folders_of_other_users_are_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = write_untrained_model(tmp_path / "base")
    (tmp_path / "private").mkdir()
    list_folders = storage.list_folders
    read = storage.read

    def refuse(path: str) -> None:
        if "private" in path:  # as the system does for a folder of mode 0700 of another user
            raise PermissionError(13, "Permission denied", path)

    def list_own(folder: str) -> list[str]:
        refuse(folder)
        return list_folders(folder)

    def read_own(path: str) -> bytes:
        refuse(path)
        return read(path)

    monkeypatch.setattr(storage, "list_folders", list_own)
    monkeypatch.setattr(storage, "read", read_own)
    assert trace_lineage(base, [str(tmp_path / "private")]).folder == checkpoint.resolve(base)
