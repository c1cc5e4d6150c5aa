"""The post office between the driver and the ranks of a run: an actor on the head node.

The driver leaves there that an attempt should stop, the ranks leave their beats; neither waits for
the other. It knows no Ray and imports no torch: it is up before the first rank is.
"""

from collections.abc import Mapping

from trainrig.train.watch import Beat


class Control:
    """Beats and stop flags by attempt. Small enough that losing it (it restarts) loses nothing."""

    def __init__(self) -> None:
        self._attempt = 0
        self._beats: dict[int, Beat] = {}
        self._stop = False

    def exchange(self, attempt: int, beat: Beat) -> bool:
        """Leave `beat`; whether the ranks of `attempt` should stop: so should an outlived one."""
        if attempt < self._attempt:
            return True
        self._turn_to(attempt)
        self._beats[beat.rank] = beat
        return self._stop

    def look(self, attempt: int, stop: bool) -> Mapping[int, Beat]:
        """The newest beat of each rank of `attempt`, which should stop or not from now on."""
        self._turn_to(attempt)
        self._stop = stop
        return self._beats

    def _turn_to(self, attempt: int) -> None:
        if attempt > self._attempt:
            self._attempt, self._beats, self._stop = attempt, {}, False
