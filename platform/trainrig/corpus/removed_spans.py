"""Removal of spans from a text, reversible because the removed text is kept.

Positions are in characters (code points) of the original text.
"""

import bisect
import dataclasses
import itertools
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, order=True)
class RemovedSpan:
    """A span to remove, from `start` up to `end`, and the name `by` of the step that removes it."""

    start: int
    end: int
    by: str

    def __post_init__(self) -> None:
        if not 0 <= self.start < self.end:
            raise ValueError(
                f"a removed span from {self.start} to {self.end} is not a span of a text"
            )


@dataclass(frozen=True, order=True)
class Removed:
    """Text removed from position `at` of the original text by the step `by`."""

    at: int
    text: str
    by: str


def remove_spans(text: str, cuts: Iterable[RemovedSpan]) -> tuple[str, list[Removed]]:
    """Return `text` without the spans of `cuts`, and the removed spans in order.

    The cuts may come in any order and may overlap; their union is removed. A character in several
    cuts belongs to the cut that starts first, then to the longest, then to the lowest step name;
    the other cuts keep their remaining characters. Touching pieces of one step are merged.

    Raises ValueError if a cut ends after the text.
    """
    apart = make_disjoint(cuts)
    if apart and apart[-1].end > len(text):
        raise ValueError(
            f"a removed span ends at {apart[-1].end}, but the text has {len(text)} characters"
        )
    kept = []
    place = 0
    for cut in apart:
        kept.append(text[place : cut.start])
        place = cut.end
    kept.append(text[place:])
    return "".join(kept), [Removed(c.start, text[c.start : c.end], c.by) for c in apart]


def restore(text: str, removed: Iterable[Removed]) -> str:
    """Return the original text that `remove_spans` split into `text` and `removed`."""
    pieces = []
    place = length = 0  # positions in `text` and in the restored text
    for span in sorted(removed):
        between = span.at - length
        pieces += [text[place : place + between], span.text]
        place += between
        length = span.at + len(span.text)
    return "".join([*pieces, text[place:]])


def map_to_original(cuts: Iterable[RemovedSpan], removed: Iterable[Removed]) -> list[RemovedSpan]:
    """Map the spans of a later step from the shortened text to the original text.

    A span across a position where text was `removed` becomes several spans around the removed text.
    """
    spans = sorted(removed)
    # Each remaining piece of text has a shift, and a start in the shortened text.
    shifts = [0, *itertools.accumulate(len(span.text) for span in spans)]
    starts = [0, *(span.at - shift for span, shift in zip(spans, shifts, strict=False))]
    carried = []
    for cut in cuts:
        first = bisect.bisect_right(starts, cut.start) - 1
        end = bisect.bisect_left(starts, cut.end)
        edges = [cut.start, *starts[first + 1 : end], cut.end]
        carried += [
            RemovedSpan(begin + shift, stop + shift, cut.by)
            for (begin, stop), shift in zip(
                itertools.pairwise(edges), shifts[first:end], strict=True
            )
            if begin < stop
        ]
    return carried


def make_disjoint(cuts: Iterable[RemovedSpan]) -> list[RemovedSpan]:
    """Return the same characters as disjoint spans in order, by the rule of `remove_spans`."""
    apart: list[RemovedSpan] = []
    for cut in sorted(cuts, key=lambda c: (c.start, -c.end, c.by)):
        last = apart[-1] if apart else None
        if last and cut.end <= last.end:
            continue
        if last and cut.start <= last.end and cut.by == last.by:
            apart[-1] = dataclasses.replace(last, end=cut.end)
        else:
            start = max(cut.start, last.end) if last else cut.start
            apart.append(dataclasses.replace(cut, start=start))
    return apart
