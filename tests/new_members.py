"""Example extensions of the package: each a file, and its name where CONTRIBUTING.md says.

`add_members(package)` adds them to a copy of `trainrig`. As a script with that copy as `trainrig`,
`python new_members.py FOLDER` trains with the extensions of training, and
`python new_members.py describe FOLDER` prints what checks and estimates say of them.
"""

import dataclasses
import json
import pickle
import sys
from pathlib import Path
from typing import Any

FILES = {
    "storage/memory_files.py": '''"""A toy store of objects."""

from pathlib import Path

from trainrig.storage.backend import NothingThere
from trainrig.storage.bucket_files import BucketFiles


class MemoryFiles(BucketFiles):
    """Objects of this process."""

    def __init__(self):
        self.objects = {}

    def get_object(self, path, begin=0, end=None):
        data = self._find(path)[begin:end]
        if end and not data:
            raise NothingThere(path)
        return data

    def head_object(self, path):
        return len(self._find(path)), str(hash(self._find(path)))

    def _find(self, path):
        if path not in self.objects:
            raise FileNotFoundError(path)
        return self.objects[path]

    def write(self, path, data):
        self.objects[path] = bytes(data)

    def create(self, path, data):
        return self.objects.setdefault(path, data) is data

    def upload_file(self, local, path):
        self.write(path, Path(local).read_bytes())

    def download_file(self, path, local):
        Path(local).write_bytes(self._find(path))

    def list_sizes(self, folder):
        inside = (path for path in self.objects if path.startswith(folder.rstrip("/") + "/"))
        return {path: len(self.objects[path]) for path in inside}

    def list_folders(self, folder):
        start = folder.rstrip("/") + "/"
        rest = [path.removeprefix(start) for path in self.list_sizes(folder)]
        return sorted({start + path.partition("/")[0] for path in rest if "/" in path})

    def list_pages(self, folder, first):
        inside = sorted(path for path in self.list_sizes(folder) if path >= first)
        yield {path: self.head_object(path) for path in inside if self._lies_in(path, folder)}

    def _lies_in(self, path, folder):
        return "/" not in path.removeprefix(folder.rstrip("/") + "/")

    def iterate_files(self, folder):
        yield from sorted(self.list_sizes(folder))

    def delete(self, path):
        self.objects.pop(path, None)

    def delete_batch(self, paths):
        for path in paths:
            self.delete(path)

    def copy(self, path, target):
        self.write(target, self._find(path))
''',
    "corpus/signals/vowels.py": '''"""A toy signal."""

import numpy as np

from trainrig.corpus.signals.text_arrays import compute_shares


def vowel_shares(texts):
    """Share of characters that are vowels."""
    vowels = np.array([sum(text.count(each) for each in "aeiou") for text in texts])
    return compute_shares(vowels, np.array([len(text) for text in texts]))
''',
    "corpus/filters/vowels.py": '''"""A toy filter."""

from typing import Literal

from trainrig.corpus.filters.general_rules import FilterSettings
from trainrig.corpus.limits import Limit


class Vowels(FilterSettings):
    """Drops texts with few vowels."""

    kind: Literal["Vowels"] = "Vowels"
    least: float = 0.3  # smallest share of characters

    def iterate_limits(self):
        """Its rule."""
        yield Limit("share", "vowels", least=self.least)
''',
    "optim/sign_descent.py": '''"""A toy optimizer."""

from typing import ClassVar, Literal

from trainrig.optim.moment_optimizers import ElementwiseSettings


class SignDescent(ElementwiseSettings):
    """Moves each weight by the rate, against the sign of a sum of its gradients."""

    state_names: ClassVar[tuple[str, ...]] = ("total",)
    state: ClassVar[str] = "float32"

    kind: Literal["SignDescent"] = "SignDescent"
    lr: float = 0.001  # peak learning rate
    weight_decay: float = 0.0

    def count_state_bytes(self, name, shape):
        """Bytes of a parameter's sum."""
        import math

        return 4 * math.prod(shape)

    def update(self, weight, gradient, state, group):
        """One step on a piece of a parameter."""
        state["total"].mul_(0.5).add_(gradient)
        weight.sub_(state["total"].sign() * group["lr"])
''',
    "optim/norm_descent.py": '''"""A toy optimizer of whole tensors."""

import math
from typing import Literal

from trainrig.optim.optimizer_settings import OptimizerSettings


class NormDescent(OptimizerSettings):
    """Moves each tensor by the rate, along a sum of its gradients over the norm of the sum."""

    kind: Literal["NormDescent"] = "NormDescent"
    lr: float = 0.01  # peak learning rate
    weight_decay: float = 0.0

    def count_state_bytes(self, name, shape):
        """Return the bytes of a parameter's sum."""
        return 4 * math.prod(shape)

    def build(self, groups):
        """Build the optimizer over `groups`."""
        import torch

        from trainrig.optim.elementwise import to_local
        from trainrig.optim.matrix_steps import Rows, WholeTask, WholeTensorSteps

        class NormSteps(WholeTensorSteps):
            def build_task(self, parameter, group):
                state = self.state[parameter]
                if not state:
                    state["sum"] = torch.zeros_like(parameter)
                total = Rows.of(state["sum"])
                total.local.mul_(0.5).add_(to_local(parameter.grad))
                step = Rows(torch.empty_like(total.local), total.count)
                return WholeTask([total], [step], lambda whole: (whole / whole.norm(),))

            def update(self, parameter, outputs, group):
                to_local(parameter).sub_(outputs[0].local * group["lr"])

        return NormSteps(groups, {"lr": self.lr, "weight_decay": self.weight_decay})
''',
    "parallel/further_axis.py": '''"""A toy layout, with an axis of its own."""

from typing import ClassVar, Literal

from trainrig.parallel.axes.axis_settings import AxisSettings
from trainrig.parallel.worker_layout import WorkerLayout


class Further(AxisSettings):
    """An axis along which workers compute the same."""

    name: ClassVar[str] = "further"
    grouping: ClassVar[str] = "they repeat each other in groups of {ranks}"
    whole: ClassVar[str] = "results of its own"
    divides: ClassVar[str] = "repeat them"
    position: ClassVar[int] = 9
    within_layers: ClassVar[str | None] = "compares results"
    excludes: ClassVar[dict[str, str]] = {"tensor": "compares whole layers"}

    ranks: int = 1


class FurtherAxis(WorkerLayout):
    """Slices over the data axis of a mesh that has another one, of size 1."""

    exact: ClassVar[bool] = True

    kind: Literal["FurtherAxis"] = "FurtherAxis"
    further: Further | None = None
    reshard: Literal["step", "layer"] = "step"

    def mesh(self, device):
        """The data axis."""
        import torch.distributed as dist
        from torch.distributed.device_mesh import init_device_mesh

        from trainrig.parallel.mesh import Axis, WorkerMesh

        rank, world = dist.get_rank(), dist.get_world_size()
        whole = init_device_mesh(device.type, (1, world), mesh_dim_names=("further", "data"))
        slices = Axis(world, rank, whole.get_group("data"))
        return WorkerMesh(whole, whole["data"], slices)
''',
    "objectives/two_terms.py": '''"""A toy objective."""

from typing import Literal

from trainrig.objectives.next_token import CausalLM
from trainrig.objectives.objective_interface import Computed, Contributions, Term
from trainrig.objectives.objective_settings import ObjectiveSettings
from trainrig.tokens.batches import IDS, IGNORE, TARGETS, TOKENS


class TwoTerms(ObjectiveSettings):
    """Cross-entropy, and the square of what the logits of targets are above those of the model
    `beside`, of what they are themselves where there is none."""

    kind: Literal["TwoTerms"] = "TwoTerms"

    @property
    def terms(self):
        """Both."""
        return (Term("cross_entropy", TOKENS), Term("square", TOKENS, weight=0.01))

    def compute(self, model, batch, statistics):
        """Both terms of `batch`."""
        output, targets = model(batch.arrays[IDS]), batch.arrays[TARGETS]
        plain = CausalLM().compute(lambda ids: output, batch, {})
        places = targets.clamp(min=0)[..., None]
        seen = output.logits.gather(-1, places).squeeze(-1)
        if "beside" in batch.models:
            other = batch.models["beside"](batch.arrays[IDS])
            seen = seen - other.logits.gather(-1, places).squeeze(-1)
        square = seen.square().masked_fill(targets == IGNORE, 0.0)
        counts = (targets != IGNORE).sum(1)
        return Computed(plain.terms | {"square": Contributions(square, counts)})
''',
    "objectives/echo.py": '''"""A toy objective with rows of its own."""

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from trainrig.objectives.next_token import CausalLM
from trainrig.objectives.objective_settings import ObjectiveSettings, RowWork
from trainrig.tokens.batches import IDS, IGNORE, TARGETS, TOKENS, MicroBatch


class Echo(ObjectiveSettings):
    """Cross-entropy of a text that was read just before, as the first half of the row."""

    single_pass: ClassVar[bool] = True
    loss_unit: ClassVar[str] = "nats per token"
    unmixable: ClassVar[str | None] = "its rows are twice as wide; train it alone"

    kind: Literal["Echo"] = "Echo"
    row_shape: ClassVar[tuple[str]] = ("twice",)

    @property
    def terms(self):
        """The cross-entropy alone."""
        return CausalLM().terms

    def make_corruption(self, encoder):
        """Return the corruption that repeats texts."""
        return Repeated()

    def compute_row_length(self, length):
        """Return the positions of two texts."""
        return 2 * length

    def compute_widths(self, length):
        """Return the positions of two texts."""
        return 2 * length, 0

    def describe_row(self, length):
        """Return the positions of two texts."""
        return f"{2 * length} positions, the text twice"

    def measure_work(self, length, steps):
        """Return the work for two texts, of which one has logits."""
        return RowWork(2 * length, 0.5)

    def compute(self, model, batch, statistics):
        """Compute the cross-entropy of the second text."""
        return CausalLM().compute(lambda ids: model(ids), batch, statistics)


@dataclass(frozen=True)
class Repeated:
    """Corruption that puts each text before itself."""

    def identity(self):
        """Return the settings of the rows."""
        return {"kind": "Echo"}

    def denominators(self, step, samples, targets):
        """Return the number of targets."""
        return {TOKENS: int(targets.sum())}

    def apply(self, micro, step):
        """Return `micro` in twice the width."""
        ids = np.concatenate([micro.ids, micro.ids], axis=1)
        targets = np.concatenate([np.full_like(micro.targets, IGNORE), micro.targets], axis=1)
        arrays = {**micro.arrays, IDS: ids, TARGETS: targets}
        return MicroBatch(arrays, micro.samples, micro.sources, micro.pieces)
''',
    "models/architecture/scaled_attention.py": '''"""A toy kind of attention."""

from dataclasses import dataclass
from typing import Literal

from trainrig.models.architecture.attention_settings import AttentionSettings
from trainrig.models.architecture.shapes import AttentionShape, VectorShape


@dataclass(frozen=True)
class ScaledShape(AttentionShape):
    """Of one layer."""

    scale: VectorShape


class ScaledAttention(AttentionSettings):
    """Each channel of what a head sees, times a learnt number."""

    kind: Literal["ScaledAttention"] = "ScaledAttention"

    def add_parts(self, plain, heads):
        """A number for each channel."""
        return ScaledShape(**vars(plain), scale=VectorShape(plain.query.outputs))

    def attend(self, layer, x_BTC, query_BHTD, key_BKSD, value_BKSD, see):
        """The product."""
        scale_HD = layer.scale.unflatten(0, (-1, query_BHTD.shape[-1]))
        return see(query_BHTD, key_BKSD, value_BKSD) * scale_HD[:, None]
''',
}
# The text after which a name is added, and the addition, for each file that lists members.
NAMES = {
    "storage/schemes.py": (
        (
            "from trainrig.storage.local_files import LOCAL\n",
            "from trainrig.storage.memory_files import MemoryFiles\n",
        ),
        ('    "s3": _make_s3,\n', '    "mem": MemoryFiles,\n'),
    ),
    "corpus/signals/text_signals.py": (
        (
            "import split_words\n",
            "from trainrig.corpus.signals.vowels import vowel_shares\n",
        ),
        ('    "characters": _COUNT,\n', '    "vowels": _RATIO,\n'),
        ('        "characters": characters,\n', '        "vowels": vowel_shares(texts),\n'),
    ),
    "corpus/filters/filters.py": (
        (
            "limits import PAGE_KIND, Among, Columns\n",
            "from trainrig.corpus.filters.vowels import Vowels\n",
        ),
        ("_Rule = (\n    Length\n", "    | Vowels\n"),
    ),
    "optim/__init__.py": (
        (
            "import Adafactor, Muon\n",
            "from trainrig.optim.norm_descent import NormDescent\n"
            "from trainrig.optim.sign_descent import SignDescent\n",
        ),
        ("Optimizer = Annotated[", "SignDescent | NormDescent | "),
    ),
    "parallel/layout.py": (
        ("import ConfigError\n", "from trainrig.parallel.further_axis import FurtherAxis\n"),
        ("Layout = Annotated[", "FurtherAxis | "),
    ),
    "objectives/objective_kinds.py": (
        (
            "kto import KTO\n",
            "from trainrig.objectives.echo import Echo\n"
            "from trainrig.objectives.two_terms import TwoTerms\n",
        ),
        ("OfText = (\n", "    TwoTerms | Echo |\n"),
    ),
    "models/architecture/decoder_fields.py": (
        (
            "import Settings, suggest_choice\n",
            "from trainrig.models.architecture.scaled_attention import ScaledAttention\n",
        ),
        ("    attention_settings.AttentionSettings\n    | ", "ScaledAttention | "),
    ),
}
STEPS = 8
STRAIGHT = {"kind": "FSDP"}
KILLED = {"kind": "FurtherAxis"}


def add_members(package: Path) -> None:
    """Add the files and the names to the copy `package`."""
    for name, text in FILES.items():
        (package / name).write_text(text)
    for name, additions in NAMES.items():
        text = (package / name).read_text()
        for after, added in additions:
            assert text.count(after) == 1, (name, after)
            text = text.replace(after, after + added)
        (package / name).write_text(text)


def build(base: Path, name: str, tokens: str, **changed: Any) -> dict[str, Any]:
    """Return a run file of `pretrain` in the folder `name`, with `changed` tables."""
    training = {
        "steps": STEPS,
        "optimizer": {"kind": "SignDescent", "lr": 0.002},
        "checkpoints": {"every": 3, "keep": 9},
    }
    model = {
        "layers": 1,
        "channels": 16,
        "heads": 2,
        "positions": 32,
        "attention": {"kind": "ScaledAttention"},
    }
    return {
        "tokens": tokens,
        "output": str(base / name),
        "objective": changed.get("objective", {"kind": "TwoTerms"}),
        "batches": {"sequence_length": 32, "global_batch": 4, "micro_batch": 2},
        "model": model | changed.get("model", {}),
        "training": training | changed.get("training", {}),
        "workers": changed.get("workers", 1),
    }


CONTEXT = {"kind": "Gathered", "ranks": 2}
ECHO = {"objective": {"kind": "Echo"}, "model": {"positions": 64}}
WHOLE = {"kind": "NormDescent"}


def describe(base: Path) -> dict[str, Any]:
    """Return what `check` and `plan --layout` say of runs with new members, by name.

    A refusal is its message.
    """
    from pydantic import ValidationError

    from trainrig import check, config
    from trainrig.errors import InputError
    from trainrig.estimate.cost_estimate import DeviceChoice
    from trainrig.estimate.layout.cluster_choice import ClusterWanted
    from trainrig.estimate.layout.run_subject import FixedDegrees
    from trainrig.scaling.plan.layout_verb import answer
    from trainrig.train.run_file.run_files import Pretraining

    sized = {"vocabulary": 8192, "channels": 512, "layers": 4}
    runs: dict[str, dict[str, Any]] = {
        "plain": {"objective": {"kind": "CausalLM"}, "model": {"positions": 64}},
        "echo": ECHO,
        "echo in short rows": {"objective": {"kind": "Echo"}},
        "echo with context": ECHO
        | {"workers": 2, "training": {"parallel": {"kind": "FSDP", "context": CONTEXT}}},
        "echo in a mixture": {
            "objective": {
                "kind": "MixtureOfObjectives",
                "members": ({"objective": {"kind": "Echo"}},),
            }
        },
        "whole with tensor": {
            "objective": {"kind": "CausalLM"},
            "workers": 2,
            "training": {"optimizer": WHOLE, "parallel": {"kind": "FSDP", "tensor": {"ranks": 2}}},
        },
        "whole with muP": {
            "model": {"mup": {"base_channels": 8}},
            "training": {"optimizer": WHOLE},
        },
        "further of 2": {
            "workers": 3,
            "training": {"parallel": {"kind": "FurtherAxis", "further": {"ranks": 2}}},
        },
        "further with tensor": {
            "workers": 2,
            "training": {
                "parallel": {"kind": "FurtherAxis", "further": {}, "tensor": {"ranks": 2}}
            },
        },
        "further with compiling": {
            "training": {"compile": {}, "parallel": {"kind": "FurtherAxis", "further": {}}}
        },
        "further": {"training": {"parallel": {"kind": "FurtherAxis", "further": {}}}},
    }
    for memory, optimizer in (("whole", WHOLE), ("elementwise", {"kind": "SignDescent"})):
        runs[f"offloaded, {memory}"] = {
            "workers": 2,
            "training": {"optimizer": optimizer, "offload": {"optimizer": True}},
        }
    found: dict[str, Any] = {}
    for name, changed in runs.items():
        table = build(base, name.replace(" ", "-"), str(base / "none"), **changed)
        table["model"] |= sized
        try:
            run = Pretraining.model_validate({"stage": "pretrain", **table})
            run.training.check_workers(run.workers)
            run.training.check_parameters(run.model)
            said = check.describe(run, DeviceChoice(device="h100"))
            found[name] = said | {"layout": run.training.parallel.describe()}
            if name == "echo":
                path = base / "run.toml"
                path.write_text(config.to_toml(run))
                wanted = ClusterWanted(device="h100", devices=2)
                fixed = FixedDegrees(context=2)
                _, lines = answer(str(path), wanted, fixed, None, None)
                found["plan of echo"] = "\n".join(lines)
        except (InputError, ValidationError) as refused:
            found[name] = str(refused)
    return found


def main(base: Path) -> None:
    """Train on one rank, and on two ranks of which one is killed, so that one continues alone.

    The two are on a mesh with a further axis. Both runs and their auxiliary models must give the
    same bits.
    """
    from support.ranks.groups import Ranks
    from support.tiny_runs import tokenized

    from trainrig.train.checkpoint import find_newest_valid, open_model
    from trainrig.train.pretrain import prepare
    from trainrig.train.run.run_folder import RunFolder
    from trainrig.train.run_file.run_files import Pretraining
    from trainrig.train.training_job import TrainedModel

    tokens = tokenized(base)
    lasting = Ranks(base)
    mortal = Ranks(base / "mortal")
    (base / "mortal").mkdir()

    def job_of(name: str, layout: dict[str, str], steps: int = STEPS, **changed: Any):
        training = {"steps": steps, "parallel": layout} | changed.pop("training", {})
        (base / name).mkdir()
        return prepare(
            Pretraining.model_validate(build(base, name, tokens, training=training, **changed))
        )

    def weights(job) -> dict[str, bytes]:
        newest, _ = find_newest_valid(RunFolder(job.folder))
        assert newest.step == STEPS
        return {path.name: path.read_bytes() for path in Path(newest.path).glob("*.safetensors")}

    try:
        before = job_of("before", STRAIGHT, steps=2)
        lasting(1, "train", job=before, attempt=RunFolder(before.folder).take_attempt(0))
        begun_with, _ = find_newest_valid(RunFolder(before.folder))
        optimizer = before.training.optimizer
        trained = {"beside": TrainedModel(before.model, begun_with.path, optimizer)}
        straight, killed = (
            dataclasses.replace(job_of(name, layout), trained=trained)
            for name, layout in (("straight", STRAIGHT), ("killed", KILLED))
        )
        folder = RunFolder(killed.folder)
        attempt = folder.take_attempt(0)
        begun = mortal.start(2, "train", job=killed, attempt=attempt, fault=(1, "die", 5))
        lasting(1, "train", job=straight, attempt=RunFolder(straight.folder).take_attempt(0))
        for process in begun:
            try:
                fine, _ = pickle.load(process.stdout)
            except EOFError:
                continue
            assert not fine
        newest, _ = find_newest_valid(folder)
        at, path = (newest.step, newest.path) if newest else (0, None)
        lasting(1, "train", job=killed, attempt=folder.take_attempt(at), resume_from=path)
        assert weights(killed) == weights(straight)
        names = set(b"".join(weights(straight).values()).split(b'"'))
        for said in (b"total", b"attention.scale", b"beside"):
            assert any(said in name for name in names), f"{said} is not saved"
        # Rows that an objective made, and steps on whole tensors with state in the host's memory.
        alone, shared = (
            job_of(name, STRAIGHT, training={"optimizer": WHOLE, **offloaded}, **ECHO)
            for name, offloaded in (("alone", {}), ("shared", {"offload": {"optimizer": True}}))
        )
        lasting(1, "train", job=alone, attempt=RunFolder(alone.folder).take_attempt(0))
        lasting(2, "train", job=shared, attempt=RunFolder(shared.folder).take_attempt(0))
        ends = [find_newest_valid(RunFolder(job.folder))[0] for job in (alone, shared)]
        assert [end.step for end in ends] == [STEPS, STEPS]
        first, second = (open_model(end.path).build().state_dict() for end in ends)
        assert first.keys() == second.keys()
        assert all((first[name] == second[name]).all() for name in first)
    finally:
        lasting.end()
        mortal.end()
    print("the same bits")


if __name__ == "__main__":
    if sys.argv[1] == "describe":
        print(json.dumps(describe(Path(sys.argv[2]))))
    else:
        main(Path(sys.argv[1]))
