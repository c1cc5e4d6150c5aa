"""One rank of an attempt on Ray, in a process of its own that a Ray worker keeps.

It knows no Ray: what it tells its supervisor goes through the channel to its worker agent, which
passes it on. Importing this module imports all that training needs: fork servers have done so in
advance.
"""

import os
import pickle
import traceback
from datetime import timedelta
from multiprocessing.connection import Connection

import torch.distributed as dist

from trainrig.parallel.mesh import join_group, use_device
from trainrig.processes.heartbeats import Heartbeat, HeartbeatReporter
from trainrig.train.elastic.ipc import RankDone, RankError, RankInfo, RankTask
from trainrig.train.loop import train
from trainrig.train.run.run_folder import RunFolder

# s between two heartbeats of a rank, at least: well under the least hang worth finding,
HEARTBEAT_SECONDS = 0.25
# and, of many ranks, as seldom as lets the coordinator take all heartbeats in half of its time
# (0.45 ms each: tests/benchmarks/test_control_plane.py): 8 s for 8,000 ranks.
HEARTBEAT_PER_RANK = 0.001


def heartbeat_interval(world: int) -> float:
    """Seconds between two heartbeats of a rank that is one of `world`."""
    return max(HEARTBEAT_SECONDS, HEARTBEAT_PER_RANK * world)


def main(channel: Connection) -> None:
    """Do the work that the channel gives, and say there how it ended."""
    info, pickled = channel.recv()
    try:
        _train(channel, info, pickle.loads(pickled))
    except Exception as error:
        traceback.print_exc()  # goes to the log of its Ray worker
        channel.send(RankError(_pickle(error), f"{type(error).__name__}: {error}"))
    else:
        channel.send(RankDone())


def _train(channel: Connection, info: RankInfo, work: RankTask) -> None:
    job, attempt, folder = work.job, work.attempt, RunFolder(work.job.folder)
    folder.record("worker_started", attempt=attempt.number, rank=info.rank, agent=info.agent)

    def send_heartbeat(heartbeat: Heartbeat) -> bool:
        try:
            channel.send(heartbeat)
            wanted: bool = channel.recv()
        except (EOFError, OSError):
            os._exit(1)  # its worker agent is gone, and so is its attempt
        return wanted

    first = Heartbeat(info.rank, (os.getpid(), info.agent), info.node)
    hang_seconds = job.training.faults.hang_seconds
    heartbeats = HeartbeatReporter(
        first, send_heartbeat, heartbeat_interval(info.world), hang_seconds
    )
    try:
        use_device(info.device)
        timeout = timedelta(seconds=job.training.collective_timeout)
        join_group(info.rank, info.world, info.rendezvous, timeout)
        train(job, attempt, work.resume_from, heartbeats)
        dist.destroy_process_group()
    except Exception:
        folder.record("worker_raised", attempt=attempt.number, rank=info.rank, step=heartbeats.step)
        raise
    finally:
        heartbeats.close()


def _pickle(error: Exception) -> bytes:
    try:
        pickled = pickle.dumps(error)
        pickle.loads(pickled)  # some can be written and not read
    except Exception:
        return pickle.dumps(RuntimeError(f"{type(error).__name__}: {error}"))
    return pickled
