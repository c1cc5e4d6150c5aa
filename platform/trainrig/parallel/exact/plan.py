"""Plan of which sums the ranks of a step hand over to each other, and a check of the plan.

A rank *hands over* a sum by sending it to the ranks that add it to theirs. It has one *turn* to do
so in a step or, with `peers` above 1, one after each of its micro-batches.

A sender and its receivers must agree on the number of sums before the first byte travels. Both read
this plan, which depends on numbers alone, so it runs without torch and without ranks.
"""

from dataclasses import dataclass

from trainrig.parallel.exact.tree import Span, join_spans, plan_hand_over
from trainrig.tokens.batches import assign_micro_batches


@dataclass(frozen=True)
class SumPlan:
    """Plan of the sums that the ranks with slices of the same gradients hand over in a step.

    The leaves of the tree are the micro-batches of the first part, then those of the second, and so
    on. So the leaves that a rank adds up itself are neighbours.
    """

    micro_batches: int  # micro-batches of the global batch
    virtual: int  # number of virtual workers, at most `micro_batches`
    slices: int = 1  # ranks of a copy of the model, each of which has a slice of every gradient
    parts: int = 1  # neighbours among `slices` that each have a part of the same micro-batches
    copies: int = 1  # copies of the model
    peers: int = 1  # see tokens.batches.assign_micro_batches

    @property
    def tree(self) -> tuple[int, int, int]:
        """The numbers of leaves, runs and parts of the tree: the arguments of `TreeSum`."""
        return self.micro_batches * self.parts, self.virtual * self.parts, self.parts

    def find_span(self, part: int, first: int, after: int) -> Span:
        """Return the leaves of `part` for micro-batches from `first` up to, without, `after`."""
        begin = part * self.micro_batches
        return begin + first, begin + after

    def list_hand_over(self, copy: int, turn: int) -> list[list[Span]]:
        """Return the sums that each rank of `copy` hands over in turn `turn`, by rank."""
        found = []
        for rank in range(self.slices):
            spans = self._list_own(copy, rank)[turn]
            found.append([self.find_span(rank % self.parts, *span) for span in spans])
        return found

    def list_copies(self) -> list[list[Span]]:
        """Return the sums that each copy of the model has after its last turn, by copy."""
        found = []
        turns = len(self._list_own(0, 0))
        for copy in range(self.copies):
            ranks = [
                rank_spans
                for turn in range(turns)
                for rank_spans in self.list_hand_over(copy, turn)
            ]
            spans = [span for own in ranks for span in own]
            found.append(join_spans(spans, *self.tree))
        return found

    def find_fault(self) -> str | None:
        """Return in words why the plan does not add up, or None if it does.

        First the sums that each rank gets from its own micro-batches are compared with those that
        the others expect. Then all of them together must form one sum.
        """
        handed_over: list[Span] = []
        turns = len(self._list_own(0, 0))
        for copy in range(self.copies):
            awaited = [self.list_hand_over(copy, turn) for turn in range(turns)]
            for rank in range(self.slices):
                has = self._add_up_own(copy, rank)
                expected = [spans[rank] for spans in awaited]
                if has != expected:
                    number = copy * self.slices + rank
                    return f"rank {number} has the sums {has}, and the others expect {expected}"
                handed_over += [span for turn in has for span in turn]
        left = join_spans(handed_over, *self.tree)
        if left != [(0, self.tree[0])]:
            return f"the sums {left} are not one sum of {self.tree[0]} parts of micro-batches"
        return None

    def _list_own(self, copy: int, rank: int) -> tuple[tuple[Span, ...], ...]:
        """Return the micro-batches that a rank of `copy` hands over, by turn and place."""
        share = self._find_share(copy, rank)
        return plan_hand_over(self.micro_batches, self.virtual, *share, self.peers)

    def _add_up_own(self, copy: int, rank: int) -> list[list[Span]]:
        """Return the sums, by turn and place, that a rank has of the micro-batches it computes."""
        share = self._find_share(copy, rank)
        slots = assign_micro_batches(self.micro_batches, self.virtual, *share, self.peers)
        waiting: list[Span] = []
        found = []
        for number, slot in enumerate(slots):
            last = number == len(slots) - 1
            if slot.real and (slot.closes or last):
                waiting.append(self.find_span(rank % self.parts, slot.first, slot.index + 1))
            if last or self.peers > 1:
                found.append(join_spans(waiting, *self.tree))
                waiting = []
        return found

    def _find_share(self, copy: int, rank: int) -> tuple[int, int]:
        """Return which of how many replicas a rank of `copy` is part of."""
        replicas = self.slices // self.parts
        return copy * replicas + rank // self.parts, replicas * self.copies
