"""One rank of a process group, for tests: `python rank.py` runs the tasks from standard input.

A rank is started once and runs many tasks, because importing torch takes longer than most tests.
Ranks that may die are forked instead from a process that has imported this file (`serve`).
"""

import dataclasses
import functools
import gc
import hashlib
import itertools
import math
import os
import pickle
import resource
import signal
import sys
import threading
import time
import traceback
import warnings
import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, BinaryIO

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from support.ranks.context_rows import BytesReceived, attended
from support.ranks.expert_rows import dispatched
from support.ranks.layout_steps import paced_layouts, reached_rates
from support.ranks.made_up import MadeUp
from support.ranks.rollouts import Rollouts
from support.ranks.sent import Sent
from support.ranks.tuning_batches import Tuning
from trainrig import storage
from trainrig.errors import ClusterError
from trainrig.models.decoder import DecoderConfig
from trainrig.objectives.objective_interface import Computed, Contributions, DeviceBatch, Term
from trainrig.objectives.objective_kinds import CausalLM
from trainrig.parallel import mesh as meshes
from trainrig.parallel import numerics
from trainrig.parallel.axes.pipeline_passes import StagePass, StagePasses
from trainrig.parallel.mesh import build_mesh, find_local_device, join_group
from trainrig.parallel.precision import set_products
from trainrig.parallel.sharding import sum_exchange
from trainrig.parallel.sharding.deterministic_reduction import SummedInTree, count_peers
from trainrig.parallel.sharding.fsdp import (
    Gradients,
    SummedByRank,
    find_local_slice,
    list_units,
    shard,
)
from trainrig.parallel.stop_consensus import StopConsensus, StopQuestions
from trainrig.processes.heartbeats import UNSUPERVISED, Heartbeat, HeartbeatReporter, Stall
from trainrig.rl.online_batches import StoredRollouts
from trainrig.rl.rollout_requests import find_open, name_rollouts_folder
from trainrig.rl.sampler_process import RolloutSampler
from trainrig.tokens.batches import (
    IDS,
    TOKENS,
    MicroBatchSlot,
    assign_micro_batches,
    read_local_batch,
)
from trainrig.train import checkpoint, loop
from trainrig.train.checkpoint import reader, saver
from trainrig.train.checkpoint.manifest import CheckpointManifest
from trainrig.train.checkpoint.rank_file import tensor_file_name
from trainrig.train.elastic.rank import dump_collectives
from trainrig.train.held_out_loss import evaluate
from trainrig.train.loss_table import Loss
from trainrig.train.run import step_logger
from trainrig.train.run.run_folder import RunFolder, TrainingAttempt
from trainrig.train.run_file.training_settings import Training
from trainrig.train.state import TrainState, build_fresh_state
from trainrig.train.step import StepFigures, Stepper
from trainrig.train.training_job import OnlineSource, TrainingJob

TIMEOUT = timedelta(seconds=60)  # no test reaches it: ranks whose peers die fail at once


@dataclass(frozen=True)
class Faulty:
    """Batches that fail when a micro-batch of `step` is requested."""

    sound: Any
    step: int
    how: str  # "die", "raise" or "stall" (until the process is killed)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.sound, name)

    def micro_batch(self, step: int, index: int) -> Any:
        if step == self.step:
            if self.how == "raise":
                raise OSError("the disk of the data is gone")
            if self.how == "stall":
                signal.pause()
            die_after_saving()
        return self.sound.micro_batch(step, index)


def die_after_saving() -> None:
    """Wait until the current save is complete, and kill this process."""
    for thread in threading.enumerate():
        if thread.name == "checkpoint":
            thread.join()
    os.kill(os.getpid(), signal.SIGKILL)


def _die_before_training(step: int) -> None:
    """Have this rank die once the batch of `step` is stored, before it is trained on.

    A Faulty does not do for batches that ranks make together: it is no OnlineSource, so this rank
    would not take part in making them, and the other ranks would wait for it without end.
    """
    prepare = StoredRollouts.prepare

    def prepare_and_die(batches: StoredRollouts, *more: Any) -> None:
        prepare(batches, *more)
        if batches.state.data_step == step:
            die_after_saving()

    StoredRollouts.prepare = prepare_and_die  # type: ignore[method-assign]


@dataclass(frozen=True)
class Lacking:
    """Batches without the data of some steps."""

    sound: Any
    steps: tuple[int, ...]  # steps in ascending order

    @property
    def sources(self) -> Any:
        return self.sound.sources

    def __getattr__(self, name: str) -> Any:
        """Return a method of `sound` whose steps count only those that have data."""

        def of_another(step: int, *rest: int) -> Any:
            for missing in self.steps:
                step += step >= missing
            return getattr(self.sound, name)(step, *rest)

        return of_another


class Told:
    """Stop request by this rank from its `number`-th heartbeat of `doing` on, counted from 1."""

    def __init__(self, doing: str, number: int) -> None:
        self._doing = doing
        self._left = number

    def heartbeat(self, step: int, doing: str) -> None:
        self._left -= doing == self._doing

    def stop_wanted(self) -> bool:
        return self._left <= 0


@dataclass(frozen=True)
class Poisoned:
    """Objective with bad values for micro-batches that begin with some samples.

    "loss" and "gradient" are not finite, a "high" loss is an outlier.
    """

    sound: Any
    samples: Mapping[int, str]

    def __getattr__(self, name: str) -> Any:
        return getattr(self.sound, name)

    def compute(self, model: nn.Module, batch: DeviceBatch, statistics: Any) -> Computed:
        computed = self.sound.compute(model, batch, statistics)
        how = self.samples.get(int(batch.samples_B[0]))

        def poison(of: Contributions) -> Contributions:
            if how == "high":
                return Contributions(of.values * 30, of.counts_B)
            # The root of 0 is 0, and its gradient is infinite.
            bad = (of.values * 0).sqrt() if how == "gradient" else of.values.sum() / 0
            return Contributions(of.values + bad, of.counts_B)

        terms = {n: poison(of) for n, of in computed.terms.items()} if how else computed.terms
        return Computed(terms, computed.auxiliary)


def train(
    job: TrainingJob,
    attempt: TrainingAttempt,
    resume_from: str | None = None,
    fault: tuple[int, str, int] | None = None,
    told: tuple[int, str, int] | None = None,
    poison: Mapping[int, str] | None = None,
    lacking: tuple[int, ...] = (),
    tuning: str | None = None,
    online: int | None = None,
    of_a_node: int | None = None,
) -> int:
    """Train one attempt, and return its last step.

    `fault`: (rank, how, step); "die in save" kills when all but the manifest is written.
    `told`: (rank, doing, number), see Told. `poison`: see Poisoned. `lacking`: steps without data.
    `tuning`: see Tuning. `online`: updates of each batch of Rollouts. `of_a_node`: number of
    neighbours that act as if they shared a separate node.
    """
    name = f"node {dist.get_rank() // of_a_node}" if of_a_node else meshes.find_node_name()
    step_logger.find_node_name = lambda: name
    if online:
        job = dataclasses.replace(job, make_batches=lambda: Rollouts(online))
    if tuning:
        tokens = job.make_batches
        job = dataclasses.replace(job, make_batches=lambda: Tuning(tokens(), tuning))
    if lacking:
        sound_batches = job.make_batches
        job = dataclasses.replace(job, make_batches=lambda: Lacking(sound_batches(), lacking))
    if fault and dist.get_rank() == fault[0]:
        _, how, step = fault
        if how == "die in save":
            sound = saver.commit

            def commit(target: str, manifest: CheckpointManifest) -> None:
                if manifest.step == step:
                    os.kill(os.getpid(), signal.SIGKILL)
                sound(target, manifest)

            saver.commit = commit
        elif how == "die before training" or isinstance(job.make_batches(), OnlineSource):
            assert how.startswith("die"), f"fault '{how}': not for batches that ranks make together"
            _die_before_training(step)
        else:
            make = job.make_batches
            # Nothing is prefetched, so that all earlier steps are done.
            training = job.training.model_copy(update={"prefetch_steps": 0})
            job = dataclasses.replace(
                job, training=training, make_batches=lambda: Faulty(make(), step, how)
            )
    heartbeats = Told(*told[1:]) if told and told[0] == dist.get_rank() else UNSUPERVISED
    if poison:
        objective: Any = Poisoned(job.objective, poison)
        job = dataclasses.replace(job, objective=objective)
    return loop.train(job, attempt, resume_from, heartbeats).step


def sample_for(job: TrainingJob, until: str, last: int | None = None, imports: str = "") -> int:
    """Sample for the ranks of `job` until the file `until` exists, and return the number of units.

    Batches after `last` are not sampled. The process group has one rank, as an actor's has.
    `imports`: a folder of modules.
    """
    sys.path[:0] = [imports] if imports else []
    sampler = RolloutSampler(job)
    sampled = 0
    while not Path(until).exists():
        found = find_open(name_rollouts_folder(RunFolder(job.folder)))
        wanted = [opened for opened in found if last is None or opened[0].number <= last]
        if not wanted:
            time.sleep(0.005)
            continue
        request, missing = wanted[0]
        sampler.sample(request, missing[-1])
        sampled += 1
    return sampled


def tensors(
    job: TrainingJob, resume_from: str | None = None, weights_from: str | None = None
) -> dict[str, Any]:
    """Return all full tensors of a state, fresh or loaded, and its counters."""
    state = build_fresh_state(job, find_local_device())
    if resume_from:
        checkpoint.load(resume_from, state, job, job.make_batches())
    if weights_from:
        checkpoint.load_weights(weights_from, state, job)
    return _whole(state) | {"counters": (state.step, state.data_step, state.tokens)}


def saved(
    job: TrainingJob,
    attempt: TrainingAttempt,
    limit: tuple[int, int] | None = None,
    resume_from: str | None = None,
) -> str:
    """Save a state, fresh or loaded, and return the error of `finish` or an empty string.

    `limit`: (rank, bytes of its files).
    """
    state = build_fresh_state(job, find_local_device())
    if resume_from:
        checkpoint.load(resume_from, state, job, job.make_batches())
    saver_here = checkpoint.Saver(RunFolder(job.folder), attempt, job, job.make_batches())
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    if limit and dist.get_rank() == limit[0]:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit[1], before[1]))
    try:
        saver_here.save(state)
        saver_here.finish()
    except ClusterError as error:
        return str(error)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    return ""


def read_back(job: TrainingJob, attempt: TrainingAttempt, spoilt_by: int) -> tuple[str, str]:
    """Save a fresh state, let rank `spoilt_by` damage its file, and read everything back.

    Returns the type and the message of this rank's error.
    """
    state = build_fresh_state(job, find_local_device())
    saver_here = checkpoint.Saver(RunFolder(job.folder), attempt, job, job.make_batches())
    saver_here.save(state)
    saver_here.finish()
    dist.barrier()  # the first rank still reads the sizes of all files for its clean-up
    if dist.get_rank() == spoilt_by:
        (path,) = Path(job.folder).glob(f"checkpoints/*/*/{tensor_file_name(spoilt_by)}")
        data = path.read_bytes()
        path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    try:
        saver_here.verify(lambda: None)
    except Exception as error:
        return type(error).__name__, str(error)
    return "", ""


def refusal(job: TrainingJob, resume_from: str, seen_by: int | None = None) -> tuple[str, str]:
    """Return type and message of this rank's loading error.

    `seen_by`: the rank that finds the damage.
    """
    sound = reader.read_tensors

    def read_tensors(path: str, tensors: Any, manifest: CheckpointManifest) -> None:
        sound(path, tensors, manifest)
        if dist.get_rank() == seen_by:
            raise checkpoint.DamagedCheckpoint(f"{path}: seen by rank {seen_by}")

    try:
        reader.read_tensors = read_tensors
        checkpoint.load(
            resume_from, build_fresh_state(job, find_local_device()), job, job.make_batches()
        )
    except Exception as error:
        return type(error).__name__, str(error)
    finally:
        reader.read_tensors = sound
    return "", ""


def requests(job: TrainingJob, resume_from: str) -> list[tuple[str, int, int]]:
    """Return the file, first byte and length of each read of this rank when it resumes.

    Length 0 is the whole file.
    """
    asked: list[tuple[str, int, int]] = []
    whole = storage.read
    part = storage.read_into

    def read(path: str) -> bytes:
        asked.append((path, 0, 0))
        return whole(path)

    def read_into(path: str, begin: int, buffer: memoryview) -> int:
        asked.append((path, begin, len(buffer)))
        return part(path, begin, buffer)

    state = build_fresh_state(job, find_local_device(), draw=False)
    try:
        storage.read = read
        storage.read_into = read_into
        checkpoint.load(resume_from, state, job, job.make_batches())
    finally:
        storage.read = whole
        storage.read_into = part
    there = (read for read in asked if read[0].startswith(resume_from))
    return sorted((path.rpartition("/")[2], begin, size) for path, begin, size in there)


def parts(job: TrainingJob) -> dict[str, int]:
    """Return the number of elements of each weight of a fresh state that this rank holds."""
    state = build_fresh_state(job, find_local_device())
    return {name: p.to_local().numel() for name, p in state.model.named_parameters()}  # type: ignore[attr-defined]


def gathered_for_a_save(job: TrainingJob) -> int:
    """Return the bytes of full rows that this rank holds besides its slices in a save."""
    state = build_fresh_state(job, find_local_device())
    held = state.list_counted_tensors()
    new = (rows for name, rows in state.rows(held).items() if rows is not held[name])
    return sum(find_local_slice(rows)[0].nbytes for rows in new)


def _as_numpy(tensor: Tensor) -> Any:
    """Return a numpy copy; bfloat16, which numpy lacks, becomes float32."""
    own = tensor.detach().clone()
    return (own.float() if own.dtype == torch.bfloat16 else own).numpy()


def _whole(state: TrainState) -> dict[str, Any]:
    """Return the full tensor of each that this rank has a part of.

    `full_tensor` caches meshes that look the same, with their groups. Those groups no longer exist
    where a process has had several after another. Ranks of other stages have other tensors.
    """
    held = {name: t for name, t in state.list_tensors().items() if isinstance(t, DTensor)}
    everywhere: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everywhere, {name: find_local_slice(t) for name, t in held.items()})
    found = {}
    for name, tensor in state.list_tensors().items():
        if name in held:
            whole = torch.empty(tensor.shape, dtype=tensor.dtype)
            for part, begin in (
                parts_of_rank[name] for parts_of_rank in everywhere if name in parts_of_rank
            ):
                places = zip(begin, part.shape, strict=True)
                whole[tuple(slice(first, first + size) for first, size in places)] = part
            tensor = whole
        found[name] = _as_numpy(tensor)
    return found


def held_out_loss(job: TrainingJob, stop_before: int | None = None) -> Loss | None:
    """Return the held-out loss of a fresh state, or None if stopped before a micro-batch."""
    sets = job.make_held_out()
    assert sets is not None
    asked = itertools.count()
    state = build_fresh_state(job, find_local_device())
    return evaluate(
        job.objective, state.model, sets, lambda: next(asked) == stop_before, state.mesh
    )


class Spread:
    """Objective with two terms, a statistic of the global batch and an auxiliary term.

    The terms, with separate denominators, are cross-entropy and the distance of each row's log Z
    from the batch's mean.
    """

    kind = "Spread"
    terms = (Term("cross_entropy", TOKENS), Term("spread", "rows", weight=0.1))
    statistics = ("log_z", "rows")

    def measure(self, model: nn.Module, batch: DeviceBatch) -> dict[str, Tensor]:
        log_z_B = model(batch.arrays[IDS]).logits.logsumexp(-1).mean(1)
        return {"log_z": log_z_B.double().sum(), "rows": torch.tensor(float(len(log_z_B)))}

    def compute(self, model: nn.Module, batch: DeviceBatch, statistics: Any) -> Computed:
        output = model(batch.arrays[IDS])
        plain = CausalLM()
        nats = plain.compute(lambda ids: output, batch, {}).terms["cross_entropy"]
        log_z_B = output.logits.logsumexp(-1).mean(1)
        mean = statistics["log_z"] / statistics["rows"]
        spread = Contributions((log_z_B - mean).square(), torch.ones(len(log_z_B)))
        terms = {"cross_entropy": nats, "spread": spread}
        return Computed(terms, {"mean_logit": output.logits.mean() * 0.01})


@dataclass(frozen=True)
class CountingRows:
    """Batches that also count the rows of a step."""

    sound: Any

    def __getattr__(self, name: str) -> Any:
        return getattr(self.sound, name)

    def denominators(self, step: int) -> dict[str, int]:
        rows = sum(len(micro.ids) for micro in self.sound.at(step))
        return self.sound.denominators(step) | {"rows": rows}


def spread_steps(job: TrainingJob, count: int) -> dict[str, Any]:
    """Return the results of `steps` with the objective Spread."""
    made = job.make_batches
    objective = Spread()
    batches = functools.partial(CountingRows, made())
    return steps(dataclasses.replace(job, make_batches=batches, objective=objective), count)


def tuning_steps(job: TrainingJob, count: int, kind: str) -> dict[str, Any]:
    """Return the results of `steps` on batches of pairs or of labelled completions."""
    made = job.make_batches
    return steps(dataclasses.replace(job, make_batches=lambda: Tuning(made(), kind)), count)


def steps(job: TrainingJob, count: int) -> dict[str, Any]:
    """Return the results of the first `count` steps of a fresh state, without a save."""
    state, taken = _take(job, count)
    losses = [figures.loss for figures in taken]
    whole = _whole(state)
    digest = hashlib.sha256(b"".join(whole[name].tobytes() for name in sorted(whole))).hexdigest()
    dtypes = {str(tensor.dtype) for tensor in state.list_tensors().values()}
    return {
        "losses": [loss.total for loss in losses],
        "parts": [(dict(loss.terms), dict(loss.by_source)) for loss in losses],
        "counts": [dict(loss.counts) for loss in losses],
        "digest": digest,
        "dtypes": dtypes,
        "diagnostics": [dict(loss.diagnostics) for loss in losses],
    }


def answers_learnt(jobs: Mapping[str, TrainingJob], count: int) -> dict[str, dict[str, Any]]:
    """Return the results of `count` steps of each of `jobs`, from fresh weights.

    They are training and held-out losses as dictionaries, gradient norms, and the weights. Frozen
    models of a job are loaded.
    """
    found = {}
    for name, job in jobs.items():
        state, taken = _take(job, count)
        sets = job.make_held_out()
        assert sets is not None
        asked: Any = (job.objective, state.model, sets, lambda: False, state.mesh, state.others)
        held_out = evaluate(*asked)
        assert held_out is not None
        whole = _whole(state)
        found[name] = {
            "losses": [dataclasses.asdict(figures.loss) for figures in taken]
            + [dataclasses.asdict(held_out)],
            "norms": [figures.grad_norm for figures in taken],
            "weights": {n: tensor for n, tensor in whole.items() if n.startswith("model.")},
        }
    return found


def _take(job: TrainingJob, count: int) -> tuple[TrainState, list[StepFigures]]:
    """Return the state after `count` steps of a fresh one, and the figures of each step."""
    training = job.training
    numerics.settle(training.threads, training.deterministic)
    set_products(training.precision)
    batches = job.make_batches()
    state = build_fresh_state(job, find_local_device())
    checkpoint.load_frozen(state, job)
    stepper = Stepper(job, batches.sources, state, lambda: False)
    virtual = training.virtual_workers if training.deterministic else None
    by_round = training.deterministic and training.parallel.by_micro_batch
    taken = []
    for step in range(count):
        share = read_local_batch(
            batches,
            state.mesh.data_rank,
            state.mesh.data_size,
            step,
            virtual=virtual,
            peers=count_peers(state.mesh, by_round),
        )
        figures = stepper.take(share)
        assert figures is not None
        taken.append(figures)
    return state, taken


def pace(
    model: dict[str, Any], training: dict[str, Any], count: int, shape: tuple[int, int], steps: int
) -> list[tuple[float, float]]:
    """Return wall and CPU seconds of each of `steps` steps of `count` micro-batches.

    An untimed step comes first.
    """
    settings = Training.model_validate(training | {"steps": steps + 1})
    numerics.settle(settings.threads, settings.deterministic)
    job = TrainingJob("", DecoderConfig.model_validate(model), settings, tuple, "")
    state = build_fresh_state(job, find_local_device())
    agreed = functools.partial(StopConsensus(TIMEOUT).any, False)
    stepper = Stepper(job, MadeUp.sources, state, agreed)
    virtual = settings.virtual_workers if settings.deterministic else None
    batches = MadeUp(count, shape, job.model.shape.vocabulary)
    found = []
    for step in range(steps + 1):
        share = read_local_batch(
            batches, state.mesh.data_rank, state.mesh.data_size, step, virtual=virtual
        )
        dist.barrier()
        began = time.perf_counter(), time.process_time()
        stepper.take(share)
        found.append((time.perf_counter() - began[0], time.process_time() - began[1]))
    return found[1:]


def sharded_gradient(factors: tuple[float, ...], deterministic: bool) -> tuple[list[Any], float]:
    """Return gradients of `factor × sum(model(1))`, summed over ranks, and their norm.

    Each rank has another factor.
    """
    torch.manual_seed(0)
    layers = nn.ModuleList([nn.Linear(6, 6, bias=False) for _ in range(2)])
    model = nn.Sequential(*layers)
    made = build_mesh(find_local_device())
    root = shard(model, layers, made.sharding)
    parameters = list(model.parameters())
    gradients: Gradients = (
        SummedInTree([root], parameters, True, made)
        if deterministic
        else SummedByRank([root], gather_once=True)
    )
    rank = dist.get_rank()
    world = dist.get_world_size()
    gradients.begin(world, world)
    loss = model(torch.ones(1, 6)).sum() * factors[rank]
    gradients.backward(loss, MicroBatchSlot(rank, True, rank, closes=True), last=True)
    gradients.finish()
    norm = float(gradients.compute_norm(parameters))
    return [p.grad.full_tensor().numpy() for p in parameters], norm


def exact_sums(cases: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return gradient digests, norms and sent bytes of a small model's step, for each of `cases`.

    Norms are the gradient's, and the mean squared norm of virtual workers. Bytes are those that
    this rank sends to each other. A case has the number of "micro_batches" and of "virtual"
    workers, the "copies" of the model, the neighbours "of_a_node", and whether sums go
    "by_micro_batch".
    """
    sound = meshes.find_node_name
    rank = dist.get_rank()
    found = []
    for case in cases:
        of_a_node = case.get("of_a_node", 1)
        meshes.find_node_name = lambda size=of_a_node: f"node {rank // size}"  # type: ignore[misc]
        made = build_mesh(find_local_device(), case.get("copies"))
        meshes.find_node_name = sound
        torch.manual_seed(0)
        layers = nn.ModuleList([nn.Linear(6, 6, bias=False), nn.Linear(6, 9), nn.Linear(9, 4)])
        model = nn.Sequential(*layers)
        root = shard(model, layers, made.sharding, gather_once=False)
        parameters = list(model.parameters())
        by_micro_batch = case.get("by_micro_batch", False)
        gradients = SummedInTree([root], parameters, False, made, by_micro_batch=by_micro_batch)
        shape = case["micro_batches"], case["virtual"]
        slots = assign_micro_batches(
            *shape, made.data_rank, made.data_size, count_peers(made, by_micro_batch)
        )
        gradients.begin(*shape, measured=True)
        with Sent() as sent:
            for number, slot in enumerate(slots):
                dice = torch.Generator().manual_seed(slot.index)
                loss = model(torch.randn(3, 6, generator=dice)).square().sum()
                gradients.backward(loss, slot, last=number == len(slots) - 1)
            gradients.finish()
        whole = [parameter.grad.full_tensor().numpy().tobytes() for parameter in parameters]
        digest = hashlib.sha256(b"".join(whole)).hexdigest()
        norm = float(gradients.compute_norm(parameters))
        squared = float(gradients.compute_part_squared())
        found.append({"digest": digest, "norm": norm, "squared": squared, "to": dict(sent.to)})
    return found


def under_way(layers: int) -> tuple[int, int, int]:
    """Return the bytes of one of equal layers, and the maxima sent but not yet summed.

    The maxima in a backward pass are in bytes and in units, counted when each unit's transfer
    begins.
    """
    most = [0, 0]
    sound = sum_exchange.PendingTransfer.to_all
    waiting: weakref.WeakSet[Any] = weakref.WeakSet()

    def to_all(*arguments: Any) -> Any:
        made = sound(*arguments)
        waiting.add(made)
        tensors = [t for transfer in waiting for t in (transfer.outgoing, transfer.incoming)]
        held = {t.data_ptr(): t.nbytes for t in tensors}
        most[:] = max(most[0], sum(held.values())), max(most[1], len(waiting))
        return made

    made = nn.ModuleList([nn.Linear(64, 64, bias=False) for _ in range(layers)])
    model = nn.Sequential(*made)
    mesh = build_mesh(find_local_device())
    root = shard(model, made, mesh.sharding, gather_once=False)
    gradients = SummedInTree([root], list(model.parameters()), False, mesh)
    rank = dist.get_rank()
    world = dist.get_world_size()
    try:
        sum_exchange.PendingTransfer.to_all = to_all  # type: ignore[method-assign, assignment]
        gradients.begin(world, world)
        slot = MicroBatchSlot(rank, True, rank, closes=True)
        gradients.backward(model(torch.ones(1, 64)).sum(), slot, last=True)
    finally:
        sum_exchange.PendingTransfer.to_all = sound  # type: ignore[method-assign]
    gradients.finish()
    return 64 * 64 * 4, most[0], most[1]


def agreed(mine: tuple[bool, ...]) -> bool:
    """Return the decision of all ranks, each of which votes with one of `mine`."""
    return StopConsensus(TIMEOUT).any(mine[dist.get_rank()])


def asked_to_stop(wanting: int, at: int, micro_batches: int) -> int:
    """Return the micro-batch, from 1, before which this rank stops.

    Rank `wanting` requests the stop from micro-batch `at` on.
    """
    questions = StopQuestions(StopConsensus(TIMEOUT), within=600.0)
    number = 0
    for step in itertools.count():
        for _ in range(micro_batches):
            number += 1
            if questions.ask(step, dist.get_rank() == wanting and number >= at):
                return number
    raise AssertionError


def waits_in_vain(folder: str) -> list[dict[str, Any]]:
    """Return the events in `folder` while rank 0 waits in a collective.

    The other ranks join once there is an event.
    """
    attempt = TrainingAttempt(3, 0)
    record = RunFolder(folder)
    until = time.monotonic() + TIMEOUT.total_seconds()
    if dist.get_rank():
        while not any(e["event"] == "collectives_dumped" for e in record.read_events()):
            assert time.monotonic() < until
            time.sleep(0.01)
        dist.all_reduce(torch.ones(5))
        return []
    stall = Stall(
        lambda beat: 0.05 if beat.doing == "train" else math.inf,
        lambda beat: dump_collectives(record, attempt, beat),
    )
    reporter = HeartbeatReporter(Heartbeat(0, (), ""), lambda _: False, 0.02, 0.2, stall)
    reporter.heartbeat(0, "train")
    dist.all_reduce(torch.ones(5))
    reporter.close()
    return list(record.read_events())


def mesh(**degrees: int) -> dict[str, Any]:
    """Return this rank's view of the mesh of all ranks."""
    made = build_mesh(find_local_device(), **degrees)
    return {
        "axes": made.devices.mesh_dim_names,
        "sharding": tuple(made.sharding.shape),
        "data": (made.data_rank, made.data_size),
        "speaks": made.is_reporter,
        "slices": (made.slices.rank, made.slices.size),
        "context": (made.context.rank, made.context.size),
        "tensor": (made.tensor.rank, made.tensor.size),
        "expert": (made.expert.rank, made.expert.size),
        "expert_slices": (made.expert_slices.rank, made.expert_slices.size),
        "pipeline": (made.pipeline.rank, made.pipeline.size),
    }


def sent_bytes(job: TrainingJob, flat: bool = False) -> dict[str, int]:
    """Return the bytes that this rank sends in a step, by collective; `flat`: see Sent."""
    counted = []
    for count in (1, 2):
        with Sent(flat) as sent:
            steps(job, count)
        counted.append(sent.bytes)
    return dict(counted[1] - counted[0])


def units_sent(model: dict[str, Any], reshard: str) -> tuple[list[str], list[str], dict[str, bool]]:
    """Return the modules that are gathered and whose gradients are sent in a step, in order.

    The step has two micro-batches. Also returned: which modules are gathered between the forward
    and the backward pass.
    """
    settings = Training(
        steps=10, deterministic=False, parallel={"kind": "FSDP", "reshard": reshard}
    )  # type: ignore[arg-type]
    config = DecoderConfig.model_validate(model)
    job = TrainingJob("", config, settings, tuple, "")
    state = build_fresh_state(job, find_local_device())
    stepper = Stepper(job, MadeUp.sources, state, lambda: False)
    named = {unit: name for name, unit in state.model.named_modules()}
    groups = {
        named[unit]: unit._get_fsdp_state()._fsdp_param_group for unit in list_units(state.model)
    }
    gathered = []
    sent = []
    between = {}

    for name, group in groups.items():
        unit = state.model.get_submodule(name)
        unit.set_custom_all_gather(_Noted(group._all_gather_comm, gathered, name))
        unit.set_custom_reduce_scatter(_Noted(group._reduce_scatter_comm, sent, name))
    inner = stepper._gradients.backward

    def backward(loss: Tensor, slot: MicroBatchSlot, last: bool, chunk: int = 0) -> None:
        between.update({name: group.is_unsharded for name, group in groups.items()})
        inner(loss, slot, last, chunk)

    stepper._gradients.backward = backward  # type: ignore[method-assign]
    rank = dist.get_rank()
    world = dist.get_world_size()
    batches = MadeUp(2 * world, (1, 4), config.shape.vocabulary)
    with warnings.catch_warnings():  # a warning of views, on which FSDP's hooks may be lost
        warnings.filterwarnings("error", message="FSDP2-wrapped module")
        stepper.take(read_local_batch(batches, rank, world, 0))
    return gathered, sent, between


class _Noted:
    """Collective of FSDP that records the `name` of its module."""

    def __init__(self, collective: Any, record: list[str], name: str) -> None:
        self._collective = collective
        self._record = record
        self._name = name
        self.allocate = collective.allocate

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self._record.append(self._name)
        return self._collective(*args, **kwargs)


def held_between(layers: int, training: dict[str, Any], count: int) -> list[int]:
    """Return the bytes of full gradients held after each micro-batch of a step."""
    sizes = {"layers": layers, "channels": 32, "heads": 2, "vocabulary": 64, "positions": 8}
    settings = Training.model_validate(training | {"steps": 10})
    numerics.settle(1, settings.deterministic)
    model = DecoderConfig.model_validate(sizes)
    job = TrainingJob("", model, settings, tuple, "")
    state = build_fresh_state(job, find_local_device())
    stepper = Stepper(job, MadeUp.sources, state, lambda: False)
    inner = stepper._gradients.backward
    held = []

    def backward(loss: Tensor, slot: MicroBatchSlot, last: bool, chunk: int = 0) -> None:
        inner(loss, slot, last, chunk)
        groups = [unit._get_fsdp_state()._fsdp_param_group for unit in list_units(state.model)]
        parts = [part for group in groups if group for part in group.fsdp_params]
        # In float32 the gradient stays with the parameter; in fewer bits it is stored separately.
        whole = [part._unsharded_param.grad for part in parts]
        whole += [part.unsharded_accumulated_grad for part in parts]
        held.append(sum(gradient.nbytes for gradient in whole if gradient is not None))

    stepper._gradients.backward = backward  # type: ignore[method-assign]
    rank = dist.get_rank()
    world = dist.get_world_size()
    batches = MadeUp(count, (1, 4), model.shape.vocabulary)
    stepper.take(read_local_batch(batches, rank, world, 0))
    return held


class Peak(TorchDispatchMode):
    """Peak of the bytes of tensors created inside the block."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = self.most = 0
        self._seen: weakref.WeakSet[Any] = weakref.WeakSet()

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        made = function(*args, **(kwargs or {}))
        given = {
            id(tensor.untyped_storage()) for tensor in tree_leaves((args, kwargs)) if _plain(tensor)
        }
        for tensor in tree_leaves(made):
            storage = tensor.untyped_storage() if _plain(tensor) else None
            if storage is not None and id(storage) not in given and storage not in self._seen:
                self._seen.add(storage)
                self.bytes += storage.nbytes()
                weakref.finalize(storage, self._free, storage.nbytes())
        self.most = max(self.most, self.bytes)
        return made

    def _free(self, count: int) -> None:
        self.bytes -= count


def _plain(value: Any) -> bool:
    return isinstance(value, Tensor) and not isinstance(value, DTensor)


def peak_in_a_step(
    layers: int, training: dict[str, Any], count: int, vocabulary: int = 32, tied: bool = True
) -> int:
    """Return the peak bytes of tensors created in the second step.

    Weights and the optimizer's moments existed before.
    """
    sizes = {"layers": layers, "channels": 64, "heads": 2, "positions": 8}
    sizes |= {"vocabulary": vocabulary, "tie_embeddings": tied}
    settings = Training.model_validate(training | {"steps": 10})
    numerics.settle(1, settings.deterministic)
    model = DecoderConfig.model_validate(sizes)
    job = TrainingJob("", model, settings, tuple, "")
    state = build_fresh_state(job, find_local_device())
    stepper = Stepper(job, MadeUp.sources, state, lambda: False)
    rank = dist.get_rank()
    world = dist.get_world_size()
    batches = MadeUp(count, (1, 4), model.shape.vocabulary)
    virtual = settings.virtual_workers if settings.deterministic else None
    by_round = settings.deterministic and settings.parallel.by_micro_batch
    for step in range(2):
        share = read_local_batch(
            batches, rank, world, step, virtual=virtual, peers=count_peers(state.mesh, by_round)
        )
        with Peak() as peak:
            stepper.take(share)
    return peak.most


def kept_for_backward(job: TrainingJob) -> int:
    """Return the bytes that a forward pass keeps for its backward pass.

    Parameters were gathered before.
    """
    numerics.settle(1, job.training.deterministic)
    state = build_fresh_state(job, find_local_device())
    batches = job.make_batches()
    micro = DeviceBatch.copy(batches.micro_batch(0, 0), find_local_device())
    batch = state.split.take_part(micro)
    passes = StagePasses(state.model, state.mesh)
    passes.forward(job.objective, batch, {})
    gc.collect()
    with Peak() as peak:
        passed = passes.forward(job.objective, batch, {})
        gc.collect()
        left = peak.bytes
    assert passed.computed is not None
    return left


def stages(job: TrainingJob) -> dict[str, int]:
    """Return the maximum of micro-batches between their passes, and the bytes from other stages."""
    alive: weakref.WeakSet[StagePass] = weakref.WeakSet()
    most = 0
    sound = StagePasses.forward

    def forward(*arguments: Any) -> StagePass:
        nonlocal most
        passed = sound(*arguments)
        alive.add(passed)
        most = max(most, len(alive))
        return passed

    counted = []
    try:
        StagePasses.forward = forward  # type: ignore[method-assign, assignment]
        for count in (1, 2):
            with BytesReceived() as received:
                steps(job, count)
            counted.append(received.counted.get("recv_", 0))
    finally:
        StagePasses.forward = sound  # type: ignore[method-assign]
    return {"most": most, "received": counted[1] - counted[0]}


def main() -> None:
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # output of libraries must not mix with the answers
    answer_tasks(sys.stdin.buffer, answers)


def serve(channel: Connection) -> None:
    """Run `python rank.py`'s loop in a process forked by a fork server.

    Both ends use `channel` as a stream of bytes.
    """
    os.dup2(2, 1)
    channel.recv()  # the parent has to write something first
    with os.fdopen(os.dup(channel.fileno()), "rb") as tasks:
        answer_tasks(tasks, os.fdopen(os.dup(channel.fileno()), "wb"))


def answer_tasks(tasks: BinaryIO, answers: BinaryIO) -> None:
    """Run each of `tasks` until they end."""
    done = (
        train,
        sample_for,
        tensors,
        saved,
        read_back,
        refusal,
        requests,
        parts,
        held_out_loss,
        steps,
        spread_steps,
        tuning_steps,
        answers_learnt,
        pace,
        paced_layouts,
        reached_rates,
        sharded_gradient,
        under_way,
        exact_sums,
        agreed,
        asked_to_stop,
        waits_in_vain,
        mesh,
        sent_bytes,
        held_between,
        units_sent,
        peak_in_a_step,
        attended,
        dispatched,
        stages,
        kept_for_backward,
        gathered_for_a_save,
    )
    actions = {function.__name__: function for function in done}
    gc.freeze()  # imported objects stay: the collector need not scan them after each task
    for action, arguments, join in iter(functools.partial(pickle.load, tasks), None):
        try:
            # On a busy machine gloo may fail to connect, and that fails this task alone.
            join_group(*join, TIMEOUT)  # type: ignore[call-arg]
            answer = (True, actions[action](**arguments))
        except Exception:
            answer = (False, traceback.format_exc())
        finally:
            if dist.is_initialized():
                dist.destroy_process_group()
            _let_go_of_groups()
        pickle.dump(answer, answers)
        answers.flush()


def _let_go_of_groups() -> None:
    """End the threads of groups that are no longer used.

    DTensor caches its layouts, these their meshes, and these their groups. Three gloo threads of
    each group would otherwise wake a hundred times a second as long as the process lives.
    """
    gc.collect()
    for mesh in gc.get_objects():
        if type(mesh) is DeviceMesh:
            vars(mesh).get("_pg_registry", {}).clear()


if __name__ == "__main__":
    main()
