"""The post office between the driver and the ranks of a run: an actor on the head node.

The driver leaves there what an attempt should do and the keepers what became of their ranks; nobody
waits for another who does not want to. It knows no Ray and imports no torch: it is up before the
first rank is. Small enough that losing it (it restarts) loses nothing: who asks says all anew.
"""

import asyncio

from trainrig.processes.heartbeats import Beat
from trainrig.train.elastic.messages import End, Order, Seen, Word


class Control:
    """Beats, ends and words by attempt, orders by crew. For calls of one event loop."""

    def __init__(self) -> None:
        self._attempt = 0
        self._beats: dict[int, Beat] = {}
        self._ends: dict[int, End] = {}
        self._word = Word.TRAIN
        self._order: Order | None = None
        self._dismissed = 0  # the newest crew that has nothing to do any more
        # One for each kind of waiting: thousands of keepers must not wake for each other's news.
        self._an_end, self._a_word, self._an_order = _Bell(), _Bell(), _Bell()

    async def exchange(self, attempt: int, beat: Beat) -> bool:
        """Leave `beat`; whether the ranks of `attempt` should stop: so should an outlived one."""
        if attempt < self._attempt:
            return True
        self._turn_to(attempt)
        self._beats[beat.rank] = beat
        return self._word != Word.TRAIN

    async def look(self, attempt: int, word: Word, ends: int, wait: float) -> Seen:
        """What is here of `attempt`, to whose ranks `word` is said from now on.

        As soon as there are more than so many `ends`, or after `wait` seconds.
        """
        self._turn_to(attempt)
        if attempt == self._attempt and word != self._word:
            self._word = word
            self._a_word.ring()
        try:
            async with asyncio.timeout(wait):
                while attempt == self._attempt and len(self._ends) <= ends:
                    await self._an_end.rung()
        except TimeoutError:
            pass
        return Seen(self._beats, self._ends) if attempt == self._attempt else Seen({}, {})

    async def told_to_end(self, attempt: int) -> None:
        """Return once the ranks of `attempt` should be no more."""
        while attempt > self._attempt or (attempt == self._attempt and self._word != Word.END):
            await self._a_word.rung()

    async def next_order(self, crew: int, attempt: int, end: End) -> Order | None:
        """Leave the `end` of a rank of `attempt`; what follows, once that is decided.

        None: nothing; `crew` is dismissed.
        """
        self._turn_to(attempt)
        if attempt == self._attempt:
            self._ends[end.rank] = end
            self._an_end.ring()
        while self._dismissed < crew:
            if self._order and self._order.crew == crew and self._order.attempt > attempt:
                return self._order
            await self._an_order.rung()
        return None

    async def give(self, order: Order) -> None:
        """To each keeper of its crew. May be said again."""
        self._order = order
        self._an_order.ring()

    async def dismiss(self, crew: int) -> None:
        """Let its keepers go, and those of all before it."""
        self._dismissed = max(crew, self._dismissed)
        self._an_order.ring()

    def _turn_to(self, attempt: int) -> None:
        if attempt > self._attempt:
            self._attempt, self._beats, self._ends = attempt, {}, {}
            self._word = Word.TRAIN
            self._a_word.ring()
            self._an_end.ring()


class _Bell:
    """Wakes all who wait for it."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def ring(self) -> None:
        self._event.set()
        self._event = asyncio.Event()

    async def rung(self) -> None:
        """The next time."""
        await self._event.wait()
