import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainrig.models.decoder_config import DecoderConfig
from trainrig.parallel.pipeline.cut import cut_layers, describe_cut, layer_flops
from trainrig.parallel.pipeline.schedule import idle_share, turns

STAGES, COUNTS = st.integers(1, 8), st.integers(1, 20)
SCHEDULES = st.sampled_from(["1F1B", "GPipe"])
SIZES = {"channels": 64, "heads": 4, "positions": 32}


def held(order):
    """Micro-batches between their passes after each turn."""
    return list(itertools.accumulate(1 if turn.forward else -1 for turn in order))


@given(
    stages=st.integers(1, 8), count=st.integers(1, 20), schedule=st.sampled_from(["1F1B", "GPipe"])
)
def test_each_micro_batch_goes_forward_then_backward_in_the_order_of_numbers(
    stages, count, schedule
):
    for stage in range(stages):
        order = turns(schedule, stage, stages, count)
        for forward in (True, False):
            assert [each.number for each in order if each.forward == forward] == list(range(count))
        assert min(held(order)) >= 0
        most = count if schedule == "GPipe" else min(count, stages - stage)
        assert max(held(order)) == most


@given(
    stages=st.integers(1, 8), count=st.integers(1, 20), schedule=st.sampled_from(["1F1B", "GPipe"])
)
def test_stages_wait_for_the_share_of_a_step_that_the_bubble_is(stages, count, schedule):
    """Played with passes of one unit each: what a stage sends is there a unit later."""
    orders = [list(turns(schedule, stage, stages, count)) for stage in range(stages)]
    done, now, at = {}, [0] * stages, [0] * stages
    while any(at[stage] < 2 * count for stage in range(stages)):
        moved = False
        for stage, order in enumerate(orders):
            while at[stage] < len(order):
                forward, number = order[at[stage]]
                beside = stage - 1 if forward else stage + 1
                needs = (forward, beside, number)
                if 0 <= beside < stages and needs not in done:
                    break
                now[stage] = max(now[stage], done.get(needs, 0)) + 1
                done[forward, stage, number] = now[stage]
                at[stage] += 1
                moved = True
        assert moved, "stages wait for each other"
    length = max(now)
    assert (length - 2 * count) / length == pytest.approx(idle_share(stages, count))


def test_one_stage_takes_each_micro_batch_forward_and_backward():
    assert turns("1F1B", 0, 1, 2) == [(True, 0), (False, 0), (True, 1), (False, 1)]


def test_layers_are_cut_by_what_they_cost_and_the_head_is_the_last_stages():
    small = DecoderConfig(layers=6, vocabulary=64, **SIZES)
    assert cut_layers(small, 2) == (range(0, 3), range(3, 6))
    (layer, *_), head = layer_flops(DecoderConfig(layers=6, vocabulary=1024, **SIZES))
    assert head == 2 * 1024 * 64 and layer < head < 2 * layer
    large = DecoderConfig(layers=6, vocabulary=1024, **SIZES)
    assert cut_layers(large, 2) == (range(0, 4), range(4, 6))
    assert describe_cut(large, 2).startswith("layers 0-3 (")


@given(layers=st.integers(1, 24), stages=st.integers(1, 8), vocabulary=st.sampled_from([64, 4096]))
def test_no_other_cut_has_a_cheaper_dearest_stage(layers, stages, vocabulary):
    if stages > min(layers, 4):
        return
    model = DecoderConfig(layers=layers, vocabulary=vocabulary, **SIZES)
    costs, head = layer_flops(model)

    def dearest(cut):
        spent = [sum(costs[each.start : each.stop]) for each in cut]
        return max(*spent[:-1], spent[-1] + head) if len(spent) > 1 else spent[0] + head

    found = cut_layers(model, stages)
    assert [n for each in found for n in each] == list(range(layers)) and all(map(len, found))
    ends = itertools.combinations(range(1, layers), stages - 1)
    cuts = ([range(a, b) for a, b in itertools.pairwise((0, *e, layers))] for e in ends)
    assert dearest(found) == pytest.approx(min(map(dearest, cuts)), rel=1e-6)
