"""One rank of an attempt on Ray, in a process of its own that a Ray worker keeps.

It knows no Ray: what it tells its supervisor goes through the channel to its keeper, which passes
it on. Importing this module imports all that training needs: fork servers have done so in advance.
"""

import os
import pickle
import traceback
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.connection import Connection

import torch.distributed as dist

from trainrig.parallel.mesh import join_group, use_device
from trainrig.processes.heartbeats import Beat, Reporter
from trainrig.train.elastic.ipc import Done, Place, Raised
from trainrig.train.job import Job
from trainrig.train.loop import train
from trainrig.train.run.run_folder import Attempt, RunFolder

EXCHANGE = 0.25  # s between two beats of a rank, at least: well under the least hang worth finding,
# and, of many ranks, as seldom as lets the post office take all beats in half of its time
# (0.45 ms each: tests/benchmarks/test_control_plane.py): 8 s for 8,000 ranks.
EXCHANGE_A_RANK = 0.001


def exchange_every(world: int) -> float:
    """Seconds between two beats of a rank that is one of `world`."""
    return max(EXCHANGE, EXCHANGE_A_RANK * world)


@dataclass(frozen=True)
class Work:
    """What every rank of an attempt is given."""

    job: Job
    attempt: Attempt
    resume_from: str | None


def main(channel: Connection) -> None:
    """Do the work that the channel gives, and say there how it ended."""
    place, pickled = channel.recv()
    try:
        _do(channel, place, pickle.loads(pickled))
    except Exception as error:
        traceback.print_exc()  # goes to the log of its Ray worker
        channel.send(Raised(_pickled(error), f"{type(error).__name__}: {error}"))
    else:
        channel.send(Done())


def _do(channel: Connection, place: Place, work: Work) -> None:
    job, attempt, folder = work.job, work.attempt, RunFolder(work.job.folder)
    folder.record("worker_started", attempt=attempt.number, rank=place.rank, keeper=place.keeper)

    def exchange(beat: Beat) -> bool:
        try:
            channel.send(beat)
            wanted: bool = channel.recv()
        except (EOFError, OSError):
            os._exit(1)  # its keeper is gone, and so is its attempt
        return wanted

    first = Beat(place.rank, (os.getpid(), place.keeper), place.node)
    hang_seconds = job.training.faults.hang_seconds
    watch = Reporter(first, exchange, exchange_every(place.world), hang_seconds)
    try:
        use_device(place.device)
        patience = timedelta(seconds=job.training.collective_timeout)
        join_group(place.rank, place.world, place.meeting, patience)
        train(job, attempt, work.resume_from, watch)
        dist.destroy_process_group()
    except Exception:
        folder.record("worker_raised", attempt=attempt.number, rank=place.rank, step=watch.step)
        raise
    finally:
        watch.close()


def _pickled(error: Exception) -> bytes:
    try:
        pickled = pickle.dumps(error)
        pickle.loads(pickled)  # some can be written and not read
    except Exception:
        return pickle.dumps(RuntimeError(f"{type(error).__name__}: {error}"))
    return pickled
