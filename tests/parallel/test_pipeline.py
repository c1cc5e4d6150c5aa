import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainrig.flops import count_layer_flops
from trainrig.models.architecture.decoder_config import DecoderConfig
from trainrig.parallel.axes.pipeline_passes import GRADIENTS_UNDER_WAY
from trainrig.parallel.axes.pipeline_schedule import (
    Turn,
    compute_idle_share,
    cut_for_ranks,
    cut_layers,
    describe_cut,
    find_held_at_once,
    plan_turns,
)

STAGES = st.integers(1, 8)
COUNTS = st.integers(1, 20)
CHUNKS = st.integers(2, 4)
SCHEDULES = st.sampled_from(["1F1B", "GPipe"])
SIZES = {"channels": 64, "heads": 4, "positions": 32}


def count_held(order):
    """Return the number of micro-batches between their two passes, after each turn."""
    return list(itertools.accumulate(1 if turn.forward else -1 for turn in order))


@given(stages=STAGES, count=COUNTS, schedule=SCHEDULES)
def test_each_micro_batch_goes_forward_then_backward_in_the_order_of_numbers(
    stages, count, schedule
):
    for stage in range(stages):
        order = plan_turns(schedule, stage, stages, count)
        for forward in (True, False):
            assert [turn.number for turn in order if turn.forward == forward] == list(range(count))
        assert min(count_held(order)) >= 0
        most = count if schedule == "GPipe" else min(count, stages - stage)
        assert max(count_held(order)) == len(find_held_at_once(order)) == most


@given(ranks=st.integers(2, 6), count=COUNTS, chunks=CHUNKS)
def test_each_interleaved_stage_takes_micro_batches_in_the_order_of_numbers(ranks, count, chunks):
    for rank in range(ranks):
        order = plan_turns("interleaved", rank, ranks, count, chunks)
        for chunk, forward in itertools.product(range(chunks), (True, False)):
            own = [own_turn.number for own_turn in order if own_turn[::2] == (forward, chunk)]
            assert own == list(range(count))
        for turn in order:
            ahead = turn._replace(forward=True)
            assert order.index(ahead) <= order.index(turn)
        assert order[-1] == Turn(False, count - 1, 0)
        if count % ranks == 0:
            warming = 2 * (ranks - rank - 1) + (chunks - 1) * ranks + 1
            assert len(find_held_at_once(order)) == min(count * chunks, warming)


def play(orders, chunks, seconds=(1, 1), under_way=GRADIENTS_UNDER_WAY):
    """Return when the last rank ends, by brute force, or None for a deadlock.

    Each rank takes its next turn as soon as its inputs are there. At most `under_way` of its
    gradients wait for the backward pass of an earlier stage.
    """
    ranks = len(orders)
    done = {}
    now = [0] * ranks
    at = [0] * ranks
    sent = [[] for _ in orders]

    def take(rank):
        forward, number, chunk = orders[rank][at[rank]]
        stage = chunk * ranks + rank
        needs = None if (stage, forward) == (0, True) else (forward, stage - 1, number)
        if not forward:
            last = stage == ranks * chunks - 1
            needs = (True, stage, number) if last else (False, stage + 1, number)
            sent[rank] = [result for result in sent[rank] if result not in done]
            if stage and len(sent[rank]) >= under_way:
                return False
        if needs and needs not in done:
            return False
        now[rank] = max(now[rank], done.get(needs, 0)) + seconds[not forward]
        done[forward, stage, number] = now[rank]
        if stage and not forward:
            sent[rank].append((False, stage - 1, number))
        at[rank] += 1
        return True

    moved = True
    while moved:
        moved = False
        for rank in range(ranks):
            while at[rank] < len(orders[rank]) and take(rank):
                moved = True
    return max(now) if all(map(len, orders)) and at == list(map(len, orders)) else None


@given(stages=STAGES, count=COUNTS, schedule=SCHEDULES)
def test_stages_wait_for_the_share_of_a_step_that_the_bubble_is(stages, count, schedule):
    """Simulated passes take one unit each, and results arrive at the next stage a unit later."""
    length = play([plan_turns(schedule, stage, stages, count) for stage in range(stages)], 1)
    assert (length - 2 * count) / length == pytest.approx(compute_idle_share(stages, count))


@given(ranks=st.integers(2, 6), rounds=st.integers(1, 4), chunks=CHUNKS)
def test_interleaved_stages_wait_for_a_share_of_what_one_each_does(ranks, rounds, chunks):
    """The share is (P - 1) / (chunks M) of the compute time (arXiv:2104.04473, section 2.2.2).

    Backward passes take as long as forward passes, or twice as long.
    """
    count = rounds * ranks
    orders = [plan_turns("interleaved", rank, ranks, count, chunks) for rank in range(ranks)]
    for seconds in ((1, 1), (1, 2)):
        length = play(orders, chunks, seconds)
        computing = count * chunks * sum(seconds)
        bubble = (length - computing) / computing
        assert bubble == pytest.approx((ranks - 1) / (chunks * count))
        assert (length - computing) / length == pytest.approx(
            compute_idle_share(ranks, count, chunks)
        )


@given(ranks=st.integers(2, 6), count=COUNTS, chunks=CHUNKS)
def test_interleaved_stages_never_wait_for_each_other(ranks, count, chunks):
    """This holds for any number of micro-batches, as replicas come and go."""
    orders = [plan_turns("interleaved", rank, ranks, count, chunks) for rank in range(ranks)]
    assert play(orders, chunks) is not None


def test_with_one_gradient_under_way_interleaved_stages_would_wait_for_each_other():
    orders = [plan_turns("interleaved", rank, 2, 4, 2) for rank in range(2)]
    assert play(orders, 2, under_way=1) is None


def test_one_stage_takes_each_micro_batch_forward_and_backward():
    assert plan_turns("1F1B", 0, 1, 2) == [(True, 0, 0), (False, 0, 0), (True, 1, 0), (False, 1, 0)]


def test_stages_go_round_the_ranks():
    """Figure 4 of arXiv:2104.04473, for two ranks with two stages each."""
    found = plan_turns("interleaved", 1, 2, 2, 2)
    words = [f"{'F' if turn.forward else 'B'}{turn.chunk}{turn.number}" for turn in found]
    assert words == ["F00", "F01", "F10", "B10", "F11", "B11", "B00", "B01"]
    model = DecoderConfig(layers=6, vocabulary=64, **SIZES)
    assert cut_for_ranks(model, 2, 2) == ((range(1), range(3, 5)), (range(1, 3), range(5, 6)))


def test_layers_are_cut_by_what_they_cost_and_the_head_is_the_last_stages():
    small = DecoderConfig(layers=6, vocabulary=64, **SIZES)
    assert cut_layers(small, 2) == (range(0, 3), range(3, 6))
    (layer, *_), head = count_layer_flops(DecoderConfig(layers=6, vocabulary=1024, **SIZES))
    assert head == 2 * 1024 * 64 and layer < head < 2 * layer
    large = DecoderConfig(layers=6, vocabulary=1024, **SIZES)
    assert cut_layers(large, 2) == (range(0, 4), range(4, 6))
    assert describe_cut(large, 2, 1).startswith("layers 0-3 (")


@given(layers=st.integers(1, 24), stages=st.integers(1, 8), vocabulary=st.sampled_from([64, 4096]))
def test_no_other_cut_has_a_cheaper_dearest_stage(layers, stages, vocabulary):
    if stages > min(layers, 4):
        return
    model = DecoderConfig(layers=layers, vocabulary=vocabulary, **SIZES)
    costs, head = count_layer_flops(model)

    def dearest(cut):
        spent = [sum(costs[stage.start : stage.stop]) for stage in cut]
        return max(*spent[:-1], spent[-1] + head) if len(spent) > 1 else spent[0] + head

    found = cut_layers(model, stages)
    assert [n for stage in found for n in stage] == list(range(layers)) and all(map(len, found))
    ends = itertools.combinations(range(1, layers), stages - 1)
    cuts = ([range(a, b) for a, b in itertools.pairwise((0, *e, layers))] for e in ends)
    assert dearest(found) == pytest.approx(min(map(dearest, cuts)), rel=1e-6)
