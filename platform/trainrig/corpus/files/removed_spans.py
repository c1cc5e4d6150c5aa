"""Spans cut out of a text, kept so that the text can be had back as it was.

Places are in characters (code points) of the text before anything was cut.
"""

import bisect
import dataclasses
import itertools
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, order=True)
class RemovedSpan:
    """The span `start` up to `end` is to go, and `by` which step."""

    start: int
    end: int
    by: str

    def __post_init__(self) -> None:
        if not 0 <= self.start < self.end:
            raise ValueError(f"a cut from {self.start} to {self.end} is no span of a text")


@dataclass(frozen=True, order=True)
class Removed:
    """What was cut out: `text` began at `at` of the text as it was."""

    at: int
    text: str
    by: str


def remove_spans(text: str, cuts: Iterable[RemovedSpan]) -> tuple[str, list[Removed]]:
    """`text` without the spans of `cuts`, and the spans that went, in their order.

    Cuts come in any order and may overlap: what is removed is their union. A character that
    several claim goes to the cut that starts first, of those to the longest, of equals to the
    lowest name; what is then left of the others goes to them. Pieces of one step that touch are
    one. Raises ValueError for a cut that ends after the text.
    """
    apart = make_disjoint(cuts)
    if apart and apart[-1].end > len(text):
        raise ValueError(f"a cut ends at {apart[-1].end} of a text of {len(text)} characters")
    kept = []
    place = 0
    for each in apart:
        kept.append(text[place : each.start])
        place = each.end
    kept.append(text[place:])
    return "".join(kept), [Removed(c.start, text[c.start : c.end], c.by) for c in apart]


def restore(text: str, removed: Iterable[Removed]) -> str:
    """The text of which `remove_spans` left `text` and `removed`."""
    pieces = []
    place = length = 0  # in `text`; of what is restored
    for span in sorted(removed):
        between = span.at - length
        pieces += [text[place : place + between], span.text]
        place += between
        length = span.at + len(span.text)
    return "".join([*pieces, text[place:]])


def map_to_original(cuts: Iterable[RemovedSpan], removed: Iterable[Removed]) -> list[RemovedSpan]:
    """`cuts` of what was left of a text, as cuts of the text as it was: those of a later step.

    One that spans a place where something was `removed` becomes several, about it.
    """
    spans = sorted(removed)
    # Of each stretch that was left: how far it is shifted, and where it starts in what was left.
    shifts = [0, *itertools.accumulate(len(span.text) for span in spans)]
    starts = [0, *(span.at - shift for span, shift in zip(spans, shifts, strict=False))]
    carried = []
    for each in cuts:
        first = bisect.bisect_right(starts, each.start) - 1
        end = bisect.bisect_left(starts, each.end)
        edges = [each.start, *starts[first + 1 : end], each.end]
        carried += [
            RemovedSpan(begin + shift, stop + shift, each.by)
            for (begin, stop), shift in zip(
                itertools.pairwise(edges), shifts[first:end], strict=True
            )
            if begin < stop
        ]
    return carried


def make_disjoint(cuts: Iterable[RemovedSpan]) -> list[RemovedSpan]:
    """The same spans, as `remove_spans` has them: each character claimed by one only, in order."""
    apart: list[RemovedSpan] = []
    for each in sorted(cuts, key=lambda c: (c.start, -c.end, c.by)):
        last = apart[-1] if apart else None
        if last and each.end <= last.end:
            continue
        if last and each.start <= last.end and each.by == last.by:
            apart[-1] = dataclasses.replace(last, end=each.end)
        else:
            start = max(each.start, last.end) if last else each.start
            apart.append(dataclasses.replace(each, start=start))
    return apart
