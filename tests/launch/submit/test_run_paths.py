"""The paths that a run file names, and their absolute forms."""

from pathlib import Path

import pytest

from trainrig import config
from trainrig.config import with_absolute_paths
from trainrig.launch.submit.run_paths import find_paths, is_there
from trainrig.verbs import VERBS

CONFIGS = Path(__file__).parents[3] / "jobs" / "configs"
RUN_FILES = [
    path
    for path in sorted(CONFIGS.glob("*/*.toml"))
    if config.parse(path.read_text(), str(path)).get("stage") in VERBS
]


def load(path: Path, *changes: str) -> config.RunFile:
    stage = config.parse(path.read_text(), str(path))["stage"]
    return config.load(VERBS[stage].load_model(), str(path), changes)


@pytest.mark.parametrize("path", RUN_FILES, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_absolute_paths_give_the_same_run(path: Path, tmp_path: Path) -> None:
    run = load(path)
    whole = with_absolute_paths(run)
    assert find_paths(whole), "every run has an output"
    assert all(p.path.startswith(("/", "s3://")) for p in find_paths(whole))
    assert [p.key for p in find_paths(whole)] == [p.key for p in find_paths(run)]
    assert config.extract_identity(whole) == config.extract_identity(run)
    text = config.to_toml(whole)
    assert config.build(type(run), config.parse(text, "copy"), "copy", text) == whole
    assert with_absolute_paths(whole) is whole


def test_inputs_and_outputs_are_distinguished() -> None:
    changes = ['training.checkpoints.copy_to="elsewhere"', 'cache.folder="blocks"']
    changes += ['continue_from="before"', 'training.parallel={kind="FSDP", reshard="layer"}']
    run = load(CONFIGS / "quickstart" / "pretrain.toml", *changes)
    found = {place.key: (place.path, place.use) for place in find_paths(run)}
    assert found == {
        "tokens": ("quickstart/tokens", "input"),
        "output": ("quickstart/model", "output"),
        "cache.folder": ("blocks", "cache"),
        "continue_from": ("before", "input"),
        "training.checkpoints.copy_to": ("elsewhere", "output"),
    }


def test_tables_and_arrays_of_places_are_seen() -> None:
    lists = 'scorers=[{kind="WordList", path={en="en.txt", ja="ja.txt"}}]'
    run = load(CONFIGS / "quickstart" / "curate.toml", lists, 'against=["old"]')
    keys = {place.key: place.path for place in find_paths(run)}
    assert keys["scorers[0].path.en"] == "en.txt"
    assert keys["against[0]"] == "old"
    assert keys["sources[1].paths[0]"] == "quickstart/pages/code-*.warc.gz"


def test_existence_of_files_folders_and_patterns(tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "empty").mkdir()
    (tmp_path / "full" / "a.jsonl").write_text("{}")
    names = {"full": True, "full/a.jsonl": True, "full/*.jsonl": True}
    names |= {"empty": False, "none": False, "full/*.warc": False}
    assert {name: is_there(str(tmp_path / name)) for name in names} == names
