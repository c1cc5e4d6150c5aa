"""Example extensions of the package: each a file, and its name where CONTRIBUTING.md says.

`add_members(package)` adds them to a copy of `trainrig`. As a script with that copy as `trainrig`,
`python new_members.py FOLDER` trains with the extensions of training.
"""

import dataclasses
import pickle
import sys
from pathlib import Path

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

    def delete(self, path):
        self.objects.pop(path, None)

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

from trainrig.config import Settings
from trainrig.corpus.limits import Limit


class Vowels(Settings):
    """Drops texts with few vowels."""

    kind: Literal["Vowels"] = "Vowels"
    least: float = 0.3  # smallest share of characters

    def iterate_limits(self):
        """Its rule."""
        yield Limit("share", "vowels", least=self.least)
''',
    "optim/sign_descent.py": '''"""A toy optimizer."""

from typing import ClassVar, Literal

from trainrig.config import Settings


class SignDescent(Settings):
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

    def build(self, groups):
        """The optimizer over `groups`."""
        from trainrig.optim.elementwise import ElementwiseOptimizer

        return ElementwiseOptimizer(groups, self)

    def update(self, weight, gradient, state, group):
        """One step on a piece of a parameter."""
        state["total"].mul_(0.5).add_(gradient)
        weight.sub_(state["total"].sign() * group["lr"])
''',
    "parallel/further_axis.py": '''"""A toy layout."""

from typing import ClassVar, Literal

from trainrig.parallel.worker_layout import WorkerLayout


class FurtherAxis(WorkerLayout):
    """Slices over the data axis of a mesh that has another one, of size 1."""

    exact: ClassVar[bool] = True

    kind: Literal["FurtherAxis"] = "FurtherAxis"
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

from trainrig.config import Settings
from trainrig.objectives.next_token import CausalLM
from trainrig.objectives.objective_interface import Computed, Contributions, Term
from trainrig.tokens.batches import IDS, IGNORE, TARGETS, TOKENS


class TwoTerms(Settings):
    """Cross-entropy, and the square of what the logits of targets are above those of the model
    `beside`, of what they are themselves where there is none."""

    kind: Literal["TwoTerms"] = "TwoTerms"
    statistics: tuple[str, ...] = ()

    @property
    def terms(self):
        """Both."""
        return (Term("cross_entropy", TOKENS), Term("square", TOKENS, weight=0.01))

    def measure(self, model, batch):
        """Nothing."""
        return {}

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

    def add_parts(self, plain):
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
        ("limits import Columns\n", "from trainrig.corpus.filters.vowels import Vowels\n"),
        ("\nFilter = Annotated[\n    Length\n", "    | Vowels\n"),
        ("_WrittenFilter = Annotated[\n    Length\n", "    | Vowels\n"),
    ),
    "optim/__init__.py": (
        ("import Adafactor, Muon\n", "from trainrig.optim.sign_descent import SignDescent\n"),
        ("Optimizer = Annotated[", "SignDescent | "),
    ),
    "parallel/layout.py": (
        ("import ConfigError\n", "from trainrig.parallel.further_axis import FurtherAxis\n"),
        ("Layout = Annotated[", "FurtherAxis | "),
    ),
    "objectives/__init__.py": (
        ("kto import KTO\n", "from trainrig.objectives.two_terms import TwoTerms\n"),
        ("OfText = (\n", "    TwoTerms |\n"),
    ),
    "models/architecture/decoder_fields.py": (
        (
            "import Settings, suggest_choice\n",
            "from trainrig.models.architecture.scaled_attention import ScaledAttention\n",
        ),
        ("    attention_settings.AttentionSettings | ", "ScaledAttention | "),
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


def main(base: Path) -> None:
    """Train on one rank, and on two ranks of which one is killed, so that one continues alone.

    The two are on a mesh with a further axis. Both runs and their auxiliary models must give the
    same bits.
    """
    from support.ranks.groups import Ranks
    from support.tiny_runs import tokenized

    from trainrig.train.checkpoint import find_newest_valid
    from trainrig.train.pretrain import prepare
    from trainrig.train.run.run_folder import RunFolder
    from trainrig.train.run_file.run_files import Pretraining
    from trainrig.train.training_job import TrainedModel

    tokens = tokenized(base)
    lasting = Ranks(base)
    mortal = Ranks(base / "mortal")
    (base / "mortal").mkdir()

    def job_of(name: str, layout: dict[str, str], steps: int = STEPS):
        given = {
            "tokens": tokens,
            "output": str(base / name),
            "model": {
                "layers": 1,
                "channels": 16,
                "heads": 2,
                "positions": 32,
                "attention": {"kind": "ScaledAttention"},
            },
            "objective": {"kind": "TwoTerms"},
            "batches": {"sequence_length": 32, "global_batch": 4, "micro_batch": 2},
            "training": {
                "steps": steps,
                "optimizer": {"kind": "SignDescent", "lr": 0.002},
                "checkpoints": {"every": 3, "keep": 9},
                "parallel": layout,
            },
        }
        (base / name).mkdir()
        return prepare(Pretraining.model_validate(given))

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
    finally:
        lasting.end()
        mortal.end()
    print("the same bits")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
