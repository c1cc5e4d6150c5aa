"""Process of one rank of an attempt, forked for a worker agent.

It does not use Ray: it reports over a pipe to its worker agent, which relays the reports. Importing
this module imports everything that training needs; fork servers do so in advance.
"""

import contextlib
import os
import pickle
import traceback
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path

import torch.distributed as dist

from trainrig import storage
from trainrig.parallel import flight_recorder
from trainrig.parallel.mesh import find_local_device, join_group, use_device
from trainrig.processes.heartbeats import Heartbeat, HeartbeatReporter, Stall
from trainrig.processes.lease import follow_lease
from trainrig.processes.process_identity import Process
from trainrig.train.elastic.coordinator import RankDone, RankError, RankInfo, RankTask
from trainrig.train.elastic.restart_policy import HangDetector
from trainrig.train.loop import train
from trainrig.train.run.run_folder import RunFolder, TrainingAttempt
from trainrig.train.run_file.training_settings import Training

# Minimum seconds between two heartbeats of a rank: well under the shortest useful hang limit.
HEARTBEAT_SECONDS = 0.25
# Seconds between two heartbeats, for each rank of the group. The coordinator then spends at most
# half of its time on heartbeats (0.45 ms each: tests/benchmarks/test_control_plane.py): 8 s for
# 8,000 ranks.
HEARTBEAT_PER_RANK = 0.001

# Share of the hang limit after which a rank without progress writes what it waits for. The
# supervisor kills it soon afterwards.
BEFORE_A_HANG = 0.75
COLLECTIVES = "collectives"  # subfolder of the run folder for the dumps of pending collectives


def compute_heartbeat_interval(world: int) -> float:
    """Return the seconds between two heartbeats of a rank in a group of `world` ranks."""
    return max(HEARTBEAT_SECONDS, HEARTBEAT_PER_RANK * world)


def main(channel: Connection) -> None:
    """Do the task received from `channel`, and send there how it ended."""
    info, pickled = channel.recv()
    with contextlib.suppress(OSError):  # a system without /proc
        Path("/proc/self/comm").write_text(f"rank-{info.rank}")  # the name in `top` and `py-spy`
    try:
        work = pickle.loads(pickled)
        with follow_lease(work.job.folder):
            _train(channel, info, work)
    except Exception as error:
        traceback.print_exc()  # goes to the log of the Ray worker
        channel.send(RankError(_pickle(error), f"{type(error).__name__}: {error}"))
    else:
        channel.send(RankDone())


def _train(channel: Connection, info: RankInfo, work: RankTask) -> None:
    job = work.job
    attempt = work.attempt
    folder = RunFolder(work.job.folder)
    folder.record("worker_started", attempt=attempt.number, rank=info.rank, agent=info.agent.pid)

    def send_heartbeat(heartbeat: Heartbeat) -> bool:
        try:
            channel.send(heartbeat)
            wanted: bool = channel.recv()
        except (EOFError, OSError):
            os._exit(1)  # the worker agent is gone, and so is the attempt
        return wanted

    first = Heartbeat(info.rank, (Process.here(), info.agent), info.node)
    hang_seconds = job.training.faults.hang_seconds
    hangs = HangDetector(job.training.faults, info.world, 0.0)
    stall = Stall(
        lambda heartbeat: _compute_stall_seconds(job.training, hangs, heartbeat),
        lambda heartbeat: dump_collectives(folder, attempt, heartbeat),
    )
    heartbeats = HeartbeatReporter(
        first, send_heartbeat, compute_heartbeat_interval(info.world), hang_seconds, stall
    )
    flight_recorder.turn_on()
    try:
        use_device(info.device)
        job = job.resolve(find_local_device())
        timeout = timedelta(seconds=job.training.collective_timeout)
        join_group(info.rank, info.world, info.rendezvous, timeout)
        train(job, attempt, work.resume_from, heartbeats)
        dist.destroy_process_group()
    except Exception:
        folder.record("worker_raised", attempt=attempt.number, rank=info.rank, step=heartbeats.step)
        raise
    finally:
        heartbeats.close()


def _compute_stall_seconds(training: Training, hangs: HangDetector, heartbeat: Heartbeat) -> float:
    """Return the seconds without progress after which this rank dumps its last collectives.

    That is before this rank is killed for a hang and, in a step, before the collective that it
    waits in times out.
    """
    allowed = hangs.compute_allowed(heartbeat)
    if heartbeat.doing == "train":
        allowed = min(allowed, training.collective_timeout)
    return BEFORE_A_HANG * allowed


def dump_collectives(folder: RunFolder, attempt: TrainingAttempt, heartbeat: Heartbeat) -> None:
    """Write this rank's last collectives to the run folder, and record an event with the path."""
    if (found := flight_recorder.dump()) is None:
        return
    name = f"{COLLECTIVES}/attempt-{attempt.number:04d}-rank-{heartbeat.rank:05d}.json"
    storage.write(storage.join(folder.path, name), found)
    folder.record(
        "collectives_dumped",
        attempt=attempt.number,
        rank=heartbeat.rank,
        step=heartbeat.step,
        doing=heartbeat.doing,
        waits_in=flight_recorder.find_pending(found),
        file=name,
    )


def _pickle(error: Exception) -> bytes:
    try:
        pickled = pickle.dumps(error)
        pickle.loads(pickled)  # some exceptions can be pickled but not unpickled
    except Exception:
        return pickle.dumps(RuntimeError(f"{type(error).__name__}: {error}"))
    return pickled
