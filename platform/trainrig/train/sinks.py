"""Services that receive a run's metrics while it trains: W&B, MLflow and Prometheus.

A sink is a settings class with `kind`, `check` and `open`, which returns a `SinkWriter`. Add a
new one to the union `Sink`. After a kill, no step is sent twice and none is missing,
because the server knows the newest step that it has; for W&B it is read from the files that were
written offline.

W&B accepts each step once, in order. Its offline files are logs in LevelDB's format: blocks of
32 KiB, whose entries are W&B's protobuf records. W&B keeps the newest block in memory, so the
last lines of a killed driver are in no file. Prometheus reads gauges at times of its own choice,
through the metrics that each node of Ray exports, and adds its own timestamps; a family of
metrics, such as one per layer, is one gauge with a label. Keys and passwords come from the
environment (`WANDB_API_KEY` or `wandb login`, `MLFLOW_TRACKING_USERNAME`,
`MLFLOW_TRACKING_PASSWORD`), never from a run file.
"""

import importlib.util
import json
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Protocol, Self
from urllib.parse import urlsplit

from pydantic import model_validator

from trainrig import storage
from trainrig.config import Field, Settings
from trainrig.errors import ConfigError
from trainrig.optional_packages import describe_install


@dataclass(frozen=True)
class ExportedRun:
    """Run whose metrics are sent."""

    folder: str  # on disk or in a bucket
    id: str  # drawn when the run began: another run in the same folder has another id
    name: str  # display name
    settings: Mapping[str, Any]  # content of the run file
    # Maps a metric's name to its family's name, its labels, and its description.
    describe: Callable[[str], tuple[str, Mapping[str, str], str]]


class SinkWriter(Protocol):
    """Writer of the metrics of one run, used by its only driver.

    Any method may raise any error: the caller opens the sink again later.
    """

    live: bool  # True: steps are sent at once, not when they are final
    sent: int  # newest step that the service already has, which is not sent again

    def write(self, step: int, seconds: float, values: Mapping[str, float]) -> None:
        """Send the metrics of `step`, in ascending order of steps; `seconds`: since the epoch."""
        ...

    def attach(self, name: str, content: str) -> None:
        """Attach `content` to the run as the file `name`, if the service takes files."""
        ...

    def close(self) -> None:
        """Send everything that is left, and end the connection."""
        ...


def need_package(package: str, kind: str, extra: str) -> None:
    """Raise ConfigError if `package`, which the sink `kind` needs, is not installed."""
    if importlib.util.find_spec(package) is None:
        raise ConfigError(
            f"training.metrics.sinks: {kind} needs the package {package}, which is not installed; "
            f"run `{describe_install(extra)}`, or leave that sink out"
        )


MLFLOW_TAG = "trainrig.run"  # tag of an MLflow run with our run's id
STEPS = "train/loss"  # a metric that every step has
AT_ONCE = 1000  # metrics that MLflow accepts in one call
PARAMETERS_AT_ONCE = 100  # parameters that MLflow accepts in one call
LONGEST_PARAMETER = 500  # characters of a value, as MLflow's older servers accept
_REFUSED_IN_MLFLOW = re.compile(r"[^\w\-. /:]")  # characters not allowed in metric names


class MLflow(Settings):
    """MLflow sink; needs the extra `mlflow`."""

    kind: Literal["MLflow"] = "MLflow"
    # Address of the tracking server, or of a database, as in `sqlite:////data/mlflow.db`, which
    # needs the full package mlflow; None uses MLFLOW_TRACKING_URI.
    uri: str | None = None
    experiment: str = Field(default="trainrig", min_length=1)  # experiment to log to
    name: str | None = None  # name of the run; None: the name of its folder

    @model_validator(mode="after")
    def _reject_password(self) -> Self:
        if self.uri and "@" in urlsplit(self.uri).netloc:
            raise ValueError(
                "uri contains a name or password, and run files are often copied; set "
                "MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD in the "
                "environment instead"
            )
        return self

    def check(self, folder: str) -> None:
        """Raise ConfigError if the metrics of the run in `folder` cannot be sent."""
        need_package("mlflow", "MLflow", "mlflow")

    def open(self, run: ExportedRun) -> "MLflowWriter":
        """Start sending, or resume."""
        return MLflowWriter(self, run)


class MLflowWriter:
    """Writer to MLflow, of one driver of a run."""

    live = False

    def __init__(self, settings: MLflow, run: ExportedRun) -> None:
        from mlflow import MlflowClient  # an extra, slow to import

        self._client: Any = MlflowClient(tracking_uri=settings.uri)
        experiment = self._client.get_experiment_by_name(settings.experiment)
        number = (
            experiment.experiment_id
            if experiment
            else self._client.create_experiment(settings.experiment)
        )
        found = self._client.search_runs(
            [number], f"tags.`{MLFLOW_TAG}` = '{run.id}'", max_results=1
        )
        if found:
            self._run = found[0].info.run_id
            self._client.update_run(self._run, status="RUNNING")
        else:
            tags = {MLFLOW_TAG: run.id, "trainrig.folder": run.folder}
            name = settings.name or run.name
            self._run = self._client.create_run(number, tags=tags, run_name=name).info.run_id
            self._log_parameters(run.settings)
        there = self._client.get_metric_history(self._run, STEPS)
        self.sent = max((metric.step for metric in there), default=0)

    def _log_parameters(self, settings: Mapping[str, Any]) -> None:
        from mlflow.entities import Param

        found = [
            Param(_REFUSED_IN_MLFLOW.sub("_", name), value[:LONGEST_PARAMETER])
            for name, value in flatten_settings(settings)
        ]
        for at in range(0, len(found), PARAMETERS_AT_ONCE):
            self._client.log_batch(self._run, params=found[at : at + PARAMETERS_AT_ONCE])

    def write(self, step: int, seconds: float, values: Mapping[str, float]) -> None:
        """Send the metrics of `step`; see SinkWriter."""
        from mlflow.entities import Metric

        # STEPS goes last: it marks the step as complete.
        names = sorted(values, key=lambda name: name == STEPS)
        figures = [
            Metric(_REFUSED_IN_MLFLOW.sub("_", name), values[name], int(seconds * 1000), step)
            for name in names
        ]
        for at in range(0, len(figures), AT_ONCE):
            self._client.log_batch(self._run, metrics=figures[at : at + AT_ONCE])
        self.sent = step

    def attach(self, name: str, content: str) -> None:
        """Log the file as an artifact; see SinkWriter."""
        self._client.log_text(self._run, content, name)

    def close(self) -> None:
        """End the MLflow run; see SinkWriter."""
        self._client.set_terminated(self._run)


def flatten_settings(settings: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yield the keys of a run file with their values: ("training.optimizer.lr", "0.002")."""
    for key, value in settings.items():
        if isinstance(value, Mapping):
            yield from flatten_settings(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value if isinstance(value, str) else json.dumps(value, default=str)


_REFUSED_IN_GAUGES = re.compile(r"[^a-z0-9]+")  # characters not allowed in gauge names


class Prometheus(Settings):
    """Prometheus sink, through Ray's exporter."""

    kind: Literal["Prometheus"] = "Prometheus"
    name: str | None = None  # label `run` of every metric; None: the name of the run's folder

    def check(self, folder: str) -> None:
        """Do nothing: every run has Ray, which includes the exporter."""

    def open(self, run: ExportedRun) -> "PrometheusWriter":
        """Start exporting."""
        return PrometheusWriter(self, run)


class PrometheusWriter:
    """Exporter to Prometheus, of one driver of a run."""

    live = True
    sent = 0

    def __init__(self, settings: Prometheus, run: ExportedRun) -> None:
        self._label = settings.name or run.name
        self._describe = run.describe
        self._gauges: dict[str, Any] = {}  # keys: families

    def write(self, step: int, seconds: float, values: Mapping[str, float]) -> None:
        """Set the gauges to `values`; see SinkWriter."""
        self._show("train/step", {}, "Updates done.", step)
        for name, value in values.items():
            self._show(*self._describe(name), value)

    def attach(self, name: str, content: str) -> None:
        """Do nothing: Prometheus takes no files."""

    def close(self) -> None:
        """Do nothing: Ray reads the gauges as long as this process lives."""

    def _show(self, family: str, labels: Mapping[str, str], meaning: str, value: float) -> None:
        from ray.util.metrics import Gauge

        if family not in self._gauges:
            keys = ("run", *labels)
            self._gauges[family] = Gauge(gauge_name(family), meaning, tag_keys=keys)
        self._gauges[family].set(float(value), tags={"run": self._label, **labels})


def gauge_name(family: str) -> str:
    """Return Prometheus' name of the metrics `family`.

    `train/SOURCE/loss` becomes `trainrig_train_source_loss`; Ray adds `ray_` in front.
    """
    return "trainrig_" + _REFUSED_IN_GAUGES.sub("_", family.lower()).strip("_")


WANDB_FOLDER = "wandb"  # W&B's folder in the run folder, with the offline files


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
        if self.mode == "offline" and storage.is_remote(folder):
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

        in_bucket = storage.is_remote(run.folder)
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
            history = read_history(storage.join(run.folder, WANDB_FOLDER), run.id)
            self.sent = max((line["_step"] for line in history), default=0)

    def write(self, step: int, seconds: float, values: Mapping[str, float]) -> None:
        """Send the metrics of `step`; see SinkWriter."""
        # Without it, W&B would record the time of sending.
        self._run.log({**values, "_timestamp": seconds}, step=step, commit=True)
        self.sent = step

    def attach(self, name: str, content: str) -> None:
        """Save the file among the files of the W&B run; see SinkWriter."""
        path = Path(self._run.dir, name)
        path.write_text(content, encoding="utf-8")
        self._run.save(str(path), base_path=self._run.dir, policy="now")

    def close(self) -> None:
        """Send what is left, and end the W&B run; see SinkWriter."""
        try:
            self._run.finish()
        finally:
            if self._scratch:
                shutil.rmtree(self._scratch, ignore_errors=True)


# bytes of a file's header (":W&B" and version) and of a piece's (checksum, length, kind)
HEADER = 7
BLOCK = 32768  # bytes
WHOLE = 1  # kinds of pieces that complete an entry
LAST = 4


def read_history(folder: str | Path, run: str) -> Iterator[dict[str, Any]]:
    """Yield the logged lines of the run with the id `run`, in order.

    `folder`: the one named `wandb`. An incomplete last piece is dropped.
    """
    from wandb.proto.wandb_internal_pb2 import Record  # an extra

    for path in sorted(Path(folder).glob(f"offline-run-*/run-{run}.wandb")):
        for entry in _read_entries(path.read_bytes()):
            record = Record.FromString(entry)
            if record.HasField("history"):
                yield {
                    item.key or "/".join(item.nested_key): json.loads(item.value_json)
                    for item in record.history.item
                }


def _read_entries(data: bytes) -> Iterator[bytes]:
    at = HEADER
    entry = b""
    while at + HEADER <= len(data):
        left = BLOCK - at % BLOCK
        if left < HEADER:  # too short for another piece, so it is padding
            at += left
            continue
        size = int.from_bytes(data[at + 4 : at + 6], "little")
        kind = data[at + 6]
        piece = data[at + HEADER : at + HEADER + size]
        if len(piece) < size:
            return
        entry = entry + piece
        at = at + HEADER + size
        if kind in (WHOLE, LAST):
            yield entry
            entry = b""


Sink = Annotated[WandB | MLflow | Prometheus, Field(discriminator="kind")]
"""Setting of a service that receives the metrics. Add a new service to this union."""
