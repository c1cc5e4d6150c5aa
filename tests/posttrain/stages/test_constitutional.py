"""Answers that are criticised and revised by principles, and compared in both orders."""

import functools
import json
import math

import pytest
import torch
from support.interruptions import interrupt_after

from trainrig import manifest
from trainrig.errors import ConfigError
from trainrig.models.decoder import Decoder, initialise
from trainrig.posttrain.prompt_text import PromptEncoder
from trainrig.posttrain.stages import constitutional_chain as chain_module
from trainrig.posttrain.stages import constitutional_stage
from trainrig.posttrain.stages.constitutional_chain import judge_both_orders
from trainrig.posttrain.stages.constitutional_stage import read_principles, revise_answers
from trainrig.posttrain.stages.prompted_run_files import AnswerRule, ConstitutionalChain
from trainrig.train import checkpoint

RULE = {"pattern": "[aeiou]", "says": "no vowel"}
SHORT = {
    "critique": "{{ answer }} {{ principle }}?",
    "revision": "{{ answer }} {{ critique }}!",
    "judgement": "{{ b }} {{ a }}",
}


@pytest.fixture(scope="session")
def decided(fresh, tmp_path_factory):
    """Return an untrained model with weights so large that its outputs depend on its inputs."""
    opened = checkpoint.open_model(fresh)
    model = Decoder(opened.config)
    initialise(model, seed=1)
    state = {name: w * 20 if w.ndim > 1 else w for name, w in model.state_dict().items()}
    folder = str(tmp_path_factory.mktemp("decided") / "run")
    checkpoint.write_model(folder, opened.config, opened.tokenizer, state)
    return folder


@pytest.fixture(scope="module")
def make_chaining(fresh, problems, tmp_path_factory):
    """Return `make_chaining(output, …)`, which makes a run file."""
    principles = tmp_path_factory.mktemp("principles") / "principles.txt"
    principles.write_text("# of letters\nbe\n  kind\n\nbe short\n\n\n")

    def make(output, **settings):
        given = {
            "checkpoint": fresh,
            "prompts": {"paths": (problems,), "template": "{{ question }}"},
            "principles": str(principles),
            "prompt_tokens": 32,
            "maximum_tokens": 6,
            "output": str(output),
            "workers": 0,
            "batch": 2,
            "shard_prompts": 4,
            **SHORT,
        }
        return ConstitutionalChain.model_validate(given | settings)

    return make


@pytest.fixture
def chaining(make_chaining, tmp_path):
    return functools.partial(make_chaining, tmp_path / "chained")


@pytest.fixture(scope="module")
def whole(make_chaining, decided, tmp_path_factory):
    """Return the folder of a stage that ran without a stop."""
    folder = tmp_path_factory.mktemp("whole") / "chained"
    revise_answers(make_chaining(folder, checkpoint=decided))
    return folder


def read_content(folder):
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*.jsonl"))}


def select_rows(folder, kind):
    lines = b"".join(p.read_bytes() for p in sorted((folder / kind).glob("*.jsonl"))).splitlines()
    return [json.loads(line) for line in lines]


def test_known_values_of_a_judgement():
    a = math.log(0.3)
    b = math.log(0.1)  # P(A | A or B) = .75
    found = judge_both_orders([a, b, b, a])  # the first text is A, then B: .75 in both orders
    assert found["orders"] == pytest.approx([0.75, 0.75])
    assert found["probability"] == pytest.approx(0.75) and found["preferred"] == 0
    found = judge_both_orders([b, a, a, b])
    assert found["probability"] == pytest.approx(0.25) and found["preferred"] == 1
    # A judge that always prefers A gives no judgement of the texts.
    found = judge_both_orders([a, b, a, b])
    assert found["orders"] == pytest.approx([0.75, 0.25])
    assert found["probability"] == pytest.approx(0.5) and found["preferred"] is None
    assert judge_both_orders([a, a, b, b])["preferred"] is None


def test_principles_are_paragraphs(tmp_path):
    path = tmp_path / "principles.txt"
    path.write_text("# a list\n\nOf two lines,\n  the first.\n# aside\n\n\nThe second.\n")
    assert read_principles(str(path)) == ["Of two lines, the first.", "The second."]
    path.write_text("# nothing\n\n")
    with pytest.raises(ConfigError, match="no principles"):
        read_principles(str(path))
    with pytest.raises(ConfigError, match="no such file; write one"):
        read_principles(str(tmp_path / "none.txt"))


def test_a_rule_asks_for_a_pattern_or_forbids_it():
    wanted = AnswerRule(pattern="a.b", says="no a.b")
    assert wanted.is_broken_by("ab") and not wanted.is_broken_by("a\nb")
    unwanted = AnswerRule(pattern="a.b", says="a.b", match="forbidden")
    assert unwanted.is_broken_by("a\nb") and not unwanted.is_broken_by("ab")


@pytest.mark.slow
def test_every_step_is_asked_of_the_model_and_kept(chaining, tmp_path, monkeypatch):
    asked = []
    generate = chain_module.generate_batch

    def heard(model, requests, *others):
        asked.append([request.prompt for request in requests])
        return generate(model, requests, *others)

    monkeypatch.setattr(chain_module, "generate_batch", heard)
    made = revise_answers(chaining(rounds=2, batch=16, shard_prompts=16))
    rows = select_rows(tmp_path / "chained", "transcripts")
    assert len(rows) == made.counts["prompts"] == 10
    # Answers, then two critiques and two revisions, each for all prompts together.
    assert len(asked) == 5
    encoder = PromptEncoder(open_encoder(chaining().checkpoint))
    for number, row in enumerate(rows):
        assert row["critic"] == "model" and len(row["rounds"]) == 2
        answer = row["answer"]
        for step, turn in enumerate(row["rounds"]):
            assert turn["principle"] in ("be kind", "be short")
            expected = tuple(encoder.encode(f"{answer} {turn['principle']}?"))
            assert asked[1 + 2 * step][number] == expected
            expected = tuple(encoder.encode(f"{answer} {turn['critique']}!"))
            assert turn["critique"] and asked[2 + 2 * step][number] == expected
            answer = turn["revision"] or answer
        assert row["last"] == answer
    principles = {turn["principle"] for row in rows for turn in row["rounds"]}
    assert principles == {"be kind", "be short"}
    revisions = select_rows(tmp_path / "chained", "revisions")
    assert [(r["prompt"], r["completion"]) for r in revisions] == [
        (row["prompt"], row["last"]) for row in rows if row["last"]
    ]


def open_encoder(path):
    from trainrig.tokens.tokenizers.encode import Encoder

    return Encoder.of(checkpoint.read_tokenizer_files(checkpoint.resolve(path)))


@pytest.mark.slow
@pytest.mark.parametrize("compare", ["revision", "samples"])
def test_judgements_are_the_models_probabilities_of_either_letter(
    make_chaining, whole, tmp_path, decided, compare
):
    folder = whole if compare == "revision" else tmp_path / "chained"
    made = revise_answers(make_chaining(folder, checkpoint=decided, compare=compare))
    model = checkpoint.open_model(decided).build()
    encoder = PromptEncoder(open_encoder(decided))
    letters = [encoder.encoder.encode_batch([f" {letter}"])[0] for letter in "AB"]

    def nats(text, letter):
        ids = torch.tensor([[*encoder.encode(text), *map(int, letter)]])
        with torch.no_grad():
            log = model(ids[:, :-1]).logits[0].log_softmax(-1)
        count = len(letter)
        return float(log[-count:].gather(1, ids[0, -count:, None]).sum())

    rows = select_rows(folder, "transcripts")
    judged = [row for row in rows if row["judgement"]]
    assert len(judged) == made.counts["judged"] > 5
    for row in judged:
        judgement = row["judgement"]
        first, second = judgement["texts"]
        assert first == row["answer"] and (second == row["last"]) == (compare == "revision")
        expected = [
            1 / (1 + math.exp(nats(text, other) - nats(text, mine)))
            for text, mine, other in (
                (f"{second} {first}", letters[0], letters[1]),
                (f"{first} {second}", letters[1], letters[0]),
            )
        ]
        assert judgement["orders"] == pytest.approx(expected, abs=1e-4)
    pairs = {p["prompt_number"]: p for p in select_rows(folder, "pairs")}
    for row in judged:
        preferred = row["judgement"]["preferred"]
        assert (preferred is None) == (row["prompt_number"] not in pairs)
        if preferred is not None:
            pair = pairs[row["prompt_number"]]
            assert pair["judged_by"] == "model"
            assert pair["chosen"] == row["judgement"]["texts"][preferred]
    assert made.counts["pairs"] + made.counts["undecided"] == len(judged)
    assert made.counts["pairs"] == len(pairs) > 0


def test_rules_in_the_place_of_a_critic_raise_the_share_that_passes(chaining, tmp_path):
    run = chaining(critic="rules", rules=(RULE,), rounds=3, maximum_tokens=4)
    made = revise_answers(run)
    counts = made.counts
    assert counts["critic"] == "rules"
    assert counts["pass_before"] < counts["pass_after"] == counts["revisions"]
    rows = select_rows(tmp_path / "chained", "transcripts")
    for row in rows:
        assert row["critic"] == "rules"
        if not row["broken_before"]:  # without a broken rule nothing is changed
            assert row["last"] == row["answer"] and row["judgement"] is None
        for turn in row["rounds"]:
            assert turn["critique"] in ("", "no vowel")
            assert bool(turn["critique"]) or not turn["revision"]
    pairs = select_rows(tmp_path / "chained", "pairs")
    assert pairs and all(p["judged_by"] == "rules" for p in pairs)
    for pair in pairs:
        assert any(letter in pair["chosen"] for letter in "aeiou")
        assert not any(letter in pair["rejected"] for letter in "aeiou")


def test_rows_and_pairs_are_what_conversations_takes(whole, encode_rows):
    revisions, pairs = (select_rows(whole, kind) for kind in ("revisions", "pairs"))
    encoded = encode_rows(revisions, "chats")
    assert encoded.counts["train_conversations"] == len(revisions) > 0
    encoded = encode_rows(pairs, "preferences", rows="pairs")
    assert encoded.counts["train_pairs"] == len(pairs) > 0


@pytest.mark.slow
@pytest.mark.ray
def test_the_bytes_are_the_same_at_any_number_of_workers(chaining, decided, whole, tmp_path):
    revise_answers(chaining(workers=2, checkpoint=decided))
    found = read_content(tmp_path / "chained")
    assert len(found) == 9 and found == read_content(whole)


@pytest.mark.slow
def test_a_stopped_stage_continues_with_the_rest(chaining, decided, whole, tmp_path):
    with interrupt_after(1, constitutional_stage.sample_stage, "write_rows"):
        revise_answers(chaining(checkpoint=decided))
    done = read_content(tmp_path / "chained")
    assert len(done) == 3
    again = revise_answers(chaining(checkpoint=decided))
    assert read_content(tmp_path / "chained") == read_content(whole)
    assert again.content == manifest.read_manifest(str(whole)).content


def test_a_prompt_without_room_for_a_step_ends_no_run(chaining, tmp_path):
    long = "{{ answer }}" + "{% if prompt == 'is 0 ' %}" + " word" * 60 + "{% endif %}"
    made = revise_answers(chaining(critique=long))
    rows = select_rows(tmp_path / "chained", "transcripts")
    assert [row["no_room"] for row in rows if row["no_room"]] == ["critique"]
    assert made.counts["no_room"] == 1
    numbers = [row["prompt_number"] for row in select_rows(tmp_path / "chained", "revisions")]
    assert rows[0]["no_room"] == "critique" and rows[0]["prompt_number"] not in numbers


def test_invalid_settings_are_one_line_errors(chaining, tmp_path):
    with pytest.raises(ValueError, match=r'critic = "rules" needs'):
        chaining(critic="rules")
    with pytest.raises(ValueError, match="invalid template"):
        chaining(judgement="{{ a")
    with pytest.raises(ValueError, match="not a regular expression"):
        chaining(rules=({"pattern": "(", "says": "x"},))
    with pytest.raises(ConfigError, match="more than the model's 48 positions"):
        revise_answers(chaining(maximum_tokens=40))
    assert not (tmp_path / "chained").exists()
