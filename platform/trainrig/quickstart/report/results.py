"""What a quickstart run did, as plain data: the whole input of its report page.

Every field is what a stage measured or wrote down; nothing here is computed for the page. As it
holds only dataclasses, `pydantic.TypeAdapter(Story)` reads and writes it as JSON.
"""

from collections.abc import Mapping
from dataclasses import dataclass

MODELS = ("pretrained", "tuned", "aligned")  # in the order in which each is made of the one before


@dataclass(frozen=True)
class StageResult:
    """One arrow of the path: pages, documents, tokens, model, tuned, aligned, scores or sweep."""

    name: str
    seconds: float
    count: float
    unit: str


@dataclass(frozen=True)
class Dropped:
    """Documents that fell for one reason, given in words; examples are masked already."""

    reason: str
    documents: int
    examples: tuple[str, ...] = ()


@dataclass(frozen=True)
class Planted:
    """Faults of one kind put into the pages on purpose.

    `gone` counts those whose page fell for another reason before this one was looked for:
    planted = caught + missed + gone.
    """

    kind: str
    planted: int
    caught: int
    missed: int
    gone: int


@dataclass(frozen=True)
class NearDuplicate:
    """A dropped page, the kept page it repeats, and the Jaccard similarity of their shingles."""

    url: str
    kept_url: str
    jaccard: float


@dataclass(frozen=True)
class LossPoint:
    """One training step of one attempt: loss in nats per token after `tokens` tokens in all."""

    step: int
    tokens: int
    loss: float
    attempt: int


@dataclass(frozen=True)
class HeldOutPoint:
    """Loss on held-out documents, nats per token."""

    step: int
    tokens: int
    loss: float


@dataclass(frozen=True)
class Restart:
    """A worker that died after step `killed_at`; training went on from checkpoint `resumed_from`.

    `seconds` is from its death to the next step that had not been finished before.
    """

    killed_at: int
    resumed_from: int
    seconds: float
    pid: int


@dataclass(frozen=True)
class SpeedPoint:
    """Throughput of one training step, over all workers."""

    step: int
    tokens_per_second: float


@dataclass(frozen=True)
class TuningPoint:
    """One step of supervised fine-tuning: loss on the trained tokens, nats per token."""

    step: int
    loss: float


@dataclass(frozen=True)
class PreferencePoint:
    """One step of learning preferences: mean rewards of right and of wrong answers, and the share
    of pairs in which the right one has the higher."""

    step: int
    right_reward: float
    wrong_reward: float
    accuracy: float


@dataclass(frozen=True)
class Preferences:
    """What was learnt of pairs: by step on those trained on, and at the end on held-out ones."""

    steps: tuple[PreferencePoint, ...]
    held_out: PreferencePoint
    held_out_pairs: int
    # Nats by which held-out answers became likelier than under the tuned model, on average.
    right_drift: float
    wrong_drift: float


@dataclass(frozen=True)
class DomainScore:
    """One held-out domain, scored by each of `MODELS`."""

    domain: str
    bits_per_byte: tuple[float, ...]
    perplexity: tuple[float, ...]


@dataclass(frozen=True)
class ModelAnswer:
    """What a model wrote, in how many tokens, and why it stopped ("end of turn", "length")."""

    text: str
    tokens: int
    stopped: str


@dataclass(frozen=True)
class PromptAnswers:
    """What each of `MODELS` wrote after `prompt`."""

    prompt: str
    answers: tuple[ModelAnswer, ...]


@dataclass(frozen=True)
class SweepPoint:
    """One run of the sweep: held-out loss at its end, and that of the law, nats per token."""

    parameters: int  # without embeddings
    tokens: int
    loss: float
    predicted: float  # NaN without a law


@dataclass(frozen=True)
class Planned:
    """What a law says of `flops` that are divided best, and all lines of the plan."""

    flops: float
    parameters: float
    tokens: float
    loss: float
    lines: tuple[str, ...]


@dataclass(frozen=True)
class Scaling:
    """What the sweep came to: a law and a plan, or the `problem` that left it without."""

    points: tuple[SweepPoint, ...]
    constants: tuple[tuple[str, str, str], ...] = ()  # name, value, interval
    plan: Planned | None = None
    problem: str = ""


@dataclass(frozen=True)
class QuickstartResults:
    """A whole quickstart run. `dropped` is in the order in which curation decides.

    `samples_checked` training samples were compared with the order that the seed prescribes;
    `samples_lost` of them were never trained on, `samples_repeated` more than once in the final
    model's history. Raises ValueError when a part is missing without which there is no page.
    """

    stages: tuple[StageResult, ...]
    documents_in: int
    documents_kept: int
    dropped: tuple[Dropped, ...]
    planted: tuple[Planted, ...]
    near_duplicates: tuple[NearDuplicate, ...]
    tokens_by_source: Mapping[str, int]
    vocabulary: int
    parameters: int
    loss: tuple[LossPoint, ...]
    held_out: tuple[HeldOutPoint, ...]
    restarts: tuple[Restart, ...]
    speed: tuple[SpeedPoint, ...]
    samples_checked: int
    samples_lost: int
    samples_repeated: int
    tuning: tuple[TuningPoint, ...]
    preferences: Preferences
    scores: tuple[DomainScore, ...]
    generations: tuple[PromptAnswers, ...]
    versions: Mapping[str, str]
    machine: str
    manifests: Mapping[str, str]  # stage or folder -> SHA-256 of its manifest.json
    commands: tuple[tuple[str, str], ...]  # what it does, the line to copy
    scaling: Scaling | None = None  # None: no sweep was asked for

    def __post_init__(self) -> None:
        for part in ("stages", "planted", "loss", "held_out", "speed", "tuning", "scores"):
            if not getattr(self, part):
                raise ValueError(f"a story without `{part}` cannot be told")
