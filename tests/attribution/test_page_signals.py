import shutil
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from trainrig import manifest
from trainrig.attribution.page_signals import CorpusRow, read_signals
from trainrig.errors import DataError


def list_rows(corpus: str) -> list[CorpusRow]:
    """Return some documents of each file of a corpus, with their ids there."""
    rows = []
    for path in sorted(Path(corpus, "kept").iterdir()):
        ids = pq.read_table(path, columns=["id"])["id"].to_pylist()
        rows += [CorpusRow(path.name, row, ids[row]) for row in (0, len(ids) // 2)]
    return rows


def curate_again(corpus: str, folder: Path) -> str:
    """Write a corpus with the same files, whose documents are in another order."""
    shutil.copytree(corpus, folder)
    made = manifest.read_manifest(str(folder))
    files = dict(made.files)
    for path in sorted((folder / "kept").iterdir()):
        table = pq.read_table(path)
        pq.write_table(table.take(list(reversed(range(len(table))))), path)
        files[f"kept/{path.name}"] = manifest.compute_file_sum(str(path))
    changed = made.model_copy(update={"files": files})
    (folder / manifest.MANIFEST).write_text(changed.model_dump_json())
    return str(folder)


def test_signals_are_those_of_the_named_documents(tokens: str) -> None:
    corpus = str(Path(tokens).parent / "curated")
    rows = list_rows(corpus)
    elsewhere = CorpusRow("conversations-00000.jsonl", 3, "another")
    *found, other = read_signals(corpus, [*rows, elsewhere])
    assert other == {}
    for row, signals in zip(rows, found, strict=True):
        table = pq.read_table(Path(corpus, "kept", row.file)).slice(row.row, 1).to_pylist()[0]
        assert "id" not in signals and "text" not in signals
        assert all(table[name] == value for name, value in signals.items())


def test_a_corpus_with_other_documents_in_its_rows_is_refused(tokens: str, tmp_path: Path) -> None:
    corpus = str(Path(tokens).parent / "curated")
    rows = list_rows(corpus)
    with pytest.raises(DataError, match=r"is not the document .* that the tokens name"):
        read_signals(curate_again(corpus, tmp_path / "again"), rows)
    with pytest.raises(DataError, match=r"is not the document .* that the tokens name"):
        read_signals(corpus, [rows[0]._replace(row=10_000)])
