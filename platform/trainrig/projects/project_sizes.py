"""Sizes of a new project: vocabulary, model, batches and steps, by the amount of data and the GPUs.

Without GPUs a project finishes in minutes on a laptop. A small tokenizer, trained on a sample of
the texts, shows which vocabulary the texts allow and how many tokens they have.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from trainrig.projects.found_data import TextAmount
from trainrig.scaling.model_ladder import compute_std_by_width

TOKENIZER_BYTES = 2**21  # bytes of text that the trial tokenizer is trained on
SAFE_SHARE = 0.75  # share of the entries reached in the trial that the vocabulary gets
LEAST_TOKENS = 2_000  # fewest tokens of documents to train a model from scratch on
USUAL_BYTES_PER_TOKEN = 3.5  # English text with the tokenizer of a published model
TURN_TOKENS = 16  # tokens that a chat template adds to a row
MARGIN = 1.25  # tokens of a row may exceed the estimate by this factor
CPU_TOKENS = 2_048  # tokens of a step without GPUs
CPU_STEPS = 300
EPOCHS = 4.0  # passes over the documents that teach nearly as much as new text (arXiv:2305.16264)
TOKENS_PER_PARAMETER = 20.0  # compute-optimal (arXiv:2203.15556)
PARAMETERS_PER_GPU = 85e6  # trains on 20 tokens a parameter in about an hour on one H100


@dataclass(frozen=True)
class ModelSize:
    """Shape of a new decoder or encoder, and the peak learning rate that suits it."""

    parameters: float  # parameters of the layers
    layers: int
    channels: int
    heads: int
    kv_heads: int
    lr: float

    @property
    def initial_std(self) -> float:
        """Standard deviation of initial weights; narrow models learn faster with a larger one."""
        return compute_std_by_width(self.channels)


SMALL = ModelSize(0.7e6, 4, 128, 4, 2, 2e-3)
MODELS = (
    SMALL,
    ModelSize(1.6e6, 4, 192, 6, 3, 2e-3),
    ModelSize(10e6, 6, 384, 6, 3, 1e-3),
    ModelSize(85e6, 12, 768, 12, 4, 6e-4),
    ModelSize(300e6, 24, 1024, 16, 4, 4e-4),
    ModelSize(1.2e9, 24, 2048, 16, 4, 2e-4),
)


@dataclass(frozen=True)
class PlannedBatches:
    """Batches and length of one training stage."""

    length: int  # tokens of a sequence
    global_batch: int
    micro_batch: int
    steps: int
    unlimited: bool = False  # True if documents are repeated more often than by default

    @property
    def checkpoint_every(self) -> int:
        """Steps between checkpoints: a quarter of the run."""
        return max(1, self.steps // 4)


@dataclass(frozen=True)
class TextMeasures:
    """Measures of the documents by a trial tokenizer."""

    vocabulary: int
    bytes_per_token: float
    tokens: int


def measure_texts(amounts: Sequence[TextAmount], largest: int | None = None) -> TextMeasures:
    """Choose a vocabulary for the documents, and estimate their tokens.

    `largest` limits the vocabulary. Documents whose texts are not known, such as web pages, get a
    small one.
    """
    total = sum(amount.bytes for amount in amounts)
    wanted = _choose_vocabulary(total)
    texts = [text for amount in amounts for text in amount.texts]
    if largest is not None:
        wanted = min(wanted, largest)
    if not texts:
        return TextMeasures(min(wanted, 4_096), 3.0, int(total / 3.0))
    reached, bytes_per_token = _train_trial(texts, wanted)
    sample = min(total, sum(len(text.encode("utf-8", "replace")) for text in texts))
    # The entries that a text allows grow about with the square root of its length (Heaps' law).
    possible = SAFE_SHARE * reached * math.sqrt(total / max(1, sample))
    vocabulary = wanted if reached >= wanted else min(wanted, int(possible))
    return TextMeasures(
        max(320, vocabulary // 64 * 64), bytes_per_token, int(total / bytes_per_token)
    )


def _choose_vocabulary(text_bytes: int) -> int:
    for below, vocabulary in ((1e6, 1_024), (16e6, 4_096), (256e6, 16_384)):
        if text_bytes < below:
            return vocabulary
    return 32_768


def _train_trial(texts: Sequence[str], vocabulary: int) -> tuple[int, float]:
    """Train a tokenizer; return its entries and the bytes of a token.

    It has the settings of `ByteLevelBPE`, but accepts texts that are too few for the vocabulary.
    """
    import tokenizers
    from tokenizers import models, pre_tokenizers, trainers

    from trainrig.tokens.tokenizers.tokenizer_kinds import make_word_splitter

    sample: list[str] = []
    size = 0
    for text in texts:
        encoded = text.encode("utf-8", "replace")  # half an emoji has no encoding
        sample.append(encoded.decode())
        size += len(encoded)
        if size >= TOKENIZER_BYTES:
            break
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = make_word_splitter("llama3")
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        min_frequency=2,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(iter(sample), trainer)
    tokens = sum(len(encoded.ids) for encoded in tokenizer.encode_batch(sample))
    return tokenizer.get_vocab_size(), size / max(1, tokens)


def choose_length(
    texts: Sequence[str], bytes_per_token: float, least: int, most: int, answer_tokens: int = 0
) -> int:
    """Return a sequence length, a power of 2, that 19 of 20 `texts` fit in.

    `answer_tokens` are added for answers that a model will write.
    """
    lengths = sorted(len(text.encode("utf-8", "replace")) for text in texts)
    usual = lengths[int(0.95 * (len(lengths) - 1))] if lengths else 0
    tokens = MARGIN * (usual / bytes_per_token + TURN_TOKENS) + answer_tokens
    length = least
    while length < min(tokens, most):
        length *= 2
    return min(length, most)


def choose_model(tokens: int, gpus: int) -> ModelSize:
    """Return the model to train from scratch on documents with this number of tokens."""
    if not gpus:
        return SMALL if tokens < 1_000_000 else MODELS[1]
    possible = EPOCHS * tokens / TOKENS_PER_PARAMETER
    affordable = PARAMETERS_PER_GPU * math.sqrt(gpus)
    fitting = [m for m in MODELS[1:] if m.parameters <= 1.2 * min(possible, affordable)]
    return fitting[-1] if fitting else SMALL


def plan_pretraining(
    tokens: int, length: int, model: ModelSize, gpus: int, workers: int
) -> PlannedBatches:
    """Return the batches of training a new model."""
    wanted = EPOCHS * tokens
    if not gpus:
        at_once = CPU_TOKENS
        steps = max(CPU_STEPS // 2, min(CPU_STEPS, round(wanted / at_once)))
    else:
        wanted = min(wanted, TOKENS_PER_PARAMETER * model.parameters)
        at_once = 2 ** max(13, min(18, int(math.log2(max(1, wanted / 500)))))
        steps = max(200, round(wanted / at_once))
    return _divide(at_once, length, workers, steps, tokens, most_rows=32 if gpus else 4)


def plan_continuation(tokens: int, length: int, gpus: int, workers: int) -> PlannedBatches:
    """Return the batches of training a published model further on documents, in one pass or two."""
    at_once = 2**16 if gpus else CPU_TOKENS
    steps = min(10_000 if gpus else 200, max(30, round(2 * tokens / at_once)))
    return _divide(at_once, length, workers, steps, tokens, most_rows=4 if gpus else 2)


def _divide(
    at_once: int, length: int, workers: int, steps: int, tokens: int, most_rows: int
) -> PlannedBatches:
    """Divide the tokens of a step into sequences and micro-batches that all workers share."""
    workers = max(1, workers)
    micro = max(1, min(most_rows, at_once // (length * workers)))
    number = max(1, at_once // (length * micro * workers))
    rows = micro * workers * number
    repeated = steps * rows * length > 0.8 * EPOCHS * tokens
    return PlannedBatches(length, rows, micro, steps, repeated)


def plan_tuning(rows: float, length: int, scratch: bool, gpus: int, workers: int) -> PlannedBatches:
    """Return the batches of tuning on `rows` sequences: 20 passes for a new model, else 3."""
    workers = max(1, workers)
    micro = (4 if gpus else 2) if length <= 1_024 else 1
    number = 4 if gpus and rows > 500 else 1
    together = micro * workers * number
    passes = 20 if scratch else 3
    least, most = (60, 300) if scratch else (30, 2_000 if gpus else 100)
    steps = max(least, min(most, math.ceil(passes * rows / together)))
    return PlannedBatches(length, together, micro, steps)
