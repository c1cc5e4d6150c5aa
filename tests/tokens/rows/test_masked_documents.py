import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as tries
from hypothesis import strategies as st
from support.shards import write_shard

from trainrig.errors import ConfigError, DataError
from trainrig.tokens.batches import IGNORE, TOKENS
from trainrig.tokens.rows.batch_stages import BatchSettings
from trainrig.tokens.rows.masked_documents import (
    MaskedDocument,
    MaskedDocuments,
    read_masked_documents,
)
from trainrig.tokens.rows.packing import PackingPlan, write_plans
from trainrig.tokens.rows.pretraining import PretrainBatches
from trainrig.tokens.shards.token_shards import EncodedDocument, ShardVocabulary, TokenShards

FILLER = 1
FIRST_ID = 100  # ids count up from here, so an id is in one document alone
PACKINGS: tuple[dict[str, Any], ...] = (
    {"kind": "Concatenate"},
    {"kind": "Concatenate", "shuffle_documents": True},
    {"kind": "BestFit"},
)


def write_counting(folder: str, lengths: dict[str, list[int]]) -> tuple[TokenShards, np.ndarray]:
    """Write documents of these lengths; return them, and the document of each id.

    An entry of the latter is the index in `lengths`, with all sources one after another.
    """
    documents = []
    owners = [np.full(FIRST_ID, -1)]
    for source, own in lengths.items():
        for number, length in enumerate(own):
            begin = sum(map(len, owners))
            name = f"{source}-{number}"
            ids = np.arange(begin, begin + length)
            documents.append(EncodedDocument(name, source, name, ids, 1, "f", number))
            owners.append(np.full(length, len(documents) - 1))
    vocabulary = ShardVocabulary(60_000, "tokenizer")
    # Sources alternate over two files, in the order of each source.
    documents.sort(key=lambda document: document.corpus_row)
    half = len(documents) // 2
    write_shard(folder, "0", vocabulary, documents[:half])
    write_shard(folder, "1", vocabulary, documents[half:])
    plans = PackingPlan(shuffle_documents=True, best_fit=(4,))
    write_plans(folder, plans, padding=0)
    return TokenShards.open(folder), np.concatenate(owners)


def mask(shards: TokenShards, keys: list[tuple[str, int]]) -> MaskedDocuments:
    documents = [
        MaskedDocument(source=source, number=number, id=f"{source}-{number}", url="")
        for source, number in sorted(keys)
    ]
    return MaskedDocuments(shards=shards.fingerprint, filler=FILLER, documents=tuple(documents))


@pytest.mark.slow
@tries(max_examples=60)
@given(
    web=st.lists(st.integers(1, 14), min_size=4, max_size=14),
    news=st.lists(st.integers(1, 14), min_size=4, max_size=9),
    packing=st.sampled_from(PACKINGS),
    grows=st.booleans(),
    data=st.data(),
)
def test_exactly_the_tokens_of_masked_documents_are_gone(
    tmp_path_factory, web, news, packing, grows, data
):
    folder = str(tmp_path_factory.mktemp("shards"))
    lengths = {"web": [*web, 9, 9], "news": [*news, 9, 9]}
    shards, owner_of = write_counting(folder, lengths)
    keys = [(source, n) for source, own in lengths.items() for n in range(len(own))]
    chosen = data.draw(st.sets(st.sampled_from(keys)))
    gone = np.isin(owner_of, [keys.index(key) for key in chosen])
    changes: dict[str, Any] = {}
    if grows and packing == PACKINGS[0]:  # rows of 8 read windows of 4 again
        changes = {"stages": ({"from_step": 1, "sequence_length": 8},)}
    settings = BatchSettings.model_validate(
        {"sequence_length": 4, "global_batch": 4, "micro_batch": 2, "packing": packing}
        | {"when_exhausted": "renormalise", "epochs": 99, "seed": len(web), **changes}
    )
    plain = PretrainBatches(shards, settings)
    masked = PretrainBatches(shards, settings, masked=mask(shards, list(chosen)))
    used = False
    for step in range(5):
        assert (masked.data_before(step) == plain.data_before(step)) is not used
        count = 0
        for before, after in zip(plain.at(step), masked.at(step), strict=True):
            hidden = gone[before.ids]
            ids = np.where(hidden, FILLER, before.ids)
            # BestFit's padding after a masked document becomes the filler too.
            padding = (before.ids == 0) & (after.ids == FILLER)
            assert (np.where(padding, FILLER, ids) == after.ids).all()
            asked = before.targets != IGNORE
            lost = hidden | (asked & gone[np.where(asked, before.targets, 0)])
            assert (after.targets == np.where(lost, IGNORE, before.targets)).all()
            assert (after.samples == before.samples).all()
            assert (after.pieces == before.pieces).all()
            count += int((after.targets != IGNORE).sum())
            used |= bool((hidden | lost).any())
        assert masked.denominators(step) == {TOKENS: max(1, count)}


def test_a_document_whose_first_token_is_the_last_target_of_a_row_counts_as_used(tmp_path):
    shards, _ = write_counting(str(tmp_path), {"web": [4, 5, 8]})
    settings = BatchSettings(sequence_length=4, global_batch=1, micro_batch=1)
    batches = PretrainBatches(shards, settings, masked=mask(shards, [("web", 1)]))
    rows = {batches.locate(sample).window: sample for sample in range(4)}
    (first,) = batches.at(rows[0])
    assert first.ids.tolist() == [[100, 101, 102, 103]]
    assert first.targets.tolist() == [[101, 102, 103, IGNORE]]
    assert batches.data_before(4)["masked_documents"]["documents"] == 1


def test_a_file_is_read_as_it_was_written_and_refused_if_it_is_damaged(tmp_path: Path) -> None:
    shards, _ = write_counting(str(tmp_path / "shards"), {"web": [9, 9], "news": [9]})
    written = mask(shards, [("web", 1), ("news", 0)])
    path = tmp_path / "masked.json"
    path.write_bytes(written.encode())
    assert read_masked_documents(str(path)) == written
    assert {s: n.tolist() for s, n in written.list_numbers().items()} == {"news": [0], "web": [1]}
    path.write_text('{"format": 1}')
    with pytest.raises(ConfigError, match=r"masked\.json: shards: Field required; restore"):
        read_masked_documents(str(path))
    path.write_text("{")
    with pytest.raises(ConfigError, match=r"masked\.json: the file: Invalid JSON"):
        read_masked_documents(str(path))
    with pytest.raises(ConfigError, match="does not exist; leave it out"):
        read_masked_documents(str(tmp_path / "none.json"))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"shards": "0" * 64}, "for shards other than"),
        ({"filler": 60_000}, "filler 60000, but the vocabulary"),
        ({"source": "blog"}, "document 1 of source 'blog', but .* has 0 there"),
        ({"number": 2}, "document 2 of source 'web', but .* has 2 there"),
        ({"id": "web-7"}, "document 1 of source 'web' is 'web-7', but 'web-1' in"),
    ],
)
def test_documents_of_other_shards_are_refused(tmp_path, changes, message):
    shards, _ = write_counting(str(tmp_path), {"web": [9, 9], "news": [9]})
    entries = json.loads(mask(shards, [("web", 1)]).encode())
    entries |= {k: v for k, v in changes.items() if k in entries}
    entries["documents"][0] |= {k: v for k, v in changes.items() if k not in entries}
    settings = BatchSettings(sequence_length=4, global_batch=1, micro_batch=1)
    with pytest.raises(DataError, match=message):
        PretrainBatches(shards, settings, masked=MaskedDocuments.model_validate(entries))


def test_uses_are_the_same_whatever_was_asked_before(tmp_path: Path) -> None:
    shards, _ = write_counting(str(tmp_path), {"web": [9] * 12, "news": [5] * 6})
    settings = BatchSettings(sequence_length=4, global_batch=2, micro_batch=1)
    masked = mask(shards, [("web", 3), ("web", 8), ("news", 2)])

    def describe(steps: list[int]) -> list[object]:
        batches = PretrainBatches(shards, settings, masked=masked)
        return [batches.data_before(step).get("masked_documents") for step in steps]

    steps = list(range(12))
    assert describe(steps) == describe(steps[::-1])[::-1]
    assert len({json.dumps(found) for found in describe(steps)}) > 2
    assert describe([0]) == [None]
