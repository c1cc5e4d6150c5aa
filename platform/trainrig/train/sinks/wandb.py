"""Weights & Biases.

A step of its history can be written once and in order alone. How far it has got is asked of W&B
whenever a driver begins: of the server, or of the files that were written offline. So after a kill
no step is there twice, and none is missing. The key is the environment's, `WANDB_API_KEY`, or that
of `wandb login`; a run file never holds it.
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

FOLDER = "wandb"  # below the run folder: W&B's own, with what is written offline


class WandB(Settings):
    """Weights & Biases; needs the extra `wandb`."""

    kind: Literal["WandB"] = "WandB"
    project: str = Field(default="trainrig", min_length=1)  # project to log to
    entity: str | None = None  # user or team whose project it is; None: the key's own
    name: str | None = None  # name of the run; None: that of its folder
    # "offline": written to `wandb/` in the run folder, for `wandb sync`; nothing is sent.
    mode: Literal["online", "offline"] = "online"

    def check(self, folder: str) -> None:
        """Raise ConfigError if the run in `folder` cannot be sent."""
        need_package("wandb", "WandB", "wandb")
        if self.mode == "offline" and folder.startswith(storage.S3):
            raise ConfigError(
                f"training.metrics.sinks: WandB writes no offline files to a bucket ({folder}); "
                "set mode = 'online', or write the run to a disk"
            )

    def open(self, run: ExportedRun) -> "WandBWriter":
        """Begin to send, or go on."""
        return WandBWriter(self, run)


class WandBWriter:
    """Of one driver of a run."""

    live = False

    def __init__(self, settings: WandB, run: ExportedRun) -> None:
        import wandb  # an extra, and slow to import

        in_bucket = run.folder.startswith(storage.S3)
        self._scratch = tempfile.mkdtemp(prefix="trainrig-") if in_bucket else None
        self._run: Any = wandb.init(
            project=settings.project,
            entity=settings.entity,
            name=settings.name or run.name,
            id=run.id,
            resume="allow",
            reinit="finish_previous",  # one that failed is opened again
            mode=settings.mode,
            dir=self._scratch or run.folder,
            config=dict(run.settings),
            # Of this process and machine nothing is sent beside: no output, no code, no host.
            settings=wandb.Settings(
                console="off",
                silent=True,
                save_code=False,
                disable_git=True,
                x_disable_stats=True,
                x_disable_meta=True,
            ),
        )

        self.sent = max(0, self._run.starting_step - 1)  # of a run that the server goes on with
        if settings.mode == "offline":
            history = read_history(storage.join(run.folder, FOLDER), run.id)
            self.sent = max((line["_step"] for line in history), default=0)

    def write(self, step: int, seconds: float, values: Mapping[str, float]) -> None:
        """See SinkWriter."""
        # Its own clock would be that of the sending.
        self._run.log({**values, "_timestamp": seconds}, step=step, commit=True)
        self.sent = step

    def close(self) -> None:
        """See SinkWriter."""
        try:
            self._run.finish()
        finally:
            if self._scratch:
                shutil.rmtree(self._scratch, ignore_errors=True)
