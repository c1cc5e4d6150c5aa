from pathlib import Path

import pytest
from support.tuning_fixtures import encoder, fresh

import trainrig
from trainrig.posttrain.huggingface import huggingface_verbs

__all__ = ["encoder", "fresh"]


def read_files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def test_an_export_is_that_of_the_command_and_its_import_generates_the_same_text(
    fresh: str, tmp_path: Path
) -> None:
    there = tmp_path / "there"
    card = huggingface_verbs.CardOptions(license_="mit")
    huggingface_verbs.export(fresh, str(there), dtype="bfloat16", card=card)
    options = {"dtype": "bfloat16", "license": "mit"}
    exported = trainrig.export_model(fresh, tmp_path / "here", **options)
    assert read_files(tmp_path / "here") == read_files(there)
    assert 'license: "mit"' in (there / "README.md").read_text()
    again = trainrig.export_model(fresh, tmp_path / "here", **options)
    assert again.output == exported.output == str(tmp_path / "here")
    imported = trainrig.import_model(exported, tmp_path / "imported")
    assert trainrig.import_model(exported, tmp_path / "imported").facts == imported.facts
    texts = {trainrig.load(m).generate("the sea", tokens=8) for m in (exported, imported)}
    assert len(texts) == 1
    assert "parameters" in imported._repr_html_()


def test_mistakes_are_one_line(fresh: str, tmp_path: Path) -> None:
    with pytest.raises(trainrig.ConfigError, match=r"^export_model: .*licence.*license"):
        trainrig.export_model(fresh, tmp_path / "out", licence="mit")
    with pytest.raises(trainrig.ConfigError, match=r"^export_model.*dtype"):
        trainrig.export_model(fresh, tmp_path / "out", dtype="float8")
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "notes.txt").write_text("mine")
    exported = trainrig.export_model(fresh, tmp_path / "out")
    with pytest.raises(trainrig.OutputTaken, match="taken"):
        trainrig.import_model(exported, tmp_path / "taken")
    with pytest.raises(trainrig.DataError, match=r"config\.json"):
        trainrig.import_model(tmp_path / "taken", tmp_path / "imported")
