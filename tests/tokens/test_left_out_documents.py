"""Documents that `tokenize` leaves out because `embed` found that they duplicate others."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainrig import manifest, storage
from trainrig.errors import DataError
from trainrig.evaluate.engine.embed_run_file import DocumentEmbedding
from trainrig.tokens.document_set import open_documents
from trainrig.tokens.left_out_documents import DUPLICATES, LeftOutDocuments
from trainrig.tokens.prepare import Tokenization, tokenize
from trainrig.tokens.shards.token_shards import TRAIN, TokenShards
from trainrig.tokens.tokenizers.tokenizer_kinds import ByteLevelBPE


@given(st.sets(st.text(max_size=4)), st.lists(st.text(max_size=4)))
def test_the_set_holds_what_a_set_of_strings_holds(ids: set[str], others: list[str]) -> None:
    left_out = LeftOutDocuments.of(ids)
    for id in [*ids, *others]:
        assert (id in left_out) == (id in ids)


def make_run(folder: Path, **changes: Any) -> Tokenization:
    """Write twelve documents and a tokenizer, and return a run file that encodes them."""
    rows = [{"text": f"page {n}", "id": f"id {n}", "kind": "ab"[n % 2]} for n in range(12)]
    path = folder / "pages.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    tokenizer = folder / "tokenizer.json"
    tokenizer.write_bytes(ByteLevelBPE(vocabulary=263).train([]))
    table = {
        "kind": "JSONL", "paths": (str(path),), "source": {"column": "kind"}, "id": "id"
    }  # fmt: skip
    given = {
        "documents": (table,), "tokenizer": str(tokenizer), "output": str(folder / "tokens"),
        "workers": 0, "held_out": 0.0,
    }  # fmt: skip
    return Tokenization.model_validate(given | changes)


def write_duplicates(folder: Path, run: Tokenization, duplicates: dict[str, str]) -> str:
    """Write the output of `embed` for the documents of `run`, without vectors."""
    output = str(folder / "vectors")
    tables = tuple(table.model_dump() for table in run.documents)
    embedding = DocumentEmbedding.model_validate(
        {"checkpoint": "model", "documents": tables, "output": output}
    )
    inputs = {**open_documents(run.documents).inputs, "checkpoint": "key"}
    stage = manifest.claim(output, embedding, inputs)
    ids = [f"id {number}" for number in range(12)]
    table = pa.table({"id": ids, "duplicate_of": [duplicates.get(id) for id in ids]})
    name = f"{DUPLICATES}/documents-00000.parquet"
    with storage.atomic_file(storage.join(output, name)) as temporary:
        pq.write_table(table, temporary)
    stage.finish({}, {name: manifest.compute_file_sum(storage.join(output, name))})
    return output


def read_ids(run: Tokenization) -> set[str]:
    shards = TokenShards.open(f"{run.output}/{TRAIN}")
    return {entry.id for source in shards.sources for entry in shards.iterate_index(source)}


def test_duplicates_are_left_out_and_counted_by_source(tmp_path: Path) -> None:
    whole = tokenize(make_run(tmp_path, output=str(tmp_path / "whole")))
    assert "left_out" not in whole.counts and whole.counts["train_documents"] == 12
    fallen = {"id 3": "id 1", "id 4": "id 1", "id 7": "id 2"}
    folder = write_duplicates(tmp_path, make_run(tmp_path), fallen)
    run = make_run(tmp_path, leave_out=folder)
    made = tokenize(run)
    assert made.counts["left_out"] == {"a": 1, "b": 2}
    assert read_ids(run) == {f"id {number}" for number in range(12)} - fallen.keys()
    assert made.inputs["leave_out"] == manifest.read_manifest(folder).content


def test_a_change_of_the_duplicates_ends_a_worker(tmp_path: Path) -> None:
    """The driver checks the folder once, and workers may start much later."""
    run = make_run(tmp_path)
    folder = write_duplicates(tmp_path, run, {"id 3": "id 1"})
    content = manifest.read_manifest(folder).content
    assert "id 3" in LeftOutDocuments.read(folder, content)
    stray = storage.join(folder, f"{DUPLICATES}/stray.parquet")
    pq.write_table(pa.table({"id": ["id 5"], "duplicate_of": ["id 1"]}), stray)
    assert "id 5" not in LeftOutDocuments.read(folder, content)
    with pytest.raises(DataError, match="vectors was changed while this run read it"):
        LeftOutDocuments.read(folder, "another")
    (table,) = (name for name in manifest.read_manifest(folder).files if DUPLICATES in name)
    Path(stray).replace(f"{folder}/{table}")
    with pytest.raises(DataError, match="its SHA-256 differs"):
        LeftOutDocuments.read(folder, content)


def test_the_number_of_shards_changes_nothing(tmp_path: Path) -> None:
    """Duplicates in several files of several sources are left out of all shards."""
    fallen = {f"id {number}": "id 0" for number in range(1, 12, 2)}
    tables = []
    for name in ("one", "two"):
        path = tmp_path / f"{name}.jsonl"
        ids = range(6) if name == "one" else range(6, 12)
        rows = [{"text": f"page {n} " + "x" * 600, "id": f"id {n}"} for n in ids]
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        tables.append({"kind": "JSONL", "paths": (str(path),), "source": name, "id": "id"})
    run = make_run(tmp_path, documents=tuple(tables), shard_bytes=1_024)
    folder = write_duplicates(tmp_path, run, fallen)
    run = run.model_copy(update={"leave_out": folder})
    made = tokenize(run)
    assert len(list(Path(run.output, TRAIN).glob("*.bin"))) != 1
    assert made.counts["left_out"] == {"one": 3, "two": 3}
    assert read_ids(run) == {f"id {number}" for number in range(0, 12, 2)}


def test_duplicates_of_other_documents_are_refused(tmp_path: Path) -> None:
    folder = write_duplicates(tmp_path, make_run(tmp_path), {})
    run = make_run(tmp_path, leave_out=folder)
    other = run.documents[0].model_copy(update={"id": None})
    with pytest.raises(DataError, match=r"made from other documents .*id: 'id' there"):
        tokenize(run.model_copy(update={"documents": (other,)}))
    (tmp_path / "pages.jsonl").write_text('{"text": "another", "id": "1", "kind": "a"}\n')
    with pytest.raises(DataError, match=r"made from other documents .*`documents` has other con"):
        tokenize(run)


def test_a_folder_without_duplicates_is_refused(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    tokenize(run)
    with pytest.raises(DataError, match="output of `tokenize`, not of `embed`"):
        tokenize(make_run(tmp_path, leave_out=run.output, output=str(tmp_path / "more")))
    output = str(tmp_path / "vectors")
    tables = tuple(table.model_dump() for table in run.documents)
    embedding = DocumentEmbedding.model_validate(
        {"checkpoint": "model", "documents": tables, "output": output}
    )
    manifest.claim(output, embedding, {"documents": "key"}).finish({}, {})
    with pytest.raises(DataError, match=r"no duplicates; add a table \[semantic_duplicates\]"):
        tokenize(make_run(tmp_path, leave_out=output, output=str(tmp_path / "more")))
