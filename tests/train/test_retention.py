import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from trainrig.train.retention import Checkpoints

intervals = st.one_of(st.none(), st.integers(1, 12))


@pytest.mark.parametrize(
    ("settings", "saved", "kept"),
    [
        ({}, [100, 200, 300], {200, 300}),
        ({"keep": 3}, [100, 200, 300, 400], {200, 300, 400}),
        ({"keep_every": 200}, [100, 200, 300, 400, 500], {200, 400, 500}),
        ({"keep_every": 250}, [200, 250, 300, 400, 500], {250, 400, 500}),
        ({"keep_at": (130, 200, 999)}, [100, 130, 200, 300, 400, 500], {130, 200, 400, 500}),
        # The last step, and a step at which the run was stopped, are kept like the steps of
        # `every`.
        ({}, [100, 200, 230], {200, 230}),
        ({"short_lived_every": 10}, [100, 200, 210, 220], {100, 200, 220}),
        ({"short_lived_every": 10}, [100, 200, 290, 300], {200, 300}),
        # Without others, two of them are kept, as one may be damaged.
        ({"short_lived_every": 10}, [10, 20, 30], {20, 30}),
        ({}, [100], {100}),
        ({}, [], set()),
    ],
)
def test_checkpoints_are_kept_by_the_run_files_rule(settings, saved, kept):
    assert Checkpoints(**settings).select_kept(saved) == kept


@given(
    saved=st.sets(st.integers(1, 60)),
    every=st.integers(1, 12),
    keep=st.integers(2, 4),
    keep_every=intervals,
    short_lived_every=intervals,
)
def test_the_two_newest_checkpoints_are_always_kept(
    saved, every, keep, keep_every, short_lived_every
):
    settings = Checkpoints(
        every=every, keep=keep, keep_every=keep_every, short_lived_every=short_lived_every
    )
    kept = settings.select_kept(saved)
    assert kept <= saved
    assert len(kept) >= min(2, len(saved))
    assert not saved or max(saved) in kept
    assert settings.select_kept(kept) == kept  # an interrupted clean-up changes nothing
    assert {step for step in saved if keep_every and step % keep_every == 0} <= kept


def test_a_checkpoint_is_due_at_each_interval_and_at_the_end():
    settings = Checkpoints(every=10, keep_every=25, short_lived_every=4, keep_at=(7,))
    due = [step for step in range(1, 32) if settings.due(step, last=31)]
    assert due == [4, 7, 8, 10, 12, 16, 20, 24, 25, 28, 30, 31]


def test_keeping_a_single_checkpoint_is_rejected():
    with pytest.raises(ValidationError, match="greater than or equal to 2"):
        Checkpoints(keep=1)
