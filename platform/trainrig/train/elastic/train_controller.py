"""Ray Train's controller, for one worker group after another in the same process.

In Ray's own way each attempt begins by starting a process for its controller and another to clean
up after it, which a run that lost a worker would wait for. Nothing here imports torch.
"""

import asyncio
import os
from collections.abc import Mapping
from typing import Any

from ray.train.backend import Backend, BackendConfig
from ray.train.constants import _get_ray_train_session_dir
from ray.train.v2._internal.callbacks.datasets import DatasetsCallback
from ray.train.v2._internal.callbacks.placement_group_callback import PlacementGroupCleanerCallback
from ray.train.v2._internal.execution.controller import TrainController
from ray.train.v2._internal.execution.scaling_policy import FixedScalingPolicy
from ray.train.v2._internal.execution.worker_group import state, worker_group
from ray.train.v2.api.config import FailureConfig, RunConfig, ScalingConfig
from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer
from ray.train.v2.api.result import Result

from trainrig.train.elastic.messages import WorkerGroupSpec
from trainrig.train.elastic.worker_agent import RENDEZVOUS, free_endpoint, run_agent


class _NoBarrier:
    """In place of Ray Train's actor at which workers wait for each other to report: ours do not.

    It would take a process of each worker group, which starts with the worker agents and never
    rests: on two cores two worker agents were up after 2.1 s instead of 1.5.
    """

    def options(self, **options: Any) -> "_NoBarrier":
        return self

    def remote(self, **arguments: Any) -> str:
        return "no barrier"  # something must be there


worker_group.SynchronizationActor = _NoBarrier()  # type: ignore[assignment, attr-defined]
state._shutdown_sync_actor = lambda sync_actor: None


def fit(group: WorkerGroupSpec, config: Mapping[str, Any]) -> Exception | None:
    """Let each worker of `group` `keep(config)`; what Ray raised in the end, if anything."""
    try:
        _trainer(group, config).fit()
    except Exception as error:
        return error
    return None


def _trainer(group: WorkerGroupSpec, config: Mapping[str, Any]) -> "_Trainer":
    return _Trainer(
        run_agent,
        train_loop_config=dict(config),
        backend_config=_RendezvousConfig(),
        scaling_config=ScalingConfig(
            num_workers=group.workers, resources_per_worker={"CPU": 1}, use_gpu=group.gpus
        ),
        run_config=RunConfig(  # type: ignore[arg-type] # typed as the one it replaced
            name=group.name,
            storage_path=_get_ray_train_session_dir(),  # Ray's own record is of use to nobody
            failure_config=FailureConfig(max_failures=0, controller_failure_limit=0),
            worker_runtime_env={"env_vars": dict(group.environment)},
        ),
    )


class _Trainer(DataParallelTrainer):
    def _initialize_and_run_controller(self, **arguments: Any) -> Result:
        """Here, in this process."""
        policy = _SilentFixedScaling(self.scaling_config)  # type: ignore[arg-type] # likewise
        controller = TrainController(**arguments | {"scaling_policy": policy})
        asyncio.run(controller.run())  # type: ignore[no-untyped-call]
        return controller.get_result()

    def _create_default_callbacks(self) -> list[Any]:
        """Without those that start processes for nothing.

        The driver removes what a failed attempt leaves reserved, and no data comes through Ray.
        """
        idle = (PlacementGroupCleanerCallback, DatasetsCallback)
        every = super()._create_default_callbacks()
        return [each for each in every if not isinstance(each, idle)]


class _SilentFixedScaling(FixedScalingPolicy):
    """Asks Ray's autoscaler for nothing: the run does, for all that it would like to have."""

    def after_controller_start(self, train_run_context: Any) -> None:
        """Say nothing."""

    def _maybe_send_resource_request(self) -> None:
        pass


class _RendezvousConfig(BackendConfig):
    @property
    def backend_cls(self) -> type[Backend]:
        return _RendezvousBackend


class _RendezvousBackend(Backend):
    """Tells the workers where their ranks meet: on the node of rank 0."""

    share_cuda_visible_devices = True  # peers on a node reach each other's memory

    def on_start(self, worker_group: Any, backend_config: BackendConfig) -> None:
        worker_group.execute(_set_rendezvous, worker_group.execute_single(0, free_endpoint))


def _set_rendezvous(rendezvous: str) -> None:
    os.environ[RENDEZVOUS] = rendezvous
