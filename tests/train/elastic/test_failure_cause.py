import pytest
import torch

from trainrig.errors import DataError
from trainrig.processes.fork_server import describe_end
from trainrig.train.checkpoint import DamagedCheckpoint
from trainrig.train.elastic.failure_cause import (
    describe_out_of_memory,
    ended_for_memory,
    find_absent_ranks,
    find_cause,
    is_dead_worker,
)
from trainrig.train.elastic.restart_policy import GiveUp, RestartPolicy
from trainrig.train.run_file.worker_settings import Faults

BROKEN = RuntimeError("[gloo/transport/tcp/pair.cc:547] Connection closed by peer [127.0.0.1]:4")


def test_a_dead_process_is_the_cause_of_what_the_others_say():
    failure = find_cause(
        {0: BROKEN, 1: RuntimeError("gone"), 2: BROKEN}, {1: "killed by SIGKILL"}, {0: 7, 2: 7}, 6
    )
    assert failure.problem.startswith("the process of rank 1 died: killed by SIGKILL")
    assert failure.exception is None
    assert failure.step == 6


def test_several_dead_processes_are_counted():
    problem = find_cause(
        dict.fromkeys((2, 1, 3), RuntimeError("x")), dict.fromkeys((2, 1, 3), "ended with 1"), {}, 0
    ).problem
    assert problem.startswith("the process of rank 1 died (and 2 more): ended with 1")


@pytest.mark.parametrize(
    ("failures", "dead", "blamed"),
    [
        ({0: BROKEN}, {1: "killed by SIGKILL"}, 1),
        ({}, {0: "killed by SIGABRT", 1: "killed by SIGABRT"}, None),  # a collective hangs
        ({0: BROKEN}, {1: "its node is lost (abc)"}, None),
        ({1: RuntimeError("uncorrectable ECC error encountered")}, {0: "killed by SIGABRT"}, 1),
        ({0: RuntimeError("CUDA error: unspecified launch failure")}, {}, None),
    ],
)
def test_a_failure_is_attributed_to_a_node_only_if_one_rank_shows_it(failures, dead, blamed):
    assert find_cause(failures, dead, {}, 0).rank == blamed


def test_a_ranks_own_exception_is_distinguished_from_consequences():
    failure = find_cause({0: BROKEN, 1: ValueError("first\nbad row 7\n")}, {}, {0: 9, 1: 8}, 0)
    assert failure.problem == "rank 1: ValueError: bad row 7 (1 more lost its connection then)"
    assert (failure.exception, failure.step) == ("ValueError: bad row 7", 8)


SIZES_DIFFER = RuntimeError(
    "[enforce fail at /__w/pytorch/pytorch/third_party/gloo/gloo/alltoallv.cc:138] "
    "inLengthPerRank[myRank] == outLengthPerRank[myRank]. "
)


def test_an_error_of_a_collective_comes_before_lost_connections():
    failure = find_cause({0: BROKEN, 1: SIZES_DIFFER, 2: BROKEN}, {}, {1: 0, 0: 0, 2: 0}, 0)
    assert failure.problem.startswith("rank 1: RuntimeError: [enforce fail at")
    assert failure.problem.endswith("(2 more lost their connection then)")
    assert "alltoallv.cc:138" in failure.exception


def test_the_earliest_of_several_exceptions_is_reported():
    raised = {0: ValueError("late"), 1: ValueError("early"), 2: BROKEN}
    assert find_cause(raised, {}, {2: 4, 1: 4, 0: 4}, 3).exception == "ValueError: early"
    # No evidence of another cause.
    assert find_cause(raised, {}, {}, 3).exception == "ValueError: late"


def test_lost_connections_alone_are_nobodys_own():
    failure = find_cause({0: BROKEN, 1: BROKEN}, {}, {}, 3)
    assert failure.problem.startswith("rank 0 lost its connection to another")
    assert failure.exception is None


@pytest.mark.parametrize(
    ("said", "lost"),
    [
        ("NCCL error in: Work.cpp:31, ncclRemoteError: A call failed possibly due to a network", 1),
        ("NCCL communicator was aborted on rank 1.", 1),
        ("[Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=3)", 1),
        ("ncclInvalidUsage: Duplicate GPU detected : rank 0 and rank 1 (run with NCCL_DEBUG)", 0),
        ("NCCL error: unhandled cuda error (run with NCCL_DEBUG=INFO for details)", 0),
        ("ProcessGroupNCCL is only supported with GPUs, no GPUs found!", 0),
    ],
)
def test_a_ranks_own_mistake_with_nccl_is_not_taken_for_the_loss_of_another(said, lost):
    failure = find_cause({0: RuntimeError(said)}, {}, {}, 3)
    assert (failure.exception is None) == bool(lost)
    assert (said in failure.problem) != bool(lost)


@pytest.mark.parametrize(
    ("said", "broken"),
    [
        ("CUDA error: uncorrectable ECC error encountered\nCompile with `TORCH_USE_CUDA_DSA`", 1),
        ("CUDA error: unspecified launch failure", 0),  # a kernel that reads out of bounds
        ("n7: this rank was given GPU 3, but CUDA sees 3 here (CUDA_VISIBLE_DEVICES='')", 1),
        ("CUDA error: device-side assert triggered", 0),
        ("CUDA out of memory. Tried to allocate 2.00 GiB", 0),
        ("index 9 is out of bounds", 0),
    ],
)
def test_a_broken_device_is_distinguished_from_a_bug(said, broken):
    failure = find_cause({0: BROKEN, 1: RuntimeError(said)}, {}, {1: 4}, 3)
    assert failure.rank == (1 if broken else None)
    assert (failure.exception is None) == bool(broken)  # on another device it may not occur again


def test_a_dead_process_is_attributed_to_its_node_unless_out_of_memory():
    assert find_cause({}, {2: "killed by SIGKILL"}, {}, 3).rank == 2
    assert find_cause({}, {2: describe_end(-9, True)}, {}, 3).rank is None


def test_an_error_that_the_user_must_fix_is_raised():
    with pytest.raises(DataError, match="tokens: gone"):
        find_cause({0: BROKEN, 1: DataError("tokens: gone")}, {0: "killed"}, {}, 3)


def test_a_damaged_checkpoint_is_not_a_user_error():
    failure = find_cause({0: DamagedCheckpoint("model.safetensors: torn"), 1: BROKEN}, {}, {}, 3)
    assert failure.damaged
    assert failure.problem.endswith("model.safetensors: torn")


def test_rays_long_message_about_memory_is_shortened_to_node_and_figures():
    said = (
        "Task was killed due to the node running low on memory.\nMemory on the node (IP: 10.0.0.7, "
        "ID: 5d33) was 2.46GB used / 23.54GB limit (0.104562)\nOOM kill reason: Memory usage 2626B"
    )
    told = "node 10.0.0.7 ran out of memory (2.46GB of 23.54GB): Ray ended the attempt to free some"
    assert describe_out_of_memory(said) == told
    assert describe_out_of_memory("other words") == "no memory: Ray ended the attempt to free some"


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB.\nSee the notes"),
        RuntimeError("[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate memory"),
        MemoryError(),
    ],
)
def test_an_allocator_that_has_no_more_is_known_for_that(error):
    assert find_cause({0: BROKEN, 1: error}, {}, {}, 3).memory
    assert not find_cause({1: RuntimeError("bad row 7")}, {}, {}, 3).memory


def test_torchs_own_words_for_too_large_a_tensor_are_known():
    with pytest.raises(RuntimeError) as too_large:
        torch.empty(2**55, dtype=torch.uint8)
    assert find_cause({0: too_large.value}, {}, {}, 3).memory


def test_a_rank_killed_for_memory_is_tried_twice_and_then_an_error_with_settings():
    by_kernel = describe_end(-9, True)
    by_hand = describe_end(-9, False)
    patience = RestartPolicy(Faults(max_restarts=9), step=4)
    short = find_cause({0: BROKEN}, {1: by_kernel}, {0: 4}, 4)
    assert short.memory
    assert patience.decide_after(short, newest=4) == 0.0
    verdict = patience.decide_after(short, newest=4)
    assert isinstance(verdict, GiveUp) and "lower batches.micro_batch" in verdict.reason
    assert not find_cause({0: BROKEN}, {1: by_hand}, {0: 4}, 4).memory


def test_an_out_of_memory_rank_is_the_cause_among_dead_ranks():
    failure = find_cause({}, {0: "ended with 1", 1: describe_end(-9, True)}, {}, 0)
    assert failure.memory
    assert failure.problem.startswith("the process of rank 1 died (and 1 more): killed by the kern")


def test_ranks_of_which_none_says_that_it_waits_are_not_absent():
    said = {"event": "collectives_dumped", "attempt": 2}
    waits = said | {"rank": 1, "waits_in": "gloo:barrier"}
    older = {"attempt": 1}
    assert find_absent_ranks([], 2, 3) == frozenset()
    assert find_absent_ranks([said | {"rank": 0, "waits_in": None}], 2, 3) == frozenset()
    assert find_absent_ranks([waits | older, {"event": "checkpoint"}], 2, 3) == frozenset()
    assert find_absent_ranks([waits], 2, 3) == {0, 2}


@pytest.mark.slow
def test_a_dead_worker_is_told_from_one_that_raised_and_its_memory_by_its_exit_type():
    from ray.core.generated.common_pb2 import ActorDiedErrorContext  # type: ignore[attr-defined]
    from ray.exceptions import ActorDiedError, OutOfMemoryError
    from ray.train.v2._internal.exceptions import WorkerHealthCheckFailedError

    def report(error):
        """Wrap an error as Ray Train does for a worker that it can no longer ask."""
        return WorkerHealthCheckFailedError("A worker health check failed.", failure=error)

    said = "its worker process has died. Worker exit type: NODE_OUT_OF_MEMORY Worker exit detail: -"
    context = ActorDiedErrorContext(actor_id=b"1" * 16, error_message=said)
    ended = report(ActorDiedError(context))
    killed = report(ActorDiedError())
    raised = report(TypeError("cannot pickle"))
    errors = [ended, killed, report(OutOfMemoryError("")), ActorDiedError()]
    assert all(is_dead_worker(error) for error in errors)
    assert not any(is_dead_worker(error) for error in (raised, ValueError()))
    assert [ended_for_memory(error) for error in errors] == [True, False, True, False]
    assert ended_for_memory(OutOfMemoryError(""))
