"""The page section with answers to the same prompts."""

from trainrig.train.run_report.sampled_answers import (
    LONGEST,
    AnswerAt,
    BatchAnswers,
    FollowedPrompt,
    StoredAnswer,
    build_followed_prompts,
    choose_moments,
    follow_prompts,
)


def make_answers(*texts):
    return tuple(AnswerAt(10 * n, text, "acc", float("2" in text)) for n, text in enumerate(texts))


def test_answers_stand_below_their_prompt_in_order_and_equal_ones_once():
    prompt = FollowedPrompt("sums, row 1", "1+1=", "2", make_answers("7", "7", "7", "2", " "))
    said, group = build_followed_prompts([prompt], "those of a test")
    assert "those of a test" in said.text
    assert [(sample.label, sample.text, sample.note) for sample in group.samples] == [
        ("sums, row 1", "1+1=", "expected: 2"),
        ("Step 0 to 20, unchanged", "7", "acc 0"),
        ("Step 30", "2", "acc 1"),
        ("Step 40", " ", "no answer; acc 0"),
    ]
    assert 'class="group headed"' in group.render_html()
    assert build_followed_prompts([], "none") == []


def test_a_long_text_keeps_its_ends_and_a_hostile_one_is_text():
    prompt = FollowedPrompt(
        "row 1", "a" + "b" * 5_000 + "c", None, make_answers("<script>x</script>")
    )
    group = build_followed_prompts([prompt], "")[1]
    shown = group.samples[0]
    assert (shown.text[0], shown.text[-1], shown.note) == ("a", "c", "")
    assert len(shown.text) < LONGEST + 10
    assert "<script>" not in group.render_html()


def test_the_first_and_the_last_are_among_the_moments():
    assert [choose_moments(count) for count in (0, 1, 3)] == [[], [0], [0, 1, 2]]
    assert choose_moments(101) == [0, 25, 50, 75, 100]


def make_batch(step, *pairs):
    said = [StoredAnswer(prompt, text, step / 10, 0.0, {}) for prompt, text in pairs]
    return BatchAnswers(step, said)


def test_prompts_that_a_policy_meets_again_are_followed_those_met_most_first():
    batches = [
        make_batch(0, ("once", "x"), ("twice", "a"), ("twice", "b"), ("always", "c")),
        make_batch(5, ("always", "d")),
        make_batch(9, ("always", "e"), ("twice", "f")),
    ]
    followed = follow_prompts(batches)
    assert [(prompt.source, prompt.prompt) for prompt in followed] == [
        ("Prompt 1", "always"),
        ("Prompt 2", "twice"),
    ]
    assert [[(a.step, a.text, a.worth) for a in prompt.answers] for prompt in followed] == [
        [(0, "c", 0.0), (5, "d", 0.5), (9, "e", 0.9)],
        [(0, "a", 0.0), (9, "f", 0.9)],
    ]
