"""Ray Train's `fit`, called for one worker group after another in the same process.

Ray Train starts a process of its own for the controller of each worker group. This process keeps
the modules that the trainer needs. It does not import torch.
"""

import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import ray
from ray.train import FailureConfig, RunConfig, ScalingConfig
from ray.train.backend import Backend, BackendConfig

from trainrig.ray_runtime import ray_private
from trainrig.train.elastic.coordinator import WorkerGroupSpec
from trainrig.train.elastic.worker_agent import (
    ASSIGNED_RANK,
    RENDEZVOUS,
    call_coordinator,
    find_free_endpoint,
    run_agent,
)

NODE_LABEL = "ray.io/node-id"


def fit(group: WorkerGroupSpec, config: Mapping[str, Any]) -> Exception | None:
    """Run a worker agent with `config` on each worker of `group`; return what Ray raised.

    Returns None once all agents have ended without an error.
    """
    try:
        # The folder holds records of Ray Train that trainrig does not use. It belongs to this group
        # alone: Ray Train would restore the state of another group of the same name.
        with tempfile.TemporaryDirectory(prefix="train-", dir=group.scratch or None) as folder:
            ray_private.make_trainer(
                run_agent,
                _RankConfig(config["coordinator"], config["attempt"], group.nested),
                train_loop_config=dict(config),
                scaling_config=ScalingConfig(  # type: ignore[call-arg] # typed as the one it replaced
                    num_workers=group.workers,
                    resources_per_worker={"CPU": 1},
                    use_gpu=group.gpus,
                    label_selector=select_nodes(group.avoid),
                ),
                run_config=RunConfig(
                    name=group.name,
                    storage_path=folder,
                    failure_config=FailureConfig(  # type: ignore[call-arg] # as above
                        max_failures=0, controller_failure_limit=0
                    ),
                    worker_runtime_env={"env_vars": dict(group.environment)},
                ),
            ).fit()
    except Exception as error:
        return error
    return None


def select_nodes(avoid: frozenset[str]) -> dict[str, str] | None:
    """Return the label selector for nodes other than `avoid`; None if there are none to avoid."""
    # Without a space after the comma: Ray would make it part of the next id.
    return {NODE_LABEL: f"!in({','.join(sorted(avoid))})"} if avoid else None


@dataclass
class _RankConfig(BackendConfig):
    """Settings by which Ray's controller asks the coordinator for the ranks of a worker group."""

    coordinator: Any  # handle of the Coordinator actor
    group: int  # number of the attempt that the worker agents are started for
    nested: tuple[int, ...]  # sizes of groups of ranks to place on one node
    backend: str = "trainrig"  # read by TorchTrainer, the fallback of `ray_private.make_trainer`

    @property
    def backend_cls(self) -> type[Backend]:
        return _RankBackend


class _RankBackend(Backend):
    """Ray Train backend that gives each worker its rank, and all the rendezvous endpoint.

    The endpoint is on the node of rank 0.
    """

    share_cuda_visible_devices = True  # ranks on a node can access each other's GPU memory

    def on_start(self, worker_group: Any, backend_config: BackendConfig) -> None:
        assert isinstance(backend_config, _RankConfig)
        nodes = worker_group.execute(_find_node)
        ranks = call_coordinator(
            backend_config.coordinator.assign_ranks,
            *(backend_config.group, nodes, backend_config.nested),
        )
        rendezvous = worker_group.execute_single(ranks.index(0), find_free_endpoint)
        ray.get(
            [
                worker_group.execute_single_async(worker, _set_rank, rank, rendezvous)
                for worker, rank in enumerate(ranks)
            ]
        )


def _find_node() -> str:
    node: str = ray.get_runtime_context().get_node_id()
    return node


def _set_rank(rank: int, rendezvous: str) -> None:
    os.environ[ASSIGNED_RANK] = str(rank)
    os.environ[RENDEZVOUS] = rendezvous
