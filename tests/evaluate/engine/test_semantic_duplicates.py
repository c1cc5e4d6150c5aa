"""Semantic duplicates against a brute-force twin, at any order of files, workers and kills."""

import math

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.interruptions import interrupt_after

from trainrig import manifest, storage
from trainrig.corpus.dedup.exact_vectors import compute_cosines, round_finely
from trainrig.errors import ConfigError, DataError
from trainrig.evaluate.engine import semantic_duplicates
from trainrig.evaluate.engine.embed_run_file import SemanticDuplicates
from trainrig.evaluate.engine.semantic_duplicates import SCHEMA, SemanticSearch
from trainrig.ray_runtime.ray_session import join

CHANNELS = 8


def write_vectors(folder, documents, splits=3, seed=0):
    """Write (id, source, vector) documents as `embed` does, dealt to splits in another order."""
    order = np.random.default_rng(seed).permutation(len(documents))
    folder.mkdir(parents=True, exist_ok=True)
    names = []
    for number, places in enumerate(np.array_split(order, splits)):
        rows = [documents[place] for place in places]
        flat = np.concatenate([np.zeros(0, np.float32), *(row[2] for row in rows)])
        vectors = pa.FixedSizeListArray.from_arrays(
            pa.array(flat.astype(np.float32)), len(documents[0][2])
        )
        columns = {"id": [row[0] for row in rows], "source": [row[1] for row in rows]}
        columns = {name: pa.array(column, pa.string()) for name, column in columns.items()}
        names.append(f"documents-{number:05d}")
        pq.write_table(pa.table({**columns, "embedding": vectors}), f"{folder}/{names[-1]}.parquet")
    return tuple(names)


def search(folder, names, workers=0, **given):
    chosen = SemanticDuplicates.model_validate({"threshold": 0.9} | given)
    return SemanticSearch(chosen, str(folder), str(folder), names, f"{folder}/scratch", workers)


def read_rows(folder):
    """Return the rows of all tables, keyed by id."""
    tables = [pq.read_table(path) for path in sorted((folder / "duplicates").glob("*.parquet"))]
    assert all(table.schema == SCHEMA for table in tables)
    return {row["id"]: row for row in pa.concat_tables(tables).to_pylist()}


def make_documents(seed, count=60, directions=6, noise=0.3):
    """Make documents around few directions; a third repeat another with little noise."""
    random = np.random.default_rng(seed)
    centres = random.normal(size=(directions, CHANNELS))
    vectors = centres[random.integers(0, directions, count)]
    vectors = vectors + noise * random.normal(size=(count, CHANNELS))
    vectors[2 * count // 3 :] = vectors[: count - 2 * count // 3]
    vectors += 0.01 * random.normal(size=(count, CHANNELS))
    return [
        (f"{number:03d}é", "wiki" if number % 3 else "web", vector.astype(np.float32))
        for number, vector in enumerate(vectors)
    ]


def decide_by_brute_force(documents, rows, threshold, products):
    """Return the kept document of each duplicate, given the clusters in `rows`."""
    found = {}
    vectors = {id: round_finely(vector[None, :]) for id, _, vector in documents}
    kept = []
    for id in sorted(vectors, key=lambda id: (products[id], id.encode())):
        near = [
            (compute_cosines(vectors[id], vectors[other])[0, 0], other)
            for other in kept
            if rows[other]["cluster"] == rows[id]["cluster"]
        ]
        best = max((cosine for cosine, _ in near), default=-1)
        if best >= threshold:
            found[id] = (next(other for cosine, other in near if cosine == best), best)
        else:
            kept.append(id)
    return found


@settings(max_examples=15, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    threshold=st.sampled_from([0.7, 0.95, 0.999]),
    clusters=st.integers(1, 7),
    keep=st.sampled_from(["farthest", "nearest"]),
)
def test_duplicates_are_those_of_brute_force(tmp_path_factory, seed, threshold, clusters, keep):
    folder = tmp_path_factory.mktemp("vectors")
    documents = make_documents(seed)
    names = write_vectors(folder, documents, seed=seed)
    found = search(folder, names, threshold=threshold, clusters=clusters, keep=keep)
    counts, files = found.run()
    rows = read_rows(folder)
    assert set(rows) == {id for id, _, _ in documents}
    centroids = np.load(found.build_path("centroids.npz"))["centroids"].astype(np.int64)
    products = {}
    for id, source, vector in documents:
        coarse = np.rint(vector.astype(float) * (4_000 / np.linalg.norm(vector.astype(float))))
        of_all = coarse.astype(np.int64) @ centroids.T
        assert rows[id]["cluster"] == of_all.argmax() and rows[id]["source"] == source
        products[id] = of_all.max() if keep == "farthest" else -of_all.max()
    sizes = np.bincount([row["cluster"] for row in rows.values()], minlength=clusters)
    assert all(row["cluster_size"] == sizes[row["cluster"]] for row in rows.values())
    wanted = decide_by_brute_force(documents, rows, threshold, products)
    fallen = {id: row for id, row in rows.items() if row["duplicate_of"] is not None}
    assert {id: (row["duplicate_of"], row["similarity"]) for id, row in fallen.items()} == wanted
    assert all(row["similarity"] is None for id, row in rows.items() if id not in fallen)
    assert counts["dropped"] == len(wanted) and counts["clusters"] == clusters
    assert sum(counts["dropped_of"].values()) == len(wanted)
    assert sorted(files) == [f"duplicates/{name}.parquet" for name in names]


@pytest.mark.parametrize("keep", ["farthest", "nearest", "hash"])
def test_order_and_number_of_files_change_no_row(tmp_path, keep, monkeypatch):
    monkeypatch.setattr(semantic_duplicates, "RANGE_BYTES", 500)  # several ranges of clusters
    # Of equal vectors, only the ids decide.
    documents = make_documents(3)
    documents += [(f"copy {id}", source, vector) for id, source, vector in documents[:20]]
    expected = None
    for splits, seed in ((1, 1), (3, 2), (7, 3)):
        folder = tmp_path / str(splits)
        names = write_vectors(folder, documents, splits, seed)
        search(folder, names, keep=keep, clusters=5).run()
        rows = read_rows(folder)
        expected = expected or rows
        assert rows == expected
    assert sum(row["duplicate_of"] is not None for row in expected.values()) >= 20


@pytest.mark.slow
@pytest.mark.ray
def test_the_number_of_workers_changes_no_byte(tmp_path, monkeypatch):
    monkeypatch.setattr(semantic_duplicates, "RANGE_BYTES", 500)
    documents = make_documents(4)
    names = write_vectors(tmp_path, documents)
    found = {}
    for workers in (0, 2):
        if workers:
            join()
            storage.delete_folder(str(tmp_path / "scratch"))
        search(tmp_path, names, workers).run()
        found[workers] = [
            path.read_bytes() for path in sorted((tmp_path / "duplicates").glob("*.parquet"))
        ]
    assert found[0] == found[2]


@pytest.mark.parametrize("calls", range(1, 11, 2))
def test_a_stopped_search_continues(tmp_path, calls, monkeypatch):
    """The search stops between two of its files, and the same search finishes with equal rows."""
    monkeypatch.setattr(semantic_duplicates, "RANGE_BYTES", 500)
    names = write_vectors(tmp_path / "whole", make_documents(5))
    search(tmp_path / "whole", names).run()
    write_vectors(tmp_path / "stopped", make_documents(5))
    with interrupt_after(calls, storage, "atomic_file"):
        search(tmp_path / "stopped", names).run()
    assert not read_done(tmp_path / "stopped")
    _, files = search(tmp_path / "stopped", names).run()
    assert read_rows(tmp_path / "stopped") == read_rows(tmp_path / "whole")
    assert len(files) == 3


def test_a_stopped_search_continues_with_other_settings(tmp_path, monkeypatch):
    monkeypatch.setattr(semantic_duplicates, "RANGE_BYTES", 500)
    names = write_vectors(tmp_path / "whole", make_documents(5))
    search(tmp_path / "whole", names, threshold=0.999).run()
    write_vectors(tmp_path / "stopped", make_documents(5))
    with interrupt_after(9, storage, "atomic_file"):
        search(tmp_path / "stopped", names, threshold=0.5).run()
    search(tmp_path / "stopped", names, threshold=0.999).run()
    assert read_rows(tmp_path / "stopped") == read_rows(tmp_path / "whole")


def test_a_table_of_other_settings_is_written_again(tmp_path, monkeypatch):
    """The search is stopped, then one with other settings, then the first one continues."""
    names = write_vectors(tmp_path / "whole", make_documents(5))
    search(tmp_path / "whole", names, threshold=0.5).run()
    write_vectors(tmp_path / "stopped", make_documents(5))
    for threshold in (0.5, 0.999):
        # Two of three tables are written, and a third one has no record.
        with interrupt_after(2, manifest, "compute_file_sum"):
            search(tmp_path / "stopped", names, threshold=threshold).run()
    _, files = search(tmp_path / "stopped", names, threshold=0.5).run()
    assert read_rows(tmp_path / "stopped") == read_rows(tmp_path / "whole")
    assert all(manifest.compute_file_sum(f"{tmp_path}/stopped/{n}") == files[n] for n in files)


def test_the_search_among_repeated_ids_is_that_of_a_set():
    random = np.random.default_rng(1)
    words = random.integers(0, 4, (40, 2)).astype(np.uint64)  # many share a first word
    among = np.unique(words[:9], axis=0)
    wanted = [tuple(word) in set(map(tuple, among)) for word in words]
    assert semantic_duplicates._are_among(words, among).tolist() == wanted
    assert not semantic_duplicates._are_among(words, among[:0]).any()


def test_a_long_id_gives_more_ranges(tmp_path, monkeypatch):
    """All rows of a range are held, and have the bytes of the longest id."""
    monkeypatch.setattr(semantic_duplicates, "RANGE_BYTES", 6_000)
    documents = make_documents(5)
    counts = []
    for name, id in (("short", "x"), ("long", "x" * 900)):
        names = write_vectors(tmp_path / name, [*documents, (id, "web", documents[0][2])])
        found = search(tmp_path / name, names)
        found.run()
        counts.append(len(list((tmp_path / name / "scratch").rglob("compare/*.run"))))
    assert counts[0] < counts[1]


def read_done(folder):
    return len(list((folder / "duplicates").glob("*.parquet"))) == 3


def test_documents_that_share_an_id_are_left_alone(tmp_path, caplog):
    documents = [*make_documents(6, count=30)[:20], *make_documents(6, count=30)[:5]]
    names = write_vectors(tmp_path, documents)
    counts, _ = search(tmp_path, names, threshold=0.2, clusters=1).run()
    tables = pa.concat_tables([pq.read_table(f"{tmp_path}/duplicates/{n}.parquet") for n in names])
    repeated = {id for id, _, _ in documents[20:]}
    rows = tables.to_pylist()
    assert counts["repeated_ids"] == 10
    assert all(row["duplicate_of"] is None for row in rows if row["id"] in repeated)
    assert not repeated & {row["duplicate_of"] for row in rows}
    assert counts["dropped"] > 0
    assert all(row["cluster_size"] == 25 for row in rows)
    assert "10 documents have the id of another one" in caplog.text


def test_the_default_is_the_square_root_of_the_documents():
    for documents in (1, 2, 99, 100, 10_001):
        chosen = SemanticDuplicates(threshold=0.9).choose_clusters(documents)
        assert chosen == math.isqrt(documents)


def test_bad_inputs_are_refused_in_one_line(tmp_path):
    names = write_vectors(tmp_path / "few", make_documents(7, count=9))
    with pytest.raises(ConfigError, match=r"clusters \(10\) exceeds the number of .* \(9\)"):
        search(tmp_path / "few", names, clusters=10).run()
    (one, *_) = make_documents(7)
    names = write_vectors(tmp_path / "same", [one, one])
    with pytest.raises(ConfigError, match="no document has a unique id; name a column"):
        search(tmp_path / "same", names).run()
    broken = make_documents(8)
    broken[17][2][3] = np.nan
    names = write_vectors(tmp_path / "broken", broken)
    with pytest.raises(DataError, match="the vector of document 017é is not finite"):
        search(tmp_path / "broken", names).run()
    for threshold in (0, 1.01, "much"):
        with pytest.raises(ValueError, match="threshold"):
            SemanticDuplicates.model_validate({"threshold": threshold})


def test_a_split_without_documents_has_an_empty_table(tmp_path):
    names = write_vectors(tmp_path, make_documents(9)[:4], splits=6)
    search(tmp_path, names).run()
    assert len(read_rows(tmp_path)) == 4
    assert len(list((tmp_path / "duplicates").glob("*.parquet"))) == 6
