"""Embeddings of documents: equal to those of single texts, at any number of workers."""

import json
import pickle

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from support.interruptions import interrupt_after

from trainrig import manifest, storage
from trainrig.errors import ConfigError, DataError
from trainrig.evaluate.engine import embed_stage
from trainrig.evaluate.engine.embed_operator import Embed
from trainrig.evaluate.engine.embed_run_file import DocumentEmbedding
from trainrig.evaluate.engine.embed_stage import embed
from trainrig.evaluate.engine.semantic_duplicates import SemanticSearch
from trainrig.manifest import verify_files
from trainrig.models.architecture.decoder_config import DecoderConfig
from trainrig.models.architecture.encoder_configs import EncoderConfig
from trainrig.models.decoder import initialise
from trainrig.models.encoder import build_model
from trainrig.tokens.tokenizers.encode import Encoder
from trainrig.tokens.tokenizers.tokenizer_kinds import ByteLevelBPE
from trainrig.train import checkpoint

TOKENIZER = ByteLevelBPE(vocabulary=264, extra=("<|mask|>",)).train([]).decode()
SIZES = {"layers": 2, "channels": 32, "heads": 4, "vocabulary": 320, "positions": 24}
LOCAL = {"attention": {"window": {"size": 5, "pattern": ("global", "local")}}}
TEXTS = [
    *(f"the sea is grey, said {name} " * times for times, name in enumerate("abcdefghij", 1)),
    "x",
]


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Write the run folders of an untrained encoder and an untrained decoder."""
    base = tmp_path_factory.mktemp("models")
    folders = {}
    for name, config in (
        ("encoder", EncoderConfig.model_validate(SIZES | LOCAL)),
        ("decoder", DecoderConfig.model_validate(SIZES)),
        ("reward", DecoderConfig.model_validate(SIZES).with_score_head()),
    ):
        model = build_model(config)
        initialise(model, 3)
        folders[name] = str(base / name)
        checkpoint.write_model(folders[name], config, TOKENIZER, model.state_dict())
    return folders


@pytest.fixture
def embedding(models, tmp_path):
    rows = [json.dumps({"text": text, "id": str(n)}) for n, text in enumerate([*TEXTS, ""])]
    (tmp_path / "texts.jsonl").write_text("\n".join(rows) + "\n")
    table = {"kind": "JSONL", "paths": (str(tmp_path / "texts.jsonl"),), "source": "s", "id": "id"}

    def make(name="encoder", **settings):
        given = {
            "checkpoint": models[name], "documents": (table,), "workers": 0, "batch": 3,
            "output": str(tmp_path / "out"), "shard_bytes": 1024,
        }  # fmt: skip
        return DocumentEmbedding.model_validate(given | settings)

    return make


def read_vectors(folder):
    tables = [pq.read_table(path) for path in sorted(folder.glob("*.parquet"))]
    assert len(tables) > 1
    ids = [id for table in tables for id in table["id"].to_pylist()]
    rows = [vector for table in tables for vector in table["embedding"].to_pylist()]
    assert ids == [str(n) for n in range(len(TEXTS))]
    return np.array(rows)


@torch.no_grad()
def embed_one_by_one(folder, length, pooling="mean", most=None):
    """Return each text's embedding, computed piece by piece without batches and padding."""
    opened = checkpoint.open_model(folder)
    model = opened.build()
    encoder = Encoder(opened.tokenizer)
    before = list(encoder.special_tokens.prefix)
    found = []
    for text in TEXTS:
        ids = encoder.encode_batch([text])[0].tolist()
        states = []
        room = length - len(before)
        for begin in list(range(0, len(ids), room))[: 1 if pooling == "first" else most]:
            part = torch.tensor([before + ids[begin : begin + room]])
            both_ways = opened.config.bidirectional
            read = model.compute_states if both_ways else lambda x: model(x).hidden
            states.append(read(part)[0, len(before) if pooling == "mean" else 0 :])
        whole = torch.cat(states)
        found.append((whole[0] if pooling == "first" else whole.mean(0)).numpy())
    return np.array(found)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["encoder", "decoder"])
def test_a_vector_is_the_mean_of_the_last_states_of_all_pieces(name, embedding, models, tmp_path):
    made = embed(embedding(name, normalise=False))
    np.testing.assert_allclose(
        read_vectors(tmp_path / "out"), embed_one_by_one(models[name], 24), atol=1e-5
    )
    assert made.counts["documents"] == len(TEXTS) and made.counts["channels"] == 32
    assert made.counts["refused"] == {"empty_text": 1}


@pytest.mark.slow
def test_the_first_state_and_the_first_pieces(embedding, models, tmp_path):
    embed(embedding(pooling="first", normalise=False, output=str(tmp_path / "a")))
    wanted = embed_one_by_one(models["encoder"], 24, "first")
    np.testing.assert_allclose(read_vectors(tmp_path / "a"), wanted, atol=1e-5)
    embed(embedding(pieces=2, sequence_length=9, normalise=False, output=str(tmp_path / "b")))
    wanted = embed_one_by_one(models["encoder"], 9, most=2)
    np.testing.assert_allclose(read_vectors(tmp_path / "b"), wanted, atol=1e-5)
    embed(embedding(pieces=2, sequence_length=9, output=str(tmp_path / "c")))
    lengths = np.linalg.norm(wanted, axis=1, keepdims=True)
    np.testing.assert_allclose(read_vectors(tmp_path / "c"), wanted / lengths, atol=1e-5)


@pytest.mark.slow
@pytest.mark.ray
def test_the_same_bytes_at_any_number_of_workers(embedding, tmp_path):
    for workers in (0, 2):
        embed(embedding(workers=workers, output=str(tmp_path / str(workers))))
    alone = sorted((tmp_path / "0").glob("*.parquet"))
    for path in alone:
        assert (tmp_path / "2" / path.name).read_bytes() == path.read_bytes()


@pytest.mark.slow
def test_the_operator_gives_the_vectors_of_the_stage(embedding, models, tmp_path):
    embed(embedding(output=str(tmp_path / "out")))
    operator = pickle.loads(pickle.dumps(Embed(checkpoint=models["encoder"], batch=3)))
    for path in sorted((tmp_path / "out").glob("*.parquet")):
        table = pq.read_table(path)
        texts = [TEXTS[int(number)] for number in table["id"].to_pylist()]
        found = operator(pa.table({"text": texts, "id": table["id"]}))
        assert found["embedding"].combine_chunks() == table["embedding"].combine_chunks()
    assert len(operator(pa.table({"text": pa.array([], pa.string())}))) == 0


def test_models_that_cannot_embed_are_refused(embedding, models, tmp_path):
    with pytest.raises(ConfigError, match=r"sequence_length \(25\) exceeds the model's 24"):
        embed(embedding(sequence_length=25))
    with pytest.raises(ConfigError, match="is a reward model"):
        embed(embedding("reward"))
    assert not (tmp_path / "out" / "manifest.json").exists()
    with pytest.raises(DataError, match="nowhere: no such folder"):
        embed(embedding(checkpoint=str(tmp_path / "nowhere")))
    with pytest.raises(ConfigError, match="is a reward model"):
        Embed(checkpoint=models["reward"])


def list_duplicates(folder):
    """Return the kept document of each semantic duplicate."""
    tables = [pq.read_table(path) for path in sorted((folder / "duplicates").glob("*.parquet"))]
    rows = pa.concat_tables(tables).to_pylist()
    return {row["id"]: row["duplicate_of"] for row in rows if row["duplicate_of"]}


def refuse_to_embed(*_):
    raise AssertionError("a text is embedded again")


def read_bytes(folder):
    return {path.name: path.read_bytes() for path in folder.rglob("documents-*.parquet")}


@pytest.mark.slow
def test_a_finished_output_is_extended_by_semantic_duplicates(embedding, tmp_path, monkeypatch):
    out = tmp_path / "out"
    alone = embed(embedding())
    vectors = read_bytes(out)
    monkeypatch.setattr(embed_stage, "_make_work", refuse_to_embed)
    strict = embed(embedding(semantic_duplicates={"threshold": 1.0, "clusters": 2}))
    assert strict.counts["semantic_duplicates"]["dropped"] == len(list_duplicates(out))
    loose = embed(embedding(semantic_duplicates={"threshold": 0.01, "clusters": 2}))
    assert len(list_duplicates(out)) == loose.counts["semantic_duplicates"]["dropped"] > 5
    assert loose.files.keys() - alone.files.keys() == {
        f"duplicates/{name}" for name in alone.files if name.startswith("documents-")
    }
    assert embed(embedding()).content == alone.content  # the tables are deleted
    assert read_bytes(out) == vectors


@pytest.mark.slow
def test_a_search_that_was_stopped_keeps_the_vectors(embedding, tmp_path, monkeypatch):
    settings = {"threshold": 0.01, "clusters": 2}
    made = embed(embedding(output=str(tmp_path / "whole"), semantic_duplicates=settings))
    with interrupt_after(0, SemanticSearch, "run"):
        embed(embedding(semantic_duplicates=settings))
    monkeypatch.setattr(embed_stage, "_make_work", refuse_to_embed)
    assert embed(embedding(semantic_duplicates=settings)).content == made.content
    with interrupt_after(0, SemanticSearch, "run"):
        embed(embedding(semantic_duplicates=settings | {"clusters": 1}))
    assert embed(embedding(semantic_duplicates=settings)).content == made.content
    assert read_bytes(tmp_path / "out") == read_bytes(tmp_path / "whole")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("calls", "owner", "name"),
    [(0, manifest, "compute_file_sum"), (0, storage, "move_files"), (0, storage, "delete_files")],
)
def test_a_stopped_change_of_duplicates_keeps_the_finished_ones_until_the_end(
    embedding, tmp_path, calls, owner, name
):
    strict = {"semantic_duplicates": {"threshold": 1.0, "clusters": 2}}
    loose = {"semantic_duplicates": {"threshold": 0.01, "clusters": 2}}
    made = embed(embedding(**strict))
    whole = embed(embedding(output=str(tmp_path / "whole"), **loose))
    out = tmp_path / "out"
    before = read_bytes(out)
    with interrupt_after(calls, owner, name):
        embed(embedding(**loose))
    if owner is manifest:  # the replacement has not begun
        assert manifest.read_manifest(str(out)) == made
        verify_files(str(out), made)
        assert {path.name: path.read_bytes() for path in out.glob("*.parquet")} == {
            path.name: path.read_bytes() for path in (tmp_path / "whole").glob("*.parquet")
        }
    finished = embed(embedding(**loose))
    assert finished.content == whole.content != made.content
    verify_files(str(out), finished)
    assert not (out / "scratch").exists()
    assert before.keys() == read_bytes(out).keys()


@pytest.mark.slow
def test_too_many_clusters_leave_a_finished_output_as_it_was(embedding, tmp_path):
    made = embed(embedding(semantic_duplicates={"threshold": 0.9, "clusters": 2}))
    with pytest.raises(ConfigError, match=r"clusters \(99\) exceeds"):
        embed(embedding(semantic_duplicates={"threshold": 0.9, "clusters": 99}))
    assert manifest.read_manifest(str(tmp_path / "out")) == made


@pytest.mark.slow
def test_more_clusters_than_documents_are_refused_and_the_vectors_stay(embedding, tmp_path):
    with pytest.raises(ConfigError, match=r"clusters \(99\) exceeds"):
        embed(embedding(semantic_duplicates={"threshold": 0.9, "clusters": 99}))
    assert len(read_bytes(tmp_path / "out")) > 1
    made = embed(embedding(semantic_duplicates={"threshold": 0.9, "clusters": 3}))
    assert made.counts["semantic_duplicates"]["clusters"] == 3
