import pytest

from trainrig.processes.retry_policy import FailureHistory, compute_back_off, normalise


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("events/0179.0fef4400.jsonl: no", "events/0188.ab12.jsonl: no"),
        ("cannot reach http://10.0.0.1:8265/api", "cannot reach http://10.0.0.7:80/api"),
        ("process 411 died at 0x7f3a", "process 97 died at 0x7f44"),
        ("loss is 3.5e-3", "loss is -12"),
        ("actor 2fc40a1b ended", "actor 91b04acd ended"),
    ],
)
def test_numbers_paths_and_ids_make_no_other_failure(one: str, other: str) -> None:
    assert normalise(one) == normalise(other)


@pytest.mark.parametrize("other", ["no facade", "no decade", "bad facade"])
def test_words_that_could_be_hexadecimal_are_words(other: str) -> None:
    assert normalise("a facade") != normalise(other)


def test_a_failure_repeats_where_it_got_no_farther_whatever_came_between() -> None:
    history = FailureHistory()
    assert [history.repeats("a", 4), history.repeats("b", 4)] == [False, False]
    assert history.repeats("a", 4)
    assert history.repeats("a", 3)
    assert not history.repeats("a", 5)
    assert history.repeats("b", 4)


def test_only_consecutive_equal_failures_count_as_repeated() -> None:
    history = FailureHistory(last_only=True)
    assert [history.repeats(cause, 4) for cause in ("a", "b", "a", "a")] == [
        False,
        False,
        False,
        True,
    ]
    assert [history.repeats(cause, 4) for cause in ("a", None, "a")] == [True, False, False]


def test_a_failure_that_is_like_no_other_never_repeats() -> None:
    history = FailureHistory()
    assert not any(history.repeats(None, 0) for _ in range(3))


def test_the_back_off_doubles_up_to_its_bound() -> None:
    waits = [compute_back_off(1.0, 10.0, doublings) for doublings in (0, 1, 2, 3, 4, 5_000)]
    assert waits == [1.0, 2.0, 4.0, 8.0, 10.0, 10.0]
