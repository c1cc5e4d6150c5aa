"""Search for the record of a split that kills the process that works on it."""

import sys
from collections.abc import Callable

Probe = Callable[[int, int], int | None]
"""Function that processes the records from the first number to before the last.

Returns how many records were read, or None if the process was killed.
"""


def find_crashing_record(probe: Probe, tries: int) -> int | None:
    """Return the number of the first record that kills its process, or None.

    The records are halved until one is left, which must then kill its process alone, `tries` times.
    The result is None if no single record does so. Then the process is killed by reading the
    records, or by many of them together.
    """
    count = probe(sys.maxsize, sys.maxsize)
    if not count:
        return None
    begin = 0
    end = count
    while end - begin > 1:
        middle = (begin + end) // 2
        if probe(begin, middle) is None:
            end = middle
        else:
            begin = middle
    kills = all(probe(begin, begin + 1) is None for _ in range(tries))
    return begin if kills else None
