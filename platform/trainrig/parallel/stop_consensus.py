"""Stop consensus: all ranks agree on a flag that only some of them may have set."""

import time
from collections.abc import Callable
from datetime import timedelta

import torch
import torch.distributed as dist

# Fraction of the time limit for a stop between two checks for a stop request. A request is sent
# with the next check, and its answer is read with the one after. The remaining time is for the
# running micro-batch and the checkpoint.
BETWEEN_QUESTIONS = 0.125


class StopConsensus:
    """Collective yes-or-no decision with the same answer on every rank.

    It uses a separate gloo group: a question between two steps on a GPU neither waits for the GPU
    nor interferes with the collectives of the gradients.
    """

    def __init__(self, timeout: timedelta) -> None:
        """Form the gloo group. Collective.

        A rank that does not answer within `timeout` counts as dead.
        """
        self.alone = dist.get_world_size() == 1
        self._group = None if self.alone else dist.new_group(backend="gloo", timeout=timeout)

    def any(self, mine: bool) -> bool:
        """Return whether any rank says yes. Collective."""
        return self.begin(mine, 0.0)()[0]

    def begin(self, mine: bool, number: float) -> Callable[[], tuple[bool, float]]:
        """Start to ask if any rank says yes, and the largest `number` of all ranks. Collective.

        The returned function waits for the answer.
        """
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
    """Schedule of stop checks: one a step, and more in long steps to keep stops within their limit.

    A check is a collective of all ranks through the host, and a thousand ranks would wait for each
    other. So no rank waits: the answer is read when the next check is due, a step later, unless
    micro-batches take so long that it would come too late. The interval of checks, and whether
    ranks wait, follow from the agreed time of the slowest rank, so all ranks check before the same
    micro-batches.
    """

    def __init__(
        self,
        consensus: StopConsensus,
        within: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`within`: seconds that a stop may take."""
        self._consensus = consensus
        self._between = within * BETWEEN_QUESTIONS
        self._clock = clock
        self._step: int | None = None
        self._began = 0.0
        self._micro_batches = 0  # micro-batches of this step so far
        self._since = 0  # micro-batches since the last question
        # Micro-batches between two checks, and whether ranks wait for the answer. Until a step was
        # measured, every micro-batch is preceded by a check whose answer is waited for.
        self._every = 1
        self._waits = True
        # The check without an answer yet, and the number of micro-batches in the step that it
        # times.
        self._open: tuple[Callable[[], tuple[bool, float]], int] | None = None

    def ask(self, step: int, mine: bool) -> bool:
        """Return whether any rank wants to stop.

        All ranks call it before each micro-batch of `step`.
        """
        if self._consensus.alone:
            return mine
        seconds = 0.0
        before = 0
        if first := step != self._step:
            now = self._clock()
            before = self._micro_batches
            seconds = now - self._began if before else 0.0
            self._step = step
            self._began = now
            self._micro_batches = 0
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
        """Wait for the outstanding answer, if any, and return whether any rank wants to stop.

        Collective; must be called at the latest at the end of the run.
        """
        if self._open is None:
            return False
        heard, before = self._open
        self._open = None
        answer, slowest = heard()
        if before:
            fitting = self._between * before / max(slowest, 1e-9)
            self._every = max(1, int(fitting))
            self._waits = fitting < 1
        return answer
