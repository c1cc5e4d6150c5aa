import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as tries
from hypothesis import strategies as st

from trainrig.tokens.permutation import permute_indices
from trainrig.tokens.rows import window_order
from trainrig.tokens.rows.window_order import ReadPosition, SourceStage, WindowBlocks


@pytest.fixture(params=[1, 3, 256])
def group(request, monkeypatch):
    """Set the group size, smaller or larger than an epoch."""
    monkeypatch.setattr(window_order, "GROUP", request.param)
    return request.param


def make_whole(blocks, span=1):
    return SourceStage(blocks, span, ReadPosition.at(blocks, 0, 0))


def list_trained(source_stage, count):
    """Return (epoch, base window) of everything that the first rows of a stage train on, by row."""
    rows = source_stage.find_rows(np.arange(count))
    return [
        {(epoch, window + at) for at, again in enumerate(read) if not again}
        for epoch, window, read in zip(
            rows.epochs.tolist(), rows.windows.tolist(), rows.read.tolist(), strict=True
        )
    ]


def test_one_length_for_all_is_one_permutation_an_epoch():
    rows = make_whole(WindowBlocks("web", 7, 1, seed=5)).find_rows(np.arange(14))
    assert rows.epochs.tolist() == [0] * 7 + [1] * 7
    for epoch in (0, 1):
        expected = permute_indices(np.arange(7), 7, f"5\n{epoch}\nweb")
        assert rows.windows[7 * epoch : 7 * epoch + 7].tolist() == expected.tolist()
    assert not rows.read.any()


blocks = st.builds(
    WindowBlocks,
    source=st.sampled_from(["web", "wiki"]),
    count=st.integers(1, 12),
    length=st.sampled_from([1, 2, 4, 6, 12]),
    seed=st.integers(0, 9),
)


@tries(max_examples=60, deadline=None)
@given(blocks, st.lists(st.tuples(st.integers(0, 5), st.integers(0, 40)), min_size=1, max_size=5))
def test_through_any_stages_each_window_is_trained_on_once_an_epoch_and_epochs_follow(
    blocks, stages
):
    for group in (1, 3, 256):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(window_order, "GROUP", group)
            check_exactly_once(blocks, stages)


def check_exactly_once(blocks, stages):
    spans = [span for span in range(1, blocks.length + 1) if blocks.length % span == 0]
    seen = []
    progress = ReadPosition.at(blocks, 0, 0)
    for choice, count in stages:
        source_stage = SourceStage(blocks, spans[choice % len(spans)], progress)
        for row in list_trained(source_stage, count):
            assert row  # no empty row
            seen += sorted(row)
        assert source_stage.count_windows_after(count) == len(seen)
        progress = source_stage.find_position_after(count)
        assert progress.count_windows(blocks) == len(seen)
    assert len(set(seen)) == len(seen)  # nothing repeats
    for epoch in range(len(seen) // blocks.windows):  # nothing is missing
        of_epoch = seen[epoch * blocks.windows : (epoch + 1) * blocks.windows]
        assert set(of_epoch) == {(epoch, window) for window in range(blocks.windows)}


def test_rows_are_whole_neighbours_that_begin_at_multiples_of_their_span(group):
    blocks = WindowBlocks("web", 10, 8, seed=1)
    for span in (1, 2, 4, 8):
        rows = make_whole(blocks, span).find_rows(np.arange(3 * 80 // span))
        assert (rows.windows % span == 0).all()
        assert rows.read.shape == (len(rows.windows), span)


def test_any_row_can_be_had_first(group):
    blocks = WindowBlocks("web", 10, 4, seed=1)
    source_stage = SourceStage(blocks, 2, make_whole(blocks, 1).find_position_after(7))
    together = source_stage.find_rows(np.arange(60))
    for number in (59, 0, 3, 17):
        alone = SourceStage(blocks, 2, make_whole(blocks, 1).find_position_after(7)).find_rows(
            np.array([number])
        )
        assert alone.windows.tolist() == [together.windows[number]]
        assert alone.read.tolist() == [together.read[number].tolist()]


def test_rows_before_a_stage_do_not_depend_on_it(group):
    blocks = WindowBlocks("web", 10, 4, seed=1)
    source_stage = make_whole(blocks, 1)
    uninterrupted = list_trained(source_stage, 30)
    assert (
        list_trained(SourceStage(blocks, 1, source_stage.find_position_after(0)), 30)
        == uninterrupted
    )
    # A change to equal settings gives the same rows as no change.
    assert (
        list_trained(SourceStage(blocks, 1, source_stage.find_position_after(13)), 17)
        == uninterrupted[13:]
    )


def test_neighbours_in_a_text_do_not_follow_each_other():
    blocks = WindowBlocks("web", 2_000, 8, seed=1)
    windows = make_whole(blocks, 1).find_rows(np.arange(16_000)).windows
    # Expected by chance: 7 of 2,048 rows of each of 8 groups.
    assert (np.diff(windows) == 1).sum() < 60
    first_group = set((windows[: 256 * 8] // 8).tolist())
    assert len(first_group) == 256


def test_a_longer_row_after_a_change_masks_tokens_read_before(monkeypatch):
    monkeypatch.setattr(window_order, "GROUP", 1)
    blocks = WindowBlocks("web", 1, 4, seed=0)
    short = make_whole(blocks, 1)
    first = int(short.find_rows(np.array([0])).windows[0])
    long = SourceStage(blocks, 4, short.find_position_after(1)).find_rows(np.array([0, 1]))
    assert long.windows.tolist() == [0, 0]
    assert long.epochs.tolist() == [0, 1]
    assert long.read.tolist() == [[at == first for at in range(4)], [False] * 4]


@tries(max_examples=60, deadline=None)
@given(blocks, st.integers(0, 30), st.floats(0.1, 5))
def test_rows_within_a_cap_are_the_most_that_stay_below_it(blocks, count, epochs):
    source_stage = SourceStage(
        blocks, blocks.length, make_whole(blocks, 1).find_position_after(count)
    )
    limit = int(epochs * blocks.windows)
    rows = source_stage.count_rows_within(epochs)
    if source_stage.start_position.count_windows(blocks) > limit:
        assert rows == 0
    else:
        assert (
            source_stage.count_windows_after(rows)
            <= limit
            < source_stage.count_windows_after(rows + 1)
        )
    assert source_stage.count_rows_within(float("inf")) is None
