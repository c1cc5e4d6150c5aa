"""The stage `conversations`."""

import gzip
import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from trainrig import manifest, storage
from trainrig.errors import ConfigError, DataError, OutputTaken
from trainrig.posttrain.conversations import encode_conversations
from trainrig.posttrain.row_run_files import ConversationEncoding
from trainrig.runs.step_trace import trace
from trainrig.tokens.shards.token_shards import TokenShards
from trainrig.tokens.tokenizers.encode import Encoder

GOOD = {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "is it"}]}


def read_quarantined(folder):
    found = []
    for path in storage.list_files(f"{folder}/quarantine"):
        found += [json.loads(line) for line in Path(path).read_text().splitlines()]
    return found


BAD_ROWS = {
    "not_json": "{",
    "not_an_object": "[1]",
    "no_known_format": {"text": "a"},
    "no_answer": {"messages": [{"role": "user", "content": "a"}]},
    "unknown_role": {"messages": [{"role": "bot", "content": "a"}]},
    "not_text": {"messages": [{"role": "user", "content": 1}]},
    "not_messages": {"messages": "hi"},
    "bad_weight": {"messages": [{"role": "assistant", "content": "a", "weight": 0.001}]},
    "not_unicode": '{"prompt": "\\ud800", "completion": "b"}',
    "other_kind": {"prompt": "a", "chosen": "b", "rejected": "c"},
    "too_long": {"prompt": "is " * 99, "completion": "b"},
    "bad_tools": {**GOOD, "tools": {"a": 1}},
    "bad_tool_calls": {"messages": [{"role": "assistant", "content": "", "tool_calls": [{}]}]},
}


def test_bad_rows_are_put_aside_with_place_and_reason_and_counted(encode_rows, tmp_path, caplog):
    made = encode_rows([GOOD, *BAD_ROWS.values(), GOOD])
    assert made.counts["train_conversations"] == 2
    assert made.counts["rows"] == 2 + len(BAD_ROWS)
    assert made.counts["quarantined"] == dict.fromkeys(BAD_ROWS, 1)
    found = read_quarantined(tmp_path / "encoded")
    assert [row["reason"] for row in found] == list(BAD_ROWS)
    data = (tmp_path / "encoded.jsonl").read_bytes()
    for row, given in zip(found, BAD_ROWS.values(), strict=True):
        assert row["file"] == "encoded.jsonl"
        line = data[row["place"] :].splitlines()[0].decode()
        assert line == (given if isinstance(given, str) else json.dumps(given))
    assert "13 of 15 rows" in caplog.text and caplog.text.count("\n") == 1
    manifest.verify_files(str(tmp_path / "encoded"), made)


@pytest.mark.parametrize(
    ("rows", "row", "reason"),
    [
        ("pairs", {"prompt": "a", "chosen": "b", "rejected": "b"}, "chosen_is_rejected"),
        ("pairs", {"chosen": "b", "rejected": "c"}, "no_prompt"),
        ("pairs", {"prompt": "a", "chosen": "b", "rejected": ""}, "no_answer"),
        ("labelled", {"prompt": "a", "completion": "b", "label": "good"}, "bad_label"),
        ("labelled", GOOD, "other_kind"),
    ],
)
def test_a_stage_that_keeps_no_row_fails_and_names_the_first(encode_rows, rows, row, reason):
    said = (
        f"none of 1 rows can be trained on: {reason} 1; the first, encoded.jsonl, byte 0: {reason}"
    )
    with pytest.raises(DataError, match=said):
        encode_rows([row], rows=rows)


@pytest.mark.parametrize(
    "row",
    [
        GOOD,
        {"prompt": "a", "completion": "is it"},
        {"prompt": GOOD["messages"][:1], "completion": GOOD["messages"][1:]},
        {"instruction": "a", "input": "", "output": "is it"},
        {"conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "is it"}]},
    ],
    ids=["messages", "texts", "turns", "alpaca", "sharegpt"],
)
def test_all_formats_give_the_same_conversation(encode_rows, encoder, tmp_path, row):
    encode_rows([row])
    shards = TokenShards.open(str(tmp_path / "encoded" / "train"))
    text = encoder.decode(shards.read_window("chats", 0, shards.tokens("chats")).tolist())
    assert text == "<|end_of_text|><|user|>a<|end_of_turn|><|assistant|>is it<|end_of_turn|>"


@pytest.mark.parametrize(
    "row",
    [
        {"prompt": "a", "chosen": "is it", "rejected": "now"},
        {
            "chosen": "\n\nHuman: a\n\nAssistant: is it",
            "rejected": "\n\nHuman: a\n\nAssistant: now",
        },
        {
            "chosen": GOOD["messages"],
            "rejected": [GOOD["messages"][0], {"role": "assistant", "content": "now"}],
        },
        {"prompt": "a", "chosen": "is it", "rejected": [{"role": "assistant", "content": "now"}]},
    ],
    ids=["texts", "dialogues", "implicit", "mixed"],
)
def test_all_forms_of_pairs_give_the_same_answers(encode_rows, encoder, tmp_path, row):
    encode_rows([row], rows="pairs")
    shards = TokenShards.open(str(tmp_path / "encoded" / "train"))
    text = encoder.decode(shards.read_window("chats", 0, shards.tokens("chats")).tolist())
    asked = "<|end_of_text|><|user|>a<|end_of_turn|><|assistant|>"
    assert text == f"{asked}is it<|end_of_turn|>{asked}now<|end_of_turn|>"


TRIMMING = (
    "{% for m in messages %}{{ '<|' + m.role + '|>' + m.content | trim + '<|end_of_turn|>' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)


def test_pairs_that_become_equal_are_dropped_and_counted_by_a_reason_of_their_own(
    encode_rows, tmp_path
):
    """A template that trims omits text of the row, and turns of a prompt are dropped to fit."""
    template = tmp_path / "trimming.jinja"
    template.write_text(TRIMMING)
    good = {"prompt": "a", "chosen": "b", "rejected": "c"}
    rows = [good, {"prompt": "a", "chosen": "b", "rejected": "b \n"}]
    made = encode_rows(rows, rows="pairs", template=str(template))
    assert (made.counts["train_pairs"], made.counts["quarantined"]) == (
        1,
        {"pair_becomes_equal": 1},
    )
    assert "their 6 tokens are equal" in read_quarantined(tmp_path / "encoded")[0]["detail"]
    asks = [{"role": "user", "content": text} for text in ("old", "p" * 40, "q" * 40, "a")]
    says = {"role": "assistant", "content": "b"}
    row = {
        "prompt": asks[:1],
        "chosen": [asks[1], asks[3], says],
        "rejected": [asks[2], asks[3], says],
    }
    settings = {"rows": "pairs", "too_long": "drop_turns"}
    assert encode_rows([row], output="whole", **settings, sequence_length=200)
    made = encode_rows([row, good], output="cut", **settings, sequence_length=40)
    assert (made.counts["train_pairs"], made.counts["quarantined"]) == (
        1,
        {"pair_becomes_equal": 1},
    )
    assert "2 turns were left out" in read_quarantined(tmp_path / "cut")[0]["detail"]


def test_fields_of_other_names_are_mapped(encode_rows, tmp_path):
    row = {"q": {"text": "a"}, "answers": ["no", "is it"]}
    columns = {"prompt": "q.text", "completion": "answers.1"}
    made = encode_rows([row], source={"columns": columns})
    assert made.counts["train_conversations"] == 1


def test_packed_files_and_parquet_have_the_same_rows(encode_rows, tokens, tmp_path):
    encode_rows([GOOD] * 3)
    plain = tmp_path / "encoded.jsonl"
    packed = tmp_path / "rows.jsonl.gz"
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    table = pa.Table.from_pylist([GOOD] * 3)
    pq.write_table(table, tmp_path / "rows.parquet")
    sums = []
    for kind, path in (("JSONL", plain), ("JSONL", packed), ("Parquet", tmp_path / "rows.parquet")):
        given = {
            "sources": ({"kind": kind, "paths": (str(path),), "source": "chats"},),
            "tokenizer": tokens,
            "output": str(tmp_path / f"out-{path.name}"),
            "workers": 0,
            "sequence_length": 64,
            "held_out": 0,
        }
        made = encode_conversations(ConversationEncoding.model_validate(given))
        names = ("train/rows-00000.bin", "train/rows-00000.weights")
        sums.append([made.files[name].sha256 for name in names])
    assert sums[0] == sums[1] == sums[2]


def test_parquet_loses_the_nulls_of_its_objects_alone_and_says_so_once(tokens, tmp_path, caplog):
    schema = {"type": "function", "function": {"name": "get", "parameters": {"default": None}}}
    calls = [{"function": {"name": "get", "arguments": {"a": 1, "b": None}}}]
    turns = [GOOD["messages"][0], {"role": "assistant", "content": None, "tool_calls": calls}]
    as_json = json.dumps([{**schema, "type": "x"}])
    rows = [{"messages": turns, "tools": [schema]}] * 2
    for name, given in (
        ("objects", rows),
        ("json", [{"messages": GOOD["messages"], "tools": as_json}]),
    ):
        pq.write_table(pa.Table.from_pylist(given), tmp_path / f"{name}.parquet")
        source = {"kind": "Parquet", "paths": (str(tmp_path / f"{name}.parquet"),), "source": "s"}
        made = encode_conversations(
            ConversationEncoding.model_validate(
                {
                    "sources": (source,),
                    "tokenizer": tokens,
                    "output": str(tmp_path / name),
                    "workers": 0,
                    "sequence_length": 400,
                    "held_out": 0,
                }
            )
        )
        shards = TokenShards.open(str(tmp_path / name / "train"))
        text = Encoder.load(f"{tokens}/tokenizer.json").decode(
            shards.read_window("s", 0, shards.tokens("s")).tolist()
        )
        if name == "json":
            assert '"default": null' in text and "unread" not in made.counts
        else:
            assert '"arguments": {"a": 1}' in text and "default" not in text
            assert list(made.counts["unread"].values()) == [2]
    assert caplog.text.count("fields that are not used: null keys of tools") == 1


def test_ignored_columns_that_change_the_meaning_are_logged_once_a_stage(encode_rows, caplog):
    rows = [{**GOOD, "images": ["a.png"]}, {**GOOD, "margin": 1.0}, {**GOOD, "images": ["b.png"]}]
    made = encode_rows(rows)
    assert made.counts["unread"] == {"images": 2, "margin": 1}
    assert "of 3 rows, some have fields that are not used: images in 2, margin in 1" in caplog.text
    assert "unread" not in encode_rows([GOOD], output="plain").counts


def test_a_developer_is_a_system_turn_where_the_template_knows_none(encode_rows, encoder, tmp_path):
    turns = [{"role": "developer", "content": "s"}, *GOOD["messages"]]
    template = tmp_path / "knows.jinja"
    template.write_text(TRIMMING + "{# developer #}")
    for output, settings in (("ours", {}), ("knows", {"template": str(template)})):
        encode_rows([{"messages": turns}], output=output, **settings)
        shards = TokenShards.open(str(tmp_path / output / "train"))
        ids = shards.read_window("chats", 0, shards.tokens("chats")).tolist()
        role = "system" if output == "ours" else "developer"
        assert f"<|{role}|>s<|end_of_turn|>" in encoder.decode(ids)


def test_rows_are_held_out_by_prompt(encode_rows, tmp_path):
    rows = [{"prompt": f"is {n % 20}", "completion": f"yes {n}"} for n in range(60)]
    made = encode_rows(rows, held_out=0.3)
    held = made.counts["held_out_conversations"]
    assert 0 < held < 60 and held % 3 == 0  # the three answers to a prompt stay together


def test_turns_are_dropped_where_asked_and_never_cut(encode_rows, encoder, tmp_path):
    turns = [
        {"role": role, "content": text}
        for text in ("a", "b" * 20, "c" * 20)
        for role in ("user", "assistant")
    ]
    made = encode_rows([{"messages": turns}], sequence_length=60, too_long="drop_turns")
    assert made.counts["turns_dropped"] == 2
    shards = TokenShards.open(str(tmp_path / "encoded" / "train"))
    text = encoder.decode(shards.read_window("chats", 0, shards.tokens("chats")).tolist())
    assert text.endswith(f"{'b' * 20}<|end_of_turn|>") and "cc" not in text
    prompt = [{"role": "user", "content": "old"}, {"role": "assistant", "content": "z" * 40}]
    row = {"prompt": [*prompt, {"role": "user", "content": "a"}], "chosen": "b", "rejected": "c"}
    made = encode_rows(
        [row], output="pairs", rows="pairs", sequence_length=40, too_long="drop_turns"
    )
    assert (made.counts["train_pairs"], made.counts["turns_dropped"]) == (1, 2)


def read_bytes(folder):
    return {
        path.removeprefix(str(folder)): Path(path).read_bytes()
        for path in storage.list_files(str(folder))
        if not path.endswith(("manifest.json", "claim.json"))
    }


def test_the_bytes_depend_on_the_rows_alone(encode_rows, tmp_path):
    rows = [{"prompt": f"is {n}", "completion": f"yes {n}"} for n in range(200)] + ["{"]
    first = encode_rows(rows, held_out=0.1, shard_bytes=2_000)
    assert len([name for name in first.files if name.endswith(".bin")]) > 4
    assert encode_rows(rows, held_out=0.1, shard_bytes=2_000) == first
    before = read_bytes(tmp_path / "encoded")
    (tmp_path / "encoded").rename(tmp_path / "kept")
    encode_rows(rows, held_out=0.1, shard_bytes=2_000)
    assert read_bytes(tmp_path / "encoded") == before
    with pytest.raises(OutputTaken):
        encode_rows(rows[1:], held_out=0.1, shard_bytes=2_000)


@pytest.mark.ray
@pytest.mark.slow
def test_two_workers_write_the_bytes_of_one_process(local_ray, encode_rows, tmp_path):
    rows = [{"prompt": f"is {n}", "completion": f"yes {n}"} for n in range(200)] + ["{"]
    encode_rows(rows, shard_bytes=2_000)
    before = read_bytes(tmp_path / "encoded")
    (tmp_path / "encoded").rename(tmp_path / "kept")
    encode_rows(rows, shard_bytes=2_000, workers=2)
    assert read_bytes(tmp_path / "encoded") == before


def test_a_template_that_reaches_for_the_system_is_refused_before_a_row_is_read(
    encode_rows, tmp_path
):
    template = tmp_path / "evil.jinja"
    template.write_text("{{ ''.__class__.__mro__[1].__subclasses__() }}")
    with pytest.raises(ConfigError, match="uses what its sandbox forbids"):
        encode_rows([GOOD], template=str(template))
    with pytest.raises(ConfigError, match=r"none\.jinja: no such file"):
        encode_rows([GOOD], template=str(tmp_path / "none.jinja"))
    assert not (tmp_path / "encoded").exists()


def test_a_template_by_which_no_model_learns_to_stop_is_refused(encode_rows, tmp_path):
    template = tmp_path / "endless.jinja"
    template.write_text(
        "{% for m in messages %}{{ m.role + ': ' + m.content + '\n' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ 'assistant: ' }}{% endif %}"
    )
    with pytest.raises(ConfigError, match=r"endless\.jinja: .* would not learn to stop"):
        encode_rows([GOOD], template=str(template))
    assert not (tmp_path / "encoded").exists()


def test_a_turn_without_an_end_ends_where_the_next_one_begins(encode_rows, encoder, tmp_path):
    """GLM's template has only headers, so its models stop at the header of the next turn."""
    template = tmp_path / "headers.jinja"
    template.write_text(
        "{% for m in messages %}{{ '<|' + m.role + '|>' + m.content }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
    )
    encode_rows([GOOD], template=str(template))
    (sample,) = read_samples(tmp_path / "encoded", encoder)
    assert sample == ("<|user|>a<|assistant|>is it<|user|>", "is it<|user|>")


FORGETFUL = (  # the template omits the thoughts of earlier turns
    "{% for m in messages %}{{ '<|' + m.role + '|>' }}"
    "{% if loop.last and m.role == 'assistant' %}{{ '(hm)' }}{% endif %}"
    "{{ m.content + '<|end_of_turn|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)
TWO_TURNS = {
    "messages": [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "is it"},
        {"role": "user", "content": "b"},
        {"role": "assistant", "content": "now", "weight": 0.5},
    ]
}


def read_samples(folder, encoder, split="train"):
    """Return the text of each document, and the parts that are trained."""
    shards = TokenShards.open(f"{folder}/{split}")
    size = shards.tokens("chats")
    ids = shards.read_window("chats", 0, size)
    weights = np.zeros(size, dtype=np.uint8)
    shards.read_weights("chats", 0, weights)
    found = []
    at = 0
    for document in shards.read_documents("chats", 0, size):
        of = slice(at, at + document.length)
        taught = ids[of][weights[of] > 0]
        found.append((encoder.decode(ids[of].tolist()), encoder.decode(taught.tolist())))
        at += document.length
    return found


def test_rows_whose_earlier_turns_change_make_a_sample_an_answer(
    encode_rows, encoder, tmp_path, caplog
):
    template = tmp_path / "forgetful.jinja"
    template.write_text(FORGETFUL)
    rows = [TWO_TURNS, GOOD]
    made = encode_rows(rows, template=str(template), sequence_length=64)
    first = "<|user|>a<|end_of_turn|><|assistant|>"
    second = f"{first}is it<|end_of_turn|><|user|>b<|end_of_turn|><|assistant|>"
    alone = (f"{first}(hm)is it<|end_of_turn|>", "(hm)is it<|end_of_turn|>")
    assert read_samples(tmp_path / "encoded", encoder) == [
        alone,
        (f"{second}(hm)now<|end_of_turn|>", "(hm)now<|end_of_turn|>"),
        alone,
    ]
    counts = made.counts
    assert (counts["rows"], counts["train_conversations"]) == (2, 3)
    assert (counts["rows_split"], counts["samples_of_split_rows"]) == (1, 2)
    shards = TokenShards.open(str(tmp_path / "encoded" / "train"))
    documents = shards.read_documents("chats", 0, shards.tokens("chats"))
    # Tokens that the last sample has as well.
    assert counts["tokens_repeated"] == documents[0].length
    assert "so 1 rows became 2 samples" in caplog.text and caplog.text.count("\n") == 1
    assert [document.corpus_row for document in documents][:2] == [0, 0]
    # Both samples are from one row, like the answers of a pair.
    assert documents[0].id == documents[1].id


def test_only_the_last_answer_is_trained_if_earlier_turns_are_rewritten(
    encode_rows, encoder, tmp_path, caplog
):
    template = tmp_path / "forgetful.jinja"
    template.write_text(FORGETFUL)
    made = encode_rows([TWO_TURNS], template=str(template), rewritten_turns="last")
    (sample,) = read_samples(tmp_path / "encoded", encoder)
    assert sample[1] == "(hm)now<|end_of_turn|>"
    assert (made.counts["rows_split"], made.counts["answers_left_out"]) == (0, 1)
    assert "1 answers before the last one give context" in caplog.text
    caplog.clear()
    made = encode_rows([TWO_TURNS], output="ours", rewritten_turns="last")  # nothing changes
    ((_, taught),) = read_samples(tmp_path / "ours", encoder)
    assert taught == "is it<|end_of_turn|>now<|end_of_turn|>"
    assert made.counts["answers_left_out"] == 0 and not caplog.text


def test_pairs_stay_one_sample_an_answer_by_any_template(encode_rows, encoder, tmp_path):
    template = tmp_path / "forgetful.jinja"
    template.write_text(FORGETFUL)
    turns = TWO_TURNS["messages"]
    row = {"prompt": turns[:1], "chosen": turns[1:], "rejected": turns[1:2]}
    made = encode_rows([row], template=str(template), rows="pairs")
    assert [taught for _, taught in read_samples(tmp_path / "encoded", encoder)] == [
        "(hm)now<|end_of_turn|>",
        "(hm)is it<|end_of_turn|>",
    ]
    assert (made.counts["train_pairs"], made.counts["answers_left_out"]) == (1, 1)
    with pytest.raises(ValueError, match="rewritten_turns is for rows"):
        encode_rows([row], output="no", rows="pairs", rewritten_turns="last")


def test_a_template_goes_with_the_tuned_model(encode_rows, tmp_path):
    template = tmp_path / "own.jinja"
    template.write_text(
        "{% for m in messages %}{{ '<|' + m.role + '|>' + m.content + '<|end_of_turn|>' }}"
        "{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
    )
    encode_rows([GOOD], template=str(template))
    brought = json.loads((tmp_path / "encoded" / "brought.json").read_text())
    assert brought["chat_template.jinja"] == template.read_text()


def test_a_step_is_traced_to_file_and_row(encode_rows, fresh, tmp_path):
    rows = [{"prompt": f"is {n}", "completion": f"yes {n}"} for n in range(9)]
    encode_rows(rows)
    file = tmp_path / "run.toml"
    file.write_text(
        f"""
stage = "posttrain"
checkpoint = "{fresh}"
conversations = "{tmp_path}/encoded"
output = "{tmp_path}/tuned"
batches = {{ sequence_length = 64, global_batch = 1, micro_batch = 1 }}
training = {{ steps = 3, optimizer = {{ kind = "AdamW", lr = 1e-3 }} }}
"""
    )
    traced = trace(str(file), 1)
    (sequence,) = traced.sequences
    data = (tmp_path / "encoded.jsonl").read_bytes()
    assert len(sequence.documents) > 1
    for document in sequence.documents:
        assert document.corpus_file == "encoded.jsonl"
        row = json.loads(data[document.corpus_row :].splitlines()[0])
        ids = sequence.ids[document.place : document.place + document.tokens]
        assert row["prompt"] in traced.encoder.decode(ids)
