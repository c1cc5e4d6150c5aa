"""The supervisor, with a scripted cluster and a simulated clock."""

import dataclasses
import os
import shutil
import signal
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainrig.errors import ClusterError, ClusterLost, DataError, Unfinished
from trainrig.parallel.layout import FSDP
from trainrig.processes.heartbeats import Heartbeat
from trainrig.processes.stop_file import StopRequests
from trainrig.train.checkpoint import Checkpoint
from trainrig.train.elastic import supervise as module
from trainrig.train.elastic.restart_policy import Failure, WorkerNode
from trainrig.train.elastic.supervise import supervise
from trainrig.train.retention import Checkpoints
from trainrig.train.run.run_folder import RunFolder, TrainingAttempt
from trainrig.train.run_file.worker_settings import Faults, parse_bounds

STEPS = 12


class Clock:
    """Clock that advances only when code waits, with events at given times."""

    def __init__(self):
        self.now = 100.0
        self.plan = []

    def monotonic(self):
        return self.now

    def sleep(self, seconds):
        self.now += seconds
        for entry in [entry for entry in self.plan if entry[0] <= self.now]:
            self.plan.remove(entry)
            entry[1]()


@dataclasses.dataclass
class Play:
    """Script of an attempt without disturbance: a step a second, a checkpoint at its end."""

    steps: int = STEPS  # then it ends
    problem: str | Exception | None = None  # the reason of its end
    saves: bool = True  # saves a checkpoint where it ends
    exception: str | None = None
    hears: bool = True  # hears a stop request
    stuck_at: int | None = None  # a step after which there is no progress
    mortal: bool = True  # dies when Ray kills it
    damaged: bool = False
    node: str | None = None  # the node that failed


class Group:
    def __init__(self, cluster, play, attempt, workers):
        self.cluster = cluster
        self.play = play
        self.attempt = attempt
        self.workers = workers
        self.began = cluster.clock.now
        self.over = False
        self.asked = False
        self.killed = 0
        self.released = False

    def step(self):
        step = self.attempt.resumed_step + int(self.cluster.clock.now - self.began)
        stuck = STEPS if self.play.stuck_at is None else self.play.stuck_at
        return max(self.attempt.resumed_step, min(step, stuck, self.play.steps))

    def poll_end(self, wait):
        self.cluster.waits.append(wait)
        self.cluster.clock.sleep(wait)
        if self.over:
            return True
        if self.asked and self.play.hears and self.play.stuck_at is None:
            self._end(None)
        elif self.step() >= self.play.steps and self.play.stuck_at is None:
            self._end(self.play.problem)
            if isinstance(self.play.problem, ClusterLost):
                raise self.play.problem
        return self.over

    def _end(self, problem):
        self.over = True
        self.problem = problem
        if self.play.saves:
            self.cluster.save(self.step(), self.attempt)

    def find_failure(self):
        if isinstance(self.problem, Exception):
            raise self.problem
        play = self.play
        if self.problem is None:
            return None
        return Failure(
            self.problem, "Ray", self.step(), play.exception, play.damaged, node=play.node
        )

    def heartbeats(self):
        step = self.step()
        return {
            rank: Heartbeat(rank, (), f"node{rank}", step, step, "train", step > 0, 1.0)
            for rank in range(self.workers)
        }

    def ask_to_stop(self):
        self.asked = True

    def kill(self):
        self.killed += 1
        if self.play.mortal:
            self.over = True
            self.problem = "the process of rank 0 died"

    def release(self):
        self.released = True


class FakeCluster:
    def __init__(self, clock, plays):
        self.folder = ""
        self.clock = clock
        self.plays = list(plays)
        self.groups = []
        self.checkpoints = []
        self.rooms = {"node0": 1}
        self.draining = set()
        self.avoided = []  # one item for each attempt
        self.laid_out = []  # one item for each attempt
        self.waits = []  # s between polls of attempts
        self.lost = []
        self.ours = True

    def abandon(self, lost):
        self.lost.append(lost)

    def restart_if_lost(self):
        if self.lost and not self.ours:
            raise self.lost[-1]

    def list_nodes(self):
        return [
            WorkerNode(name, capacity, name in self.draining, slots=1)
            for name, capacity in self.rooms.items()
        ]

    def replace(self, faulty):
        self.replaced = faulty

    def start(self, job, attempt, resume_from, workers, avoid):
        self.avoided.append(avoid)
        assert all(group.over or not group.play.mortal for group in self.groups)
        self.laid_out.append(job.training.parallel)
        self.groups.append(Group(self, self.plays.pop(0), attempt, workers))
        return self.groups[-1]

    def save(self, step, attempt):
        if step:
            self.checkpoints.append(Checkpoint(f"c{step}", step, attempt.number))


@pytest.fixture
def play(tmp_path, monkeypatch):
    """Return `play(Play(…), Play(…))`.

    It runs these attempts, and returns the cluster and the outcome or the error.
    """
    clock = Clock()
    monkeypatch.setattr(module, "time", clock)

    def run(*plays, workers=1, rooms=None, at=(), damages=(), layouts=(), **faults):
        job = FakeJob(str(tmp_path), FakeTraining(Faults(**faults)), layouts)
        cluster = FakeCluster(clock, plays)
        cluster.folder = job.folder
        cluster.rooms = rooms or {f"node{rank}": 1 for rank in range(parse_bounds(workers).most)}
        monkeypatch.setattr(module, "find_newest_valid", make_find_newest(cluster, damages))
        clock.plan = [(clock.now + seconds, lambda do=do: do(cluster)) for seconds, do in at]
        with StopRequests(job.folder) as stop:
            try:
                units = [layout.unit for layout in dict(layouts).values()] or [1]
                outcome = supervise(job, parse_bounds(workers, units), cluster, stop)
            except (ClusterError, Unfinished, DataError) as error:
                outcome = error
        return cluster, outcome

    run.folder = RunFolder(str(tmp_path))  # type: ignore[attr-defined]
    run.clock = clock  # type: ignore[attr-defined]
    return run


def make_find_newest(cluster, damages=()):
    """Return a replacement for `find_newest_valid`."""

    def newest(folder, **how):
        by_step = {checkpoint.step: checkpoint for checkpoint in cluster.checkpoints}
        return by_step[max(by_step)] if by_step else None, list(damages)

    return newest


def list_kinds(folder):
    return [event["event"] for event in folder.read_events()]


def find_only_event(folder, kind):
    (found,) = [event for event in folder.read_events() if event["event"] == kind]
    return found


def list_resumed(folder):
    return [attempt.resumed_step for attempt in folder.read_attempts()]


def list_reasons(folder):
    return [event["why"] for event in folder.read_events() if event["event"] == "attempt_started"]


def test_a_run_without_faults_is_one_attempt(play):
    _, outcome = play(Play())
    assert (outcome.checkpoint.step, outcome.restarts) == (STEPS, 0)
    assert list_kinds(play.folder) == ["attempt_started", "attempt_stopped", "finished"]


def test_a_run_that_another_driver_took_over_says_once_that_it_is_finished(play):
    """The other driver ends the run while this driver's attempt is still in progress."""

    def take_over(cluster):
        play(Play())

    play(Play(), at=[(2, take_over)])
    assert list_kinds(play.folder).count("finished") == 1


def test_a_driver_that_finds_its_run_at_the_end_does_not_say_so_again(play):
    for _ in range(2):
        play(Play())
    assert list_kinds(play.folder).count("finished") == 1


def test_a_run_whose_folder_is_removed_ends_at_once_and_says_so(play):
    def removed(cluster):
        shutil.rmtree(play.folder.path)

    cluster, error = play(Play(), at=[(2, removed)])
    assert isinstance(error, DataError)
    assert str(error).startswith(f"{play.folder.path}: the folder was removed during the run")
    assert str(error).endswith("delete what is left there, and run the same command to start again")
    assert cluster.groups[0].killed and play.clock.now < 100 + STEPS


def test_an_attempt_is_polled_twice_a_step(play):
    cluster, _ = play(Play())
    first, *others = cluster.waits
    assert first == module.POLL and set(others) == {0.5}


def test_each_attempt_resumes_at_the_newest_checkpoint(play):
    cluster, outcome = play(Play(4, "killed"), Play(8, "killed"), Play())
    assert list_resumed(play.folder) == [0, 4, 8]
    assert (outcome.checkpoint.step, outcome.checkpoint.attempt, outcome.restarts) == (12, 3, 2)
    failed = ["attempt_started", "attempt_failed"]
    assert list_kinds(play.folder) == [
        *failed,
        *failed,
        "attempt_started",
        "attempt_stopped",
        "finished",
    ]
    assert [group.released for group in cluster.groups] == [True, True, False]
    assert list_reasons(play.folder) == ["start", "fault", "fault"]


@pytest.mark.parametrize("allowed", [0, 1, 3])
def test_attempts_without_progress_are_bounded(play, allowed):
    _, error = play(*[Play(0, "rank 3: out of memory")] * 10, max_restarts=allowed)
    assert isinstance(error, ClusterError)
    attempts = f"attempts: {allowed + 1}; the last: rank 3: out of memory"
    assert str(error).endswith(f"no progress beyond step 0, {attempts}")
    assert list_resumed(play.folder) == [0] * (allowed + 1)


def test_attempts_that_end_well_but_leave_nothing_are_bounded_too(play):
    _, error = play(*[Play(saves=False)] * 10, max_restarts=2)
    assert "the attempt left no complete checkpoint" in str(error)
    assert len(list_resumed(play.folder)) == 3


def test_the_same_exception_at_the_same_step_twice_ends_the_run(play):
    bad = Play(3, "rank 0: ValueError: x", saves=False, exception="ValueError: x")
    _, error = play(bad, bad, max_restarts=9)
    assert isinstance(error, ClusterError)
    assert "the same failure at step 3 twice in a row" in str(error)


def test_back_off_is_waited_and_put_on_record(play):
    began = play.clock.now
    _, outcome = play(*[Play(0, "killed", saves=False)] * 3, Play(), back_off=8.0)
    assert [e["seconds"] for e in play.folder.read_events() if e["event"] == "back_off"] == [
        8.0,
        16.0,
    ]
    assert play.clock.now - began >= 24 + STEPS
    assert outcome.checkpoint.step == STEPS


def test_a_user_error_ends_the_run_at_once_and_leaves_no_process(play):
    cluster, error = play(Play(2, DataError("tokens: gone")))
    assert str(error) == "tokens: gone"
    assert cluster.groups[0].killed == 1


def test_a_damage_found_in_a_checkpoint_is_put_on_record(play):
    play(Play(), damages=["c8/shard: torn"])
    assert {
        e["problem"] for e in play.folder.read_events() if e["event"] == "checkpoint_damaged"
    } == {"c8/shard: torn"}


def test_a_checkpoint_that_the_ranks_cannot_read_uses_up_no_restart(play):
    torn = [Play(step, "c: torn", saves=False, damaged=True) for step in (0, 0, 0)]
    _, outcome = play(*torn, Play(), max_restarts=0)
    assert outcome.checkpoint.step == STEPS


def test_a_hang_is_seen_and_all_ranks_are_killed(play):
    cluster, outcome = play(
        Play(stuck_at=5, saves=False), Play(), workers=2, hang_seconds=3.0, hang_steps=4.0
    )
    assert [group.killed > 0 for group in cluster.groups] == [True, False]
    seen = find_only_event(play.folder, "hang_seen")
    assert seen["step"] == 5 and "hangs: no progress for 4." in seen["problem"]
    failed = find_only_event(play.folder, "attempt_failed")
    assert (failed["seen_by"], failed["problem"]) == ("heartbeats", seen["problem"])
    assert outcome.restarts == 1


def write_dump(rank, name):
    """Return an action: a rank of the first attempt reports its collective before it is ended."""

    def record(cluster):
        where = {"rank": rank, "step": 5, "doing": "train", "file": "-"}
        RunFolder(cluster.folder).record("collectives_dumped", attempt=1, waits_in=name, **where)

    return record


@pytest.mark.parametrize(
    ("dumps", "absent"),
    [
        ({0: "gloo:all_reduce", 2: "gloo:all_reduce"}, 1),  # too stuck to report
        ({0: "gloo:all_reduce", 1: None, 2: "gloo:all_reduce"}, 1),
        ({0: "gloo:all_reduce"}, None),  # ranks 1 and 2 are on two nodes
        ({0: "gloo:all_reduce", 1: "gloo:all_reduce", 2: "gloo:all_reduce"}, None),
        ({0: None, 1: None, 2: None}, None),
        ({}, None),
    ],
)
def test_a_hang_is_attributed_to_the_only_node_that_others_wait_for(play, dumps, absent):
    at = [(8.0, write_dump(rank, name)) for rank, name in dumps.items()]
    play(Play(stuck_at=5, saves=False), Play(), workers=3, at=at, hang_seconds=4.0)
    failed = find_only_event(play.folder, "attempt_failed")
    assert failed["problem"].endswith(f"; the others wait for rank {absent}") == bool(absent)
    assert failed.get("node") == (None if absent is None else f"node{absent}")


def test_a_killed_attempt_that_ray_never_ends_is_left(play):
    _, outcome = play(Play(stuck_at=5, saves=False, mortal=False), Play(), hang_seconds=3.0)
    assert outcome.restarts == 1


def test_a_run_grows_when_nodes_come_without_losing_a_step(play):
    cluster, outcome = play(
        Play(), Play(), workers=(1, 2), rooms={"node0": 1}, at=[(4.5, add_node_named("node1"))]
    )
    first, second = cluster.groups
    assert (first.workers, second.workers) == (1, 2)
    stopped = [e["step"] for e in play.folder.read_events() if e["event"] == "attempt_stopped"]
    assert list_resumed(play.folder) == [0, stopped[0]] and 4 < stopped[0] < 8
    assert list_reasons(play.folder) == ["start", "grow"]
    assert first.killed == 0
    assert outcome.checkpoint.step == STEPS


def test_nodes_that_come_and_go_at_once_move_nothing(play):
    cluster, _ = play(
        Play(),
        workers=(1, 2),
        rooms={"node0": 1},
        at=[(4.5, add_node_named("node1")), (5.5, lose_node("node1"))],
        settle=2.0,
    )
    assert len(cluster.groups) == 1


def test_a_drain_notice_moves_the_run_without_losing_a_step(play):
    cluster, outcome = play(Play(), Play(), workers=(1, 2), at=[(3.5, drain_node("node1"))])
    assert [group.workers for group in cluster.groups] == [2, 1]
    stopped = find_only_event(play.folder, "node_draining")
    assert stopped["nodes"] == ["node1"]
    assert list_resumed(play.folder)[1] == outcome.checkpoint.step - (
        STEPS - list_resumed(play.folder)[1]
    )
    assert list_resumed(play.folder)[1] >= 3
    assert list_reasons(play.folder) == ["start", "drain"]


def test_a_lost_node_shrinks_the_run(play):
    cluster, outcome = play(
        Play(4, "its node lost"), Play(), workers=(1, 2), at=[(3.5, lose_node("node1"))]
    )
    assert [group.workers for group in cluster.groups] == [2, 1]
    assert list_reasons(play.folder) == ["start", "shrink"]
    assert outcome.restarts == 1


SHARED = FSDP(tensor={"ranks": 2})
WHOLE = FSDP()
LAYOUTS = ((2, SHARED), (1, WHOLE))


def test_a_run_continues_in_a_smaller_layout_and_returns_to_its_own(play):
    lost = Play(4, "the process of rank 1 died", saves=True)
    cluster, outcome = play(
        lost,
        Play(),
        Play(),
        workers=(1, 2),
        layouts=LAYOUTS,
        at=[
            (3, lambda cluster: cluster.rooms.pop("node1")),
            (8, lambda cluster: cluster.rooms.update(node2=1)),
        ],
    )
    assert outcome.checkpoint.step == STEPS
    assert list_reasons(play.folder) == ["start", "shrink", "grow"]
    assert cluster.laid_out == [SHARED, WHOLE, SHARED]
    events = list(play.folder.read_events())
    started = [event["layout"] for event in events if event["event"] == "attempt_started"]
    assert started == ["FSDP, tensor 2", "FSDP", "FSDP, tensor 2"]
    away, back = (event for event in events if event["event"] == "layout_changed")
    assert (away["before"], away["layout"]) == ("FSDP, tensor 2", "FSDP")
    assert (away["step"], back["attempt"]) == (4, 3)
    assert "rounded differently" in away["bits"] and back["layout"] == "FSDP, tensor 2"


def test_another_driver_knows_in_which_layout_the_run_was(play):
    lost = Play(0, "killed", saves=False)
    play(lost, workers=(1, 2), layouts=LAYOUTS, rooms={"node0": 1}, max_restarts=0)
    assert "layout_changed" not in list_kinds(play.folder)
    play(Play(), workers=(1, 2), layouts=LAYOUTS)
    assert find_only_event(play.folder, "layout_changed")["before"] == "FSDP"


def test_room_that_is_not_yet_seen_as_free_shrinks_nothing(play):
    cluster, _ = play(
        Play(4, "the process of rank 1 died"),
        Play(),
        workers=(1, 2),
        at=[(3.5, is_taken("node1")), (5.0, add_node_named("node1"))],
    )
    assert [group.workers for group in cluster.groups] == [2, 2]
    assert list_reasons(play.folder) == ["start", "fault"]


LOST = "the raylet of this machine's Ray (process 7) was killed by SIGKILL"


def test_a_cluster_that_is_lost_is_left_and_begun_again(play):
    cluster, outcome = play(Play(4, ClusterLost(LOST)), Play())
    assert [str(lost) for lost in cluster.lost] == [LOST]
    assert not cluster.groups[0].released  # no worker is left to ask
    assert find_only_event(play.folder, "cluster_lost")["problem"] == LOST
    assert find_only_event(play.folder, "attempt_failed")["problem"] == LOST
    assert (list_resumed(play.folder), outcome.checkpoint.step) == ([0, 4], STEPS)


def test_a_loss_is_logged_before_the_remaining_ranks_are_ended(play, caplog, monkeypatch):
    told = []
    monkeypatch.setattr(FakeCluster, "abandon", lambda self, lost: told.append(caplog.messages[-1]))
    play(Play(4, ClusterLost(LOST)), Play())
    assert told == [f"{LOST}; ending the rest of the attempt"]


def test_anothers_cluster_that_is_lost_ends_the_run_whole(play):
    _, error = play(Play(4, ClusterLost(LOST)), at=[(0, is_anothers)])
    assert isinstance(error, Unfinished)
    saved = "step 4 of 12 is saved; run the same command to continue"
    assert str(error) == f"{play.folder.path}: {LOST}; {saved}"


def is_anothers(cluster):
    cluster.ours = False


def test_a_cluster_that_is_lost_time_and_again_is_given_up(play):
    _, error = play(*[Play(0, ClusterLost(LOST))] * 9, max_restarts=2)
    assert isinstance(error, ClusterError) and str(error).endswith(LOST)
    assert len(list_resumed(play.folder)) == 3


def test_a_stop_names_the_step_that_is_saved_by_then(play):
    def saved_late(cluster):
        cluster.save(8, cluster.groups[-1].attempt)
        os.kill(os.getpid(), signal.SIGTERM)

    _, error = play(
        Play(4, "its node lost"),
        at=[(3.5, lose_node("node0")), (9.0, saved_late)],
        wait_for_nodes=60,
    )
    assert "step 8 of 12 is saved" in str(error)
    assert find_only_event(play.folder, "run_stopped")["step"] == 8


def test_with_too_few_nodes_a_run_waits_for_more(play):
    cluster, outcome = play(
        Play(4, "its node lost"),
        Play(),
        workers=2,
        at=[(3.5, lose_node("node1")), (60.0, add_node_named("node2"))],
    )
    assert find_only_event(play.folder, "waiting_for_nodes")["capacity"] == 1
    assert [group.workers for group in cluster.groups] == [2, 2]
    assert play.clock.now >= 160 and outcome.checkpoint.step == STEPS


def test_a_run_gives_up_after_its_time_limit(play):
    lost = Play(4, "its node lost")
    _, error = play(lost, workers=2, at=[(3.5, lose_node("node1"))], wait_for_nodes=100.0)
    assert isinstance(error, ClusterError)
    assert "the run is at step 4; for 100 s, the cluster had no space for workers = 2" in str(error)


def test_a_request_to_stop_ends_the_run_whole(play):
    cluster, ended = play(Play(), at=[(5.5, ask)])
    assert isinstance(ended, Unfinished)
    step = cluster.checkpoints[-1].step
    assert 5 <= step < 8
    assert f"stopped by SIGTERM; step {step} of {STEPS} is saved" in str(ended)
    assert list_kinds(play.folder)[-3:] == ["stop_requested", "attempt_stopped", "run_stopped"]
    assert cluster.groups[0].killed == 0


def test_a_rank_that_does_not_stop_in_time_is_killed_and_the_checkpoint_kept(play):
    first = Play(4, "killed")
    deaf = Play(hears=False, stuck_at=6, saves=False)
    cluster, ended = play(first, deaf, at=[(8.0, ask)], grace=5.0, hang_seconds=99.0)
    assert isinstance(ended, Unfinished) and "step 4 of" in str(ended)
    assert cluster.groups[1].killed > 0
    assert find_only_event(play.folder, "grace_over")["problem"].endswith("within the 5 s of grace")


def test_an_attempt_that_went_back_from_a_spike_is_no_failure(play):
    def goes_back(cluster):
        play.folder.take_attempt(0, skip=(3, 9))

    _, outcome = play(Play(5, saves=False), Play(), at=[(3.0, goes_back)], max_restarts=0)
    assert list_reasons(play.folder) == ["start", "rollback"]
    assert "attempt_failed" not in list_kinds(play.folder)
    assert (outcome.checkpoint.step, outcome.restarts) == (STEPS, 1)


@pytest.mark.parametrize("allowed", [0, 5])
def test_a_fault_while_stopping_is_still_a_stop(play, allowed):
    deaf = Play(5, "killed", hears=False, saves=False)
    _, ended = play(deaf, at=[(3.0, ask)], max_restarts=allowed)
    assert isinstance(ended, Unfinished) and "step 0 of" in str(ended)


def test_a_run_that_waits_for_nodes_can_be_stopped(play):
    _, ended = play(workers=2, rooms={"node0": 1}, at=[(50.0, ask)])
    assert isinstance(ended, Unfinished)
    assert list_kinds(play.folder) == ["waiting_for_nodes", "run_stopped"]


def test_a_stop_that_comes_too_late_finds_the_run_finished(play):
    _, outcome = play(Play(hears=False), at=[(STEPS - 0.3, ask)])
    assert outcome.checkpoint.step == STEPS


def test_a_stop_file_stops_the_run_and_is_gone_then(play):
    file = Path(play.folder.path, "stop")
    _, ended = play(Play(), at=[(2.0, lambda cluster: file.touch())])
    # The real clock: the cluster was polled once, at the start.
    assert not isinstance(ended, Unfinished)
    _, ended = play(Play())
    assert isinstance(ended, Unfinished) and "stopped by the file" in str(ended)
    assert not file.exists()


@pytest.mark.slow
@settings(max_examples=60)
@given(st.data())
def test_a_run_always_ends_and_never_resumes_before_its_checkpoint(data):
    """Draw faults, drains and growth: no attempt resumes before the newest checkpoint."""
    # pytest's fixtures do not reset between examples, and each example is a separate run.
    with pytest.MonkeyPatch.context() as patch:
        clock = Clock()
        patch.setattr(module, "time", clock)
        patch.setattr(module.log, "warning", lambda *said: None)
        _play_random_run(data, clock, patch)


def _play_random_run(data, clock, patch):
    plays = data.draw(
        st.lists(
            st.builds(
                Play,
                steps=st.integers(0, STEPS),
                problem=st.sampled_from(["killed", None]),
                saves=st.booleans(),
                hears=st.booleans(),
                stuck_at=st.none() | st.integers(0, STEPS),
            ),
            max_size=12,
        )
    )
    cluster = FakeCluster(clock, [*plays, *[Play()] * 20])
    cluster.rooms = {"node0": 1, "node1": 1}
    for _ in range(data.draw(st.integers(0, 6))):
        node = data.draw(st.sampled_from(["node1", "node2"]))
        do = data.draw(st.sampled_from([add_node_named, lose_node, drain_node]))(node)
        clock.plan.append((clock.now + data.draw(st.floats(0, 60)), lambda do=do: do(cluster)))
    folder = FakeFolder()
    patch.setattr(module, "RunFolder", lambda path: folder)
    patch.setattr(module, "find_newest_valid", make_find_newest(cluster))
    faults = Faults(hang_seconds=3.0, start_limit=20.0, wait_for_nodes=40.0)
    job = FakeJob("run", FakeTraining(faults))
    try:
        outcome = supervise(job, parse_bounds((1, 2)), cluster, NoStop())
    except ClusterError as error:
        assert "no progress beyond step" in str(error) or "no space for" in str(error)
        outcome = None
    steps = [attempt.resumed_step for attempt in folder.read_attempts()]
    assert steps == sorted(steps)
    assert all(1 <= group.workers <= 2 for group in cluster.groups)
    if outcome:
        assert outcome.checkpoint.step == STEPS


class FakeFolder:
    path = "made-up"

    def __init__(self):
        self.taken = []

    def record(self, event, **details):
        pass

    def read_events(self):
        return []

    def read_attempts(self):
        return self.taken

    def is_gone(self, attempt):
        return False

    def is_rolled_back(self, attempt):
        return False

    def take_attempt(self, step):
        self.taken.append(TrainingAttempt(len(self.taken) + 1, step))
        return self.taken[-1]


@dataclasses.dataclass
class FakeTraining:
    faults: Faults
    steps: int = STEPS
    stop_if: None = None
    checkpoints: Checkpoints = dataclasses.field(default_factory=Checkpoints)
    parallel: FSDP = dataclasses.field(default_factory=FSDP)


@dataclasses.dataclass
class FakeJob:
    folder: str
    training: FakeTraining
    layouts: tuple = ()  # layouts by number of workers

    def lay_out(self, workers):
        parallel = dict(self.layouts).get(workers, self.training.parallel)
        return FakeJob(self.folder, dataclasses.replace(self.training, parallel=parallel))


def test_a_node_by_which_enough_attempts_failed_is_avoided(play):
    bad = [Play(step, "killed", node="node1") for step in (2, 4, 6)]
    # The excluded node has a free place, and another one appears: the run grows onto neither.
    cluster, outcome = play(
        *bad[:2],
        Play(5, "killed", node="node0"),
        bad[2],
        Play(),
        workers=(1, 2),
        quarantine_after=3,
    )
    assert cluster.avoided == [frozenset()] * 4 + [{"node1"}]
    assert [group.workers for group in cluster.groups] == [2, 2, 2, 2, 1]
    assert list_reasons(play.folder)[-1] == "shrink" and outcome.checkpoint.step == STEPS
    said = find_only_event(play.folder, "node_quarantined")
    assert (said["node"], said["faults"], said["step"]) == ("node1", 3, 6)


def test_another_driver_avoids_the_same_nodes(play):
    bad = [Play(0, "killed", node="node1", saves=False)] * 2
    play(*bad, workers=(1, 2), quarantine_after=2, max_restarts=1)
    cluster, _ = play(Play(), workers=(1, 2), quarantine_after=2)
    assert cluster.avoided == [{"node1"}]


def test_a_faulty_node_is_used_while_there_is_no_room_without_it(play):
    bad = [Play(step, "killed", node="node1") for step in (2, 4)]
    cluster, _ = play(
        *bad, Play(), workers=2, quarantine_after=1, at=[(3, add_node_named("node2"))]
    )
    assert cluster.avoided == [frozenset(), frozenset(), {"node1"}]
    events = ["node_needed", "node_quarantined"]
    assert [kind for kind in list_kinds(play.folder) if kind.startswith("node_")] == events


class NoStop:
    def read_request(self):
        return None

    def remove_request(self):
        pass


def add_node_named(name):
    return lambda cluster: cluster.rooms.update({name: 1})


def is_taken(name):
    return lambda cluster: cluster.rooms.update({name: 0})


def lose_node(name):
    return lambda cluster: cluster.rooms.pop(name, None)


def drain_node(name):
    return lambda cluster: cluster.draining.add(name)


def ask(cluster):
    signal.raise_signal(signal.SIGTERM)
