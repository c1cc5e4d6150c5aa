"""The plan of which rank sends what, for all shapes of runs, without ranks."""

import itertools
import math

import pytest

from trainrig.parallel.layout import DDP, FSDP, HSDP
from trainrig.parallel.sharding.sum_tree import SumPlan, TreeSum
from trainrig.tokens.batches import assign_micro_batches

MICRO_BATCHES = range(1, 18)
VIRTUAL = range(1, 10)
PARTS = range(1, 6)  # ranks of a context or an expert axis


class Text(str):
    """Value whose sum is the text of its brackets."""

    def add_(self, other):
        return Text(f"({self}+{other})")


def iterate_shapes():
    """Yield all numbers of micro-batches and of virtual workers that a step may have."""
    return [(count, virtual) for count in MICRO_BATCHES for virtual in VIRTUAL if virtual <= count]


def add_up(plan):
    """Return the brackets of a step's sum, as the ranks of `plan` add it."""
    replicas = plan.slices // plan.parts * plan.copies
    whole = TreeSum(*plan.tree)
    for replica, part in itertools.product(range(replicas), range(plan.parts)):
        own = TreeSum(*plan.tree)
        slots = assign_micro_batches(plan.micro_batches, plan.virtual, replica, replicas)
        added = None
        for slot in slots:
            if not slot.real:
                continue
            leaf = Text(f"{part}.{slot.index}")
            added = leaf if added is None else added.add_(leaf)
            if slot.closes or slot is slots[-1]:
                own.add(plan.find_span(part, slot.first, slot.index + 1), added)
                added = None
        for span, value in own.list_sums():
            whole.add(span, value)
    return whole.whole()


@pytest.mark.parametrize("parts", PARTS)
def test_senders_and_receivers_agree_for_all_numbers(parts):
    """The axis has `parts` ranks. Each rank of a tensor or pipeline axis has such a sum."""
    for count, virtual in iterate_shapes():
        for replicas in range(1, virtual + 1):
            plan = SumPlan(count, virtual, replicas * parts, parts)
            assert plan.find_fault() is None, plan


def test_copies_and_single_micro_batches_agree_for_all_numbers():
    for count, virtual in iterate_shapes():
        for slices, copies in itertools.product(range(1, 7), range(1, 4)):
            for peers in {1, slices}:
                plan = SumPlan(count, virtual, slices, copies=copies, peers=peers)
                assert plan.find_fault() is None, plan


@pytest.mark.parametrize("parts", PARTS)
def test_the_brackets_are_the_same_at_any_number_of_replicas(parts):
    for count, virtual in iterate_shapes():
        alone = add_up(SumPlan(count, virtual, parts, parts))
        for replicas in range(2, virtual + 1):
            assert add_up(SumPlan(count, virtual, replicas * parts, parts)) == alone


AXES = {
    "context": {"kind": "Gathered", "ranks": 3},
    "expert": {"ranks": 3},
    "tensor": {"ranks": 2},
    "pipeline": {"ranks": 2},
}
LAYOUTS = [
    FSDP(**{axis: AXES[axis] for axis in axes})
    for size in range(3)
    for axes in itertools.combinations(AXES, size)
    if axes != ("context", "expert")  # an unsupported combination
] + [FSDP(reduce="micro_batch"), HSDP(replicas=2), HSDP(replicas=2, reduce="micro_batch"), DDP()]


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_the_plans_of_a_layout_agree_at_all_its_numbers_of_workers(layout):
    for count, replicas in itertools.product((1, 3, 5, 6, 7, 12, 17), range(1, 5)):
        workers = layout.unit * replicas
        first, *others = layout.plan_sums(workers, count, min(count, 9))
        assert first.slices * first.copies * layout.tensor_ranks * layout.pipeline_ranks == workers
        assert first.parts == math.prod(
            axis.ranks for axis in (layout.context, layout.expert) if axis
        )
        assert len(others) == (layout.expert is not None)
        for plan in (first, *others):
            assert plan.find_fault() is None, plan


def test_the_sum_of_parts_is_that_of_the_sums_of_each():
    assert add_up(SumPlan(3, 3, 2, 2)) == "(((0.0+0.1)+0.2)+((1.0+1.1)+1.2))"
    assert add_up(SumPlan(2, 2, 3, 3)) == "(((0.0+0.1)+(1.0+1.1))+(2.0+2.1))"
    assert add_up(SumPlan(3, 1, 2, 2)) == "(((0.0+0.1)+0.2)+((1.0+1.1)+1.2))"


def test_a_tree_that_mixes_parts_is_a_fault(monkeypatch):
    """The faulty tree covers the micro-batches of both parts, as an earlier version did."""
    monkeypatch.setattr(SumPlan, "tree", (6, 6))
    fault = SumPlan(3, 3, 2, 2).find_fault()
    assert fault.startswith("rank 0 has the sums [[(0, 2), (2, 3)]], and the others expect")
    monkeypatch.setattr(SumPlan, "tree", (8, 8))
    assert SumPlan(4, 4, 2, 2).find_fault() is None
