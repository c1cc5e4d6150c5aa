"""The page section with answers to the same prompts."""

from trainrig.train.run_report.sampled_answers import (
    AnswerAt,
    BatchAnswers,
    FollowedPrompt,
    StoredAnswer,
    choose_moments,
    follow_prompts,
)


def make_answers(*texts):
    return tuple(AnswerAt(10 * n, text, "acc", float("2" in text)) for n, text in enumerate(texts))


def test_equal_answers_in_a_row_are_one():
    prompt = FollowedPrompt("sums, row 1", "1+1=", "2", make_answers("7", "7", "7", "2", " "))
    found = [(first.step, last.step, last.text) for first, last in prompt.group_equal()]
    assert found == [(0, 20, "7"), (30, 30, "2"), (40, 40, " ")]


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
