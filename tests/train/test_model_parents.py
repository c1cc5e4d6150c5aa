"""Records of the parents of models that no run made."""

import json
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file
from support.token_folders import make_encoder

from trainrig.errors import DataError
from trainrig.models.decoder import Decoder, DecoderConfig, initialise
from trainrig.models.huggingface import HubFolder
from trainrig.posttrain.huggingface.model_folders import export_checkpoint, import_checkpoint
from trainrig.train import checkpoint
from trainrig.train.checkpoint.model_parents import (
    PARENTS,
    find_exported_parents,
    read_parents,
    record_parents,
)


@pytest.fixture
def model(tmp_path: Path) -> str:
    """Write a model that no run made, and return its checkpoint."""
    encoder = make_encoder()
    sizes = DecoderConfig(
        layers=1, channels=16, heads=2, positions=32, vocabulary=encoder.vocabulary_size
    )
    decoder = Decoder(sizes)
    initialise(decoder, seed=1)
    return checkpoint.write_model(
        str(tmp_path / "model"), sizes, encoder.text, decoder.state_dict()
    )


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
