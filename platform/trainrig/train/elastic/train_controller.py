"""Ray Train's controller, for one worker group after another in the same process.

In Ray's own way each attempt begins by starting a process for its controller and another to clean
up after it, which a run that lost a worker would wait for. Nothing here imports torch.
"""

import functools
import os
from collections.abc import Mapping
from typing import Any

from ray.train import FailureConfig, RunConfig, ScalingConfig
from ray.train.backend import Backend, BackendConfig

from trainrig.ray_runtime import ray_private
from trainrig.ray_runtime.rank_order import order_by_node
from trainrig.train.elastic.messages import WorkerGroupSpec
from trainrig.train.elastic.worker_agent import RENDEZVOUS, find_free_endpoint, run_agent

NODE_LABEL = "ray.io/node-id"


def fit(group: WorkerGroupSpec, config: Mapping[str, Any]) -> Exception | None:
    """Let each worker of `group` run an agent of `config`; what Ray raised, if anything."""
    try:
        ray_private.fit_in_this_process(
            run_agent,
            config,
            functools.partial(order_by_node, sizes=group.nested),
            backend_config=_RendezvousConfig(),
            scaling_config=ScalingConfig(  # type: ignore[call-arg] # typed as the one it replaced
                num_workers=group.workers,
                resources_per_worker={"CPU": 1},
                use_gpu=group.gpus,
                label_selector=select_nodes(group.avoid),
            ),
            run_config=RunConfig(
                name=group.name,
                storage_path=ray_private.find_train_session_folder(),
                failure_config=FailureConfig(  # type: ignore[call-arg] # typed as the one it replaced
                    max_failures=0, controller_failure_limit=0
                ),
                worker_runtime_env={"env_vars": dict(group.environment)},
            ),
        )
    except Exception as error:
        return error
    return None


def select_nodes(avoid: frozenset[str]) -> dict[str, str] | None:
    """What Ray asks of the labels of a worker's node; each has its id as one."""
    # No space after a comma: to Ray it would be part of the next id.
    return {NODE_LABEL: f"!in({','.join(sorted(avoid))})"} if avoid else None


class _RendezvousConfig(BackendConfig):
    @property
    def backend_cls(self) -> type[Backend]:
        return _RendezvousBackend


class _RendezvousBackend(Backend):
    """Tells the workers where their ranks meet: on the node of rank 0."""

    share_cuda_visible_devices = True  # peers on a node reach each other's memory

    def on_start(self, worker_group: Any, backend_config: BackendConfig) -> None:
        worker_group.execute(_set_rendezvous, worker_group.execute_single(0, find_free_endpoint))


def _set_rendezvous(rendezvous: str) -> None:
    os.environ[RENDEZVOUS] = rendezvous
