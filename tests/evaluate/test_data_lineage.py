import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from trainrig import manifest
from trainrig.cli import app
from trainrig.errors import DataError
from trainrig.evaluate.data_lineage import (
    LineageNode,
    format_value,
    render_card_section,
    render_lineage,
    trace_lineage,
)
from trainrig.evaluate.model_card import describe_checkpoint
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
