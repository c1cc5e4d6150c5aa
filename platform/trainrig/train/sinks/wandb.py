"""Weights & Biases sink.

W&B accepts each step once, in order. At the start, a driver asks for the newest step: of the
server, or of the files that were written offline. So after a kill, no step is sent twice and none
is missing. The API key comes from the environment (`WANDB_API_KEY`) or from `wandb login`, never
from a run file.
"""

import shutil
import tempfile
from collections.abc import Mapping
from typing import Any, Literal

from trainrig import storage
from trainrig.config import Field, Settings
from trainrig.errors import ConfigError
from trainrig.train.sinks.contract import ExportedRun, need_package
from trainrig.train.sinks.wandb_files import read_history

FOLDER = "wandb"  # W&B's folder in the run folder, with the offline files


class WandB(Settings):
    """Weights & Biases sink; needs the extra `wandb`."""

    kind: Literal["WandB"] = "WandB"
    project: str = Field(default="trainrig", min_length=1)  # project to log to
    entity: str | None = None  # user or team that owns the project; None: the key's default
    name: str | None = None  # name of the run; None: the name of its folder
    # "online" sends the metrics. "offline" only writes them to `wandb/` in the run folder, for
    # `wandb sync`.
    mode: Literal["online", "offline"] = "online"

    def check(self, folder: str) -> None:
        """Raise ConfigError if the metrics of the run in `folder` cannot be sent."""
        need_package("wandb", "WandB", "wandb")
        if self.mode == "offline" and folder.startswith(storage.S3):
            raise ConfigError(
                f"training.metrics.sinks: WandB writes no offline files to a bucket ({folder}); "
                "set mode = 'online', or write the run to a disk"
            )

    def open(self, run: ExportedRun) -> "WandBWriter":
        """Start sending, or resume."""
        return WandBWriter(self, run)


class WandBWriter:
    """Writer to Weights & Biases, of one driver of a run."""

    live = False

    def __init__(self, settings: WandB, run: ExportedRun) -> None:
        import wandb  # an extra, slow to import

        in_bucket = run.folder.startswith(storage.S3)
        self._scratch = tempfile.mkdtemp(prefix="trainrig-") if in_bucket else None
        self._run: Any = wandb.init(
            project=settings.project,
            entity=settings.entity,
            name=settings.name or run.name,
            id=run.id,
            resume="allow",
            reinit="finish_previous",  # a failed run is opened again
            mode=settings.mode,
            dir=self._scratch or run.folder,
            config=dict(run.settings),
            # Nothing else about this process and machine is sent: no output, no code, no host.
            settings=wandb.Settings(
                console="off",
                silent=True,
                save_code=False,
                disable_git=True,
                x_disable_stats=True,
                x_disable_meta=True,
            ),
        )

        self.sent = max(0, self._run.starting_step - 1)  # not 0 for a run that the server resumes
        if settings.mode == "offline":
            history = read_history(storage.join(run.folder, FOLDER), run.id)
            self.sent = max((line["_step"] for line in history), default=0)

    def write(self, step: int, seconds: float, values: Mapping[str, float]) -> None:
        """Send the metrics of `step`; see SinkWriter."""
        # Without it, W&B would record the time of sending.
        self._run.log({**values, "_timestamp": seconds}, step=step, commit=True)
        self.sent = step

    def close(self) -> None:
        """Send what is left, and end the W&B run; see SinkWriter."""
        try:
            self._run.finish()
        finally:
            if self._scratch:
                shutil.rmtree(self._scratch, ignore_errors=True)
