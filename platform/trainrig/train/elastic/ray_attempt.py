"""One attempt of a crew: what became of its ranks, as its supervisor learns it."""

import pickle
import threading
import time
from collections.abc import Callable, Mapping, Set
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

from trainrig.processes.fork_server import MEMORY_RAN_OUT
from trainrig.processes.heartbeats import Beat
from trainrig.train.elastic.failure_cause import cause, follows_another, last_line, out_of_memory
from trainrig.train.elastic.ipc import Raised
from trainrig.train.elastic.messages import End, Order, Word
from trainrig.train.elastic.restart_policy import Failure
from trainrig.train.elastic.worker_group import Crew
from trainrig.train.run.run_folder import Attempt, RunFolder

ANSWER = 1.0  # s for the post office, beyond what it was asked to wait
AGAIN = 0.2  # s until one that was lost is asked again
AT_ONCE = 0.05  # s in which the ends of ranks that have one cause come in
# s in which Ray sees that a keeper is gone, after other ranks lost their connection to its rank.
BLAME_WITHIN = 2.0
LOOK_FOR_BLAME = 0.1  # s between two looks for that
# s for keepers to end their ranks and stand by, after which they are killed as well; and for each,
# which the post office takes 0.8 ms for (tests/benchmarks/test_control_plane.py).
STAND_WITHIN = 2.0
STAND_A_RANK = 0.001


class RayGroup:
    """See Group."""

    def __init__(
        self,
        folder: RunFolder,
        attempt: Attempt,
        control: Any,
        crew: Crew,
        answer: Callable[[Set[str]], bool],
    ) -> None:
        """`control`: the handle of the Control actor; `answer`: whether those nodes all do."""
        self._folder, self._attempt = folder, attempt
        self._control, self._crew, self._answer = control, crew, answer
        self._word = Word.TRAIN
        self._order: Order | None = None
        self._beats: Mapping[int, Beat] = {}
        self._ends: Mapping[int, End] = {}
        self._lost_since: float | None = None
        self._killed: set[tuple[str, int]] = set()  # by node and pid
        self._killed_since: float | None = None
        self._patience = STAND_WITHIN + STAND_A_RANK * crew.workers

    def order(self, work: bytes) -> None:
        """Have a crew that stands by do `work`."""
        crew = self._crew
        self._order = Order(crew.number, self._attempt.number, work, crew.meeting)
        crew.stands_by = False
        self._control.give.remote(self._order)

    def ended(self, wait: float) -> bool:
        """See Group."""
        until = time.monotonic() + wait
        while not self._failed():
            left = until - time.monotonic()
            if left <= 0:
                return self._crew.over()
            self._look(min(left, LOOK_FOR_BLAME) if self._ends else left)
        self._look(AT_ONCE)
        return True

    def failure(self) -> Failure | None:
        """See Group."""
        if not self._ends and self._crew.over() and self._crew.error() is None:
            return None
        # Here: who imports Ray Train imports pandas, too.
        from ray.exceptions import OutOfMemoryError
        from ray.train import TrainingFailedError
        from ray.train.v2._internal.exceptions import WorkerHealthCheckFailedError
        from ray.train.v2.api.exceptions import WorkerGroupError

        raised = {r: _own(end.how) for r, end in self._ends.items() if isinstance(end.how, Raised)}
        dead = {r: end.how for r, end in self._ends.items() if isinstance(end.how, str)}
        step = max((beat.step for beat in self._beats.values()), default=0)
        step = max(step, self._attempt.resumed_step)
        error = self._crew.error() if self._crew.over() else None
        if isinstance(error, WorkerGroupError):
            for rank, each in error.worker_failures.items():
                if isinstance(each, WorkerHealthCheckFailedError):
                    dead[rank] = self._how_keeper_died(rank)
                else:
                    raised.setdefault(rank, each)
        elif error and not self._has_own_reason():
            if not isinstance(error, TrainingFailedError) and not self._crew.conductor_died():
                raise error
            problem = f"Ray's controller of the attempt failed: {last_line(error)}"
            memory = isinstance(error, OutOfMemoryError)
            if memory:
                problem = out_of_memory(str(error))
            return Failure(problem, "Ray", step, memory=memory)
        if not raised and not dead:
            return None
        failure = cause(raised, dead, self._raised_at(), step)
        return replace(failure, seen_by="Ray" if error else "keepers")

    def beats(self) -> Mapping[int, Beat]:
        """See Group."""
        return self._beats

    def ask_to_stop(self) -> None:
        """See Group."""
        self._word = Word.STOP
        self._control.look.remote(self._attempt.number, self._word, 0, 0.0)

    def kill(self) -> None:
        """See Group. The ranks first: a keeper that does not say so soon stands still as well."""
        now = time.monotonic()
        self._killed_since = self._killed_since or now
        self._kill(keepers_too=now - self._killed_since > self._patience)

    def end_soon(self) -> None:
        """Have every rank ended, as far as one can be told, by a Ray that hardly does anything."""
        self._word = Word.END
        self._control.look.remote(self._attempt.number, self._word, 0, 0.0)
        self._kill(keepers_too=True)

    def release(self) -> None:
        """See Group. Keepers that all stand by are kept for the next attempt."""
        self._word = Word.END
        until = time.monotonic() + self._patience
        while not self._crew.over() and not self._all_ended():
            left = until - time.monotonic()
            if left <= 0 or self._node_gone():
                self._kill(keepers_too=True)
                break
            self._look(min(left, LOOK_FOR_BLAME), ends=self._crew.workers - 1)
        if self._all_ended() and not self._crew.over():
            self._crew.stand_by(self._ends)
        else:
            self._crew.free()

    def _how_keeper_died(self, rank: int) -> str:
        """As far as its node tells: not even Ray knows which signal it was."""
        node, beat = self._crew.nodes.get(rank), self._beats.get(rank)
        if node is None or beat is None:
            return "its Ray worker died before it had said anything"
        if not self._answer({node}):
            return f"its node is lost ({node[:8]})"
        if self._crew.ended_for_memory(node, beat.pids[-1]):
            return f"its Ray worker was ended, as {MEMORY_RAN_OUT} on its node ({node[:8]})"
        return "its Ray worker was killed or crashed; its node is well, and has memory"

    def _failed(self) -> bool:
        """Whether there is a reason not to wait any longer."""
        if self._crew.over() or self._all_ended() or self._has_own_reason():
            return True
        if not self._ends:
            return False
        now = time.monotonic()
        self._lost_since = self._lost_since or now
        return now - self._lost_since > BLAME_WITHIN or self._node_gone()

    def _node_gone(self) -> bool:
        """Ray believes in a dead node for some seconds more."""
        return not self._answer(set(self._crew.nodes.values()))

    def _all_ended(self) -> bool:
        return len(self._ends) == self._crew.workers

    def _has_own_reason(self) -> bool:
        """Whether a rank ended of itself, and not since another did."""
        hows = [end.how for end in self._ends.values()]
        return any(isinstance(how, str) or not follows_another(how.line) for how in hows)

    def _look(self, wait: float, ends: int | None = None) -> None:
        """Learn what is new at the post office: as soon as more ranks have ended than so many (if
        not said: than are known to have), or the crew is no more, or after `wait` seconds.

        In a thread of its own: Ray swallows some of what signals raise in its code.
        """
        looked: Future[None] = Future()

        def look() -> None:
            try:
                self._learn(wait, len(self._ends) if ends is None else ends)
                looked.set_result(None)
            except BaseException as error:
                looked.set_exception(error)

        threading.Thread(target=look, name="look", daemon=True).start()
        looked.result()

    def _learn(self, wait: float, ends: int) -> None:
        import ray
        import ray.exceptions

        asked = self._control.look.remote(self._attempt.number, self._word, ends, wait)
        news = [asked] if self._crew.over() else [asked, self._crew.fit]
        if asked not in ray.wait(news, timeout=wait + ANSWER)[0]:
            return
        try:
            seen = ray.get(asked)
        except ray.exceptions.RayActorError:  # Ray is starting another, which knows nothing
            time.sleep(min(wait, AGAIN))
            if self._order:
                self._control.give.remote(self._order)
            return
        self._beats = seen.beats or self._beats
        self._ends = {**self._ends, **seen.ends}
        self._crew.nodes.update({rank: beat.node for rank, beat in self._beats.items()})

    def _kill(self, keepers_too: bool) -> None:
        wanted = {
            (beat.node, pid)
            for beat in self._beats.values()
            for pid in (beat.pids if keepers_too else beat.pids[:1])
        }
        self._crew.kill(wanted - self._killed)
        self._killed |= wanted

    def _raised_at(self) -> Mapping[int, int]:
        """Steps done by each rank when it raised."""
        return {
            event["rank"]: event["step"]
            for event in self._folder.events()
            if event["event"] == "worker_raised" and event["attempt"] == self._attempt.number
        }


def _own(raised: Raised) -> Exception:
    """What the rank itself raised."""
    try:
        own: Exception = pickle.loads(raised.error)
    except Exception:  # made of what this machine lacks
        return RuntimeError(raised.line)
    return own
