"""What all ranks decide together, though only some of them may know of it."""

import time
from collections.abc import Callable
from datetime import timedelta

import torch
import torch.distributed as dist

# Share of the time that a stop may take, between two questions whether one is requested. A request
# is sent with the next question and its answer is read with the one after. The rest is for the
# micro-batch under way, and to save.
BETWEEN_QUESTIONS = 0.125


class StopConsensus:
    """Yes or no, the same answer on every rank.

    It has a gloo group of its own: a question asked between two steps on a GPU neither waits for
    the GPU nor gets between the collectives of the gradients.
    """

    def __init__(self, timeout: timedelta) -> None:
        """Every rank must call it. A rank that is not heard for `timeout` is taken for dead."""
        self.alone = dist.get_world_size() == 1
        self._group = None if self.alone else dist.new_group(backend="gloo", timeout=timeout)

    def any(self, mine: bool) -> bool:
        """Whether any rank says yes; every rank must ask."""
        return self.any_and_most(mine, 0.0)[0]

    def any_and_most(self, mine: bool, number: float) -> tuple[bool, float]:
        """Whether any rank says yes, and the largest `number` of all; every rank must ask."""
        return self.begin(mine, number)()

    def begin(self, mine: bool, number: float) -> Callable[[], tuple[bool, float]]:
        """Ask the same without waiting: what is given back waits for the answer, and gives it."""
        if self.alone:
            return lambda: (mine, number)
        answer = torch.tensor([float(mine), number], dtype=torch.float64)
        work = dist.all_reduce(answer, dist.ReduceOp.MAX, group=self._group, async_op=True)

        def hear() -> tuple[bool, float]:
            work.wait()
            found, most = answer.tolist()
            return bool(found), most

        return hear


class StopQuestions:
    """Asks all ranks whether to stop: once a step, and in long steps so often that a stop takes no
    longer than it may.

    A question is a collective of all ranks, through the host: a thousand ranks would wait for each
    other. So no rank waits: the answer is read when the next question is due, a step later, unless
    a micro-batch takes so long that it would come too late. How often they ask, and whether they
    wait, follows from what they agreed on before, the seconds of the slowest: so all do the same
    before the same micro-batches.
    """

    def __init__(
        self,
        consensus: StopConsensus,
        within: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`within`: seconds that a stop may take."""
        self._consensus, self._between, self._clock = consensus, within * BETWEEN_QUESTIONS, clock
        self._step: int | None = None
        self._began = 0.0
        self._micro_batches = 0  # of this step so far
        self._since = 0  # micro-batches since the last question
        # Micro-batches between two, and whether answers are waited for: until a step was measured
        # each is asked for, and waited for.
        self._every, self._waits = 1, True
        # The question whose answer is still to come, and the micro-batches of the step it measures.
        self._open: tuple[Callable[[], tuple[bool, float]], int] | None = None

    def ask(self, step: int, mine: bool) -> bool:
        """Whether any rank wants to stop; every rank must call it before each micro-batch of
        `step`."""
        if self._consensus.alone:
            return mine
        seconds, before = 0.0, 0
        if first := step != self._step:
            now, before = self._clock(), self._micro_batches
            seconds = now - self._began if before else 0.0
            self._step, self._began, self._micro_batches = step, now, 0
        self._micro_batches += 1
        self._since += 1
        if not first and self._since < self._every:
            return False
        self._since = 0
        if self.settle():
            return True
        self._open = self._consensus.begin(mine, seconds), before
        return self._waits and self.settle()

    def settle(self) -> bool:
        """Hear the answer that is still to come, if there is one: whether any rank wants to stop.
        Every rank must call it, at the end at the latest."""
        if self._open is None:
            return False
        (heard, before), self._open = self._open, None
        answer, slowest = heard()
        if before:
            fitting = self._between * before / max(slowest, 1e-9)
            self._every, self._waits = max(1, int(fitting)), fitting < 1
        return answer
