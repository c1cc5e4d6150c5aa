"""The stage that adds a reward model's scores to rows."""

import gzip
import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from trainrig.errors import ConfigError, DataError
from trainrig.models.decoder import Decoder, initialise
from trainrig.posttrain.model_source import open_chat_tokenizer
from trainrig.posttrain.row_run_files import AnswerScoring
from trainrig.posttrain.stages.score_stage import score_rows
from trainrig.tokens.chat.chat_messages import Message
from trainrig.train import checkpoint

PAIRS = [
    {"id": n, "prompt": f"the sea {n}", "chosen": f"is {n} grey", "rejected": "buy cats" * (n % 3)}
    for n in range(40)
]


@pytest.fixture(scope="module")
def reward(fresh, tmp_path_factory):
    """Return a run folder with an untrained reward model."""
    opened = checkpoint.open_model(fresh)
    config = opened.config.with_score_head()
    model = Decoder(config)
    initialise(model, seed=3)
    folder = str(tmp_path_factory.mktemp("reward") / "run")
    checkpoint.write_model(folder, config, opened.tokenizer, model.state_dict())
    return folder


@pytest.fixture
def scoring(reward, tmp_path):
    """Return `scoring(rows, name="a.jsonl", …)`: write the rows and return a run file."""

    def make(given_rows, file="rows.jsonl", **settings):
        path = tmp_path / file
        if file.endswith(".parquet"):
            pq.write_table(pa.Table.from_pylist(given_rows), path)
            settings["kind"] = "Parquet"
        else:
            lines = "".join(r if isinstance(r, str) else json.dumps(r) + "\n" for r in given_rows)
            data = lines.encode()
            path.write_bytes(gzip.compress(data) if file.endswith(".gz") else data)
        given = {"stage": "score", "checkpoint": reward, "paths": (str(path),), "workers": 0}
        output = {"output": str(tmp_path / "scored"), "shard_bytes": 1024}
        return AnswerScoring.model_validate(given | output | settings)

    return make


def select_rows(folder):
    lines = b"".join(path.read_bytes() for path in sorted(folder.glob("*.jsonl"))).splitlines()
    return [json.loads(line) for line in lines]


def read_score(reward, messages):
    """Return the model's score at the token before the answer's end token, computed separately."""
    chat = open_chat_tokenizer(checkpoint.resolve(reward))
    before = chat.build_renderer().encode_prompt(messages[:-1])
    said = [int(token) for token in chat.encoder.encode_batch([messages[-1].content])[0]]
    model = checkpoint.open_model(reward).build()
    with torch.no_grad():
        return float(model(torch.tensor([before + said])).logits[0, -1, 0])


@pytest.mark.slow
def test_rows_come_out_in_order_with_the_models_score_at_the_end_of_the_answer(
    scoring, reward, tmp_path
):
    made = score_rows(scoring(PAIRS, rows="pairs"))
    found = select_rows(tmp_path / "scored")
    assert [{k: v for k, v in row.items() if not k.endswith("_score")} for row in found] == PAIRS
    for row in found[1:6]:
        for side in ("chosen", "rejected"):
            if not row[side]:
                continue
            asked = (Message("user", row["prompt"]), Message("assistant", row[side]))
            expected = read_score(reward, asked)
            if row["rejected"]:
                assert row[f"{side}_score"] == pytest.approx(expected, rel=1e-4, abs=1e-6)
    empty = [row for row in found if not row["rejected"]]
    assert made.counts["quarantined"] == {"no_answer": len(empty)} and len(empty) == 14
    assert all(row["chosen_score"] is None for row in empty)
    assert made.counts["rows"] == 40 and made.counts["scored"] == 26
    higher = [row["chosen_score"] > row["rejected_score"] for row in found if row["rejected"]]
    assert made.counts["chosen_higher"] == sum(higher)
    assert score_rows(scoring(PAIRS, rows="pairs")) == made  # the result exists already
    assert len(list((tmp_path / "scored").glob("*.jsonl"))) > 2


def test_parquet_keeps_its_types_and_has_the_scores_of_json_lines(scoring, tmp_path):
    rows = [
        {"n": np.int8(n), "prompt": f"sea {n}", "completion": f"is {n}", "when": None}
        for n in range(9)
    ]
    score_rows(scoring([{**row, "n": int(row["n"])} for row in rows], "rows.jsonl.gz"))
    score_rows(scoring(rows, "rows.parquet", output=str(tmp_path / "table"), name="worth"))
    table = pq.read_table(tmp_path / "table" / "rows-00000.parquet")
    assert table.schema.names == ["n", "prompt", "completion", "when", "worth"]
    assert table.column("n").to_pylist() == list(range(9))
    by_line = [row["score"] for row in select_rows(tmp_path / "scored")]
    assert table.column("worth").to_pylist() == by_line and len(set(by_line)) == 9


def test_each_step_of_a_solution_has_a_score_that_what_follows_does_not_change(scoring, tmp_path):
    steps = ["two and two", "are four", "so five"]
    rows = [{"prompt": "sum", "completions": steps[:n]} for n in (1, 2, 3)]
    score_rows(scoring(rows, rows="steps"))
    found = [row["step_scores"] for row in select_rows(tmp_path / "scored")]
    assert [len(scored) for scored in found] == [1, 2, 3]
    assert found[0] == pytest.approx(found[2][:1], rel=1e-5)
    assert found[1] == pytest.approx(found[2][:2], rel=1e-5)
    assert len(set(found[2])) == 3


@pytest.mark.slow
@pytest.mark.ray
def test_the_bytes_are_the_same_at_any_number_of_workers(scoring, tmp_path):
    for workers in (0, 2):
        folder = tmp_path / f"by {workers}"
        score_rows(scoring(PAIRS, rows="pairs", workers=workers, output=str(folder)))
    names = sorted(p.name for p in (tmp_path / "by 0").glob("*.jsonl"))
    assert names
    for name in names:
        one, two = ((tmp_path / f"by {n}" / name).read_bytes() for n in (0, 2))
        assert one == two


def test_rows_that_cannot_be_scored_keep_their_place_and_are_reported(scoring, tmp_path):
    rows = [
        {"prompt": "sea", "completion": "grey"},
        {"prompt": "sea"},
        "no json\n",
        {"prompt": "sea", "completion": "grey " * 60},
        {"prompt": "sea", "completion": "\ud800"},
        {"prompt": "sea", "completion": "blue"},
    ]
    made = score_rows(scoring(rows))
    found = select_rows(tmp_path / "scored")
    assert [row["score"] is None for row in found] == [False, True, True, True, False]
    assert made.counts["rows"] == 6 and made.counts["scored"] == 2
    (bad,) = (tmp_path / "scored" / "quarantine").iterdir()
    told = [json.loads(line) for line in bad.read_text().splitlines()]
    assert [row["reason"] for row in told[:3]] == ["no_known_format", "not_json", "too_long"]
    assert "more than the 48" in told[2]["detail"] and told[1]["file"].endswith("rows.jsonl")


def test_invalid_settings_are_rejected_and_leave_nothing(scoring, fresh, tmp_path):
    with pytest.raises(ConfigError, match="language model, not"):
        score_rows(scoring(PAIRS, rows="pairs", checkpoint=fresh))
    with pytest.raises(DataError, match=r"column 'score' already.*`name`"):
        score_rows(scoring([{"prompt": "a", "completion": "b", "score": 1}]))
    with pytest.raises(DataError, match=r"none of 1 rows.*scored: other_kind 1"):
        score_rows(scoring([{"prompt": "a", "completion": "b"}], rows="pairs"))
    with pytest.raises(DataError, match="nowhere"):
        score_rows(scoring([], paths=(str(tmp_path / "nowhere.jsonl"),)))
    assert not (tmp_path / "scored").exists()
