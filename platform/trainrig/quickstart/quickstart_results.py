"""The results of a quickstart as plain data: the whole input of its report page.

Every field was measured or recorded by a stage; nothing is computed for the page. All classes are
dataclasses, so `pydantic.TypeAdapter(QuickstartResults)` reads and writes JSON.
"""

from collections.abc import Mapping
from dataclasses import dataclass

MODELS = ("pretrained", "tuned", "aligned")  # Each model is made from the one before it.


@dataclass(frozen=True)
class StageResult:
    """The duration and result of one stage, such as pages, documents, tokens or model."""

    name: str
    seconds: float
    count: float
    unit: str


@dataclass(frozen=True)
class Dropped:
    """The documents that were dropped for one reason, with masked examples."""

    reason: str
    documents: int
    examples: tuple[str, ...] = ()


@dataclass(frozen=True)
class Planted:
    """The number of injected faults of one kind, by outcome.

    `gone` counts the faults whose page was dropped for another reason before the fault was looked
    for: planted = caught + missed + gone.
    """

    kind: str
    planted: int
    caught: int
    missed: int
    gone: int


@dataclass(frozen=True)
class NearDuplicate:
    """A dropped page, the kept page that it repeats, and their Jaccard shingle similarity."""

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
    """A worker that died after step `killed_at`; training resumed from step `resumed_from`.

    `seconds` is the time from the death to the next step that had not been finished before.
    """

    killed_at: int
    resumed_from: int
    seconds: float
    pid: int


Series = tuple[tuple[int, float], ...]
"""Pairs of a training step and its value."""


@dataclass(frozen=True)
class PreferencePoint:
    """One step of preference learning: mean rewards, and the share of correctly ranked pairs."""

    step: int
    right_reward: float
    wrong_reward: float
    accuracy: float


@dataclass(frozen=True)
class Preferences:
    """The results of preference learning: training pairs by step, held-out pairs at the end."""

    steps: tuple[PreferencePoint, ...]
    held_out: PreferencePoint
    held_out_pairs: int
    # Mean increase of the log-probability of held-out answers, in nats, over the tuned model.
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
    """A model's text, its number of tokens and its stop reason ("end of turn", "length")."""

    text: str
    tokens: int
    stopped: str


@dataclass(frozen=True)
class PromptAnswers:
    """The answers of all `MODELS` to `prompt`."""

    prompt: str
    answers: tuple[ModelAnswer, ...]


@dataclass(frozen=True)
class SweepPoint:
    """One run of the sweep with its final and its predicted held-out loss, in nats per token."""

    parameters: int  # Number of parameters without embeddings.
    tokens: int
    loss: float
    predicted: float  # NaN if there is no law.


@dataclass(frozen=True)
class Planned:
    """The best use of `flops` according to the law, with the lines that explain the plan."""

    flops: float
    parameters: float
    tokens: float
    loss: float
    lines: tuple[str, ...]


@dataclass(frozen=True)
class Scaling:
    """The sweep's runs with their law and plan, or the `problem` that prevented a law."""

    points: tuple[SweepPoint, ...]
    constants: tuple[tuple[str, str, str], ...] = ()  # Name, value and interval of each constant.
    plan: Planned | None = None
    problem: str = ""


@dataclass(frozen=True)
class QuickstartResults:
    """The results of a whole quickstart.

    `dropped` is in the order in which curation decides. `samples_checked` training samples were
    compared with the order that the seed prescribes; `samples_lost` of them were never trained on,
    `samples_repeated` more than once in the final model's history. Raises ValueError if a part that
    the page needs is missing.
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
    speed: Series  # Tokens per second, of all workers together.
    samples_checked: int
    samples_lost: int
    samples_repeated: int
    tuning: Series  # Loss of fine-tuning on the trained tokens, nats per token.
    preferences: Preferences
    scores: tuple[DomainScore, ...]
    generations: tuple[PromptAnswers, ...]
    versions: Mapping[str, str]
    machine: str
    manifests: Mapping[str, str]  # SHA-256 of each manifest.json, by stage or folder.
    commands: tuple[tuple[str, str], ...]  # What a command does, and the line to copy.
    scaling: Scaling | None = None  # None if there was no sweep.

    def __post_init__(self) -> None:
        for part in ("stages", "planted", "loss", "held_out", "speed", "tuning", "scores"):
            if not getattr(self, part):
                raise ValueError(f"`{part}` is empty, so the page cannot be built")
