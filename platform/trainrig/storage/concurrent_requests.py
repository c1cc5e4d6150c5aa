"""Requests to a bucket that are sent side by side, because each one waits for the bucket's answer.

A request for a small object takes some 20 ms, in which a thread only waits.
"""

import contextvars
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

THREADS = 16
WINDOW = 1_000  # results that may wait in memory for their turn

Item = TypeVar("Item")
Result = TypeVar("Result")


def map_concurrently(action: Callable[[Item], Result], items: Sequence[Item]) -> Iterator[Result]:
    """Yield `action(item)` for each item, in order; up to THREADS of them run at the same time.

    The first error, in the order of the items, is raised. Threads see the caller's context, so a
    `retries.briefly` block holds for them too.
    """
    context = contextvars.copy_context()

    def act(item: Item) -> Result:
        return context.copy().run(action, item)

    with ThreadPoolExecutor(min(THREADS, max(1, len(items)))) as threads:
        for begin in range(0, len(items), WINDOW):
            yield from threads.map(act, items[begin : begin + WINDOW])
