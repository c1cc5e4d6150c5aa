"""Text generation with a checkpoint: continue a text, answer a conversation or fill a gap.

`trainrig generate --prompts` answers each row of a JSONL file. Rows are read in batches of a fixed
size from the start of the file. A row's batch, and so its answer, does not depend on the number of
workers. A call that was stopped resumes with the remaining batches.
"""

import functools
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from trainrig import storage
from trainrig.errors import DataError
from trainrig.manifest import FileSum
from trainrig.models.architecture.decoder_config import DecoderConfig
from trainrig.models.architecture.encoder_configs import EncoderDecoderConfig
from trainrig.models.decoder import Decoder
from trainrig.models.encoder_decoder import EncoderDecoder, write_answer
from trainrig.models.generation import Request, generate_batch
from trainrig.models.token_sampling import Sampling
from trainrig.objectives.denoising.needed_tokens import check_sentinels, find_sentinels
from trainrig.posttrain.prompt_text import AnyPrompt, Gap, PromptEncoder, TextListener
from trainrig.posttrain.vllm_model import VllmModel
from trainrig.ray_runtime.ray_session import connect
from trainrig.ray_runtime.split_processing import map_splits
from trainrig.splits import Phase, Split, Work
from trainrig.tokens.chat import chat_messages
from trainrig.tokens.tokenizers.encode import Encoder
from trainrig.train import checkpoint

BATCH = 16  # prompts that are generated together


@dataclass(frozen=True)
class Spoken:
    """A generated text and the reason why it ended.

    The reason is "end", "stop" (a stop text), "length" or "positions".
    """

    text: str
    stopped: str
    tokens: int = 0  # Number of generated tokens.


@dataclass(frozen=True)
class TextRequest:
    """A prompt with its sampling settings: a text, a conversation or a gap."""

    prompt: AnyPrompt
    sampling: Sampling
    hear: Callable[[str], None] | None = None  # Called with each new piece of the text.


@dataclass(frozen=True)
class TextGenerator:
    """A model with its tokenizer, ready to generate text."""

    model: Decoder | VllmModel
    encoder: Encoder
    tuned: bool | None = None  # Whether the model was tuned on conversations; None: unknown.
    # Extra variables for the chat template, besides those in the tokenizer's files.
    variables: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def open(cls, path: str, device: str | None = None) -> "TextGenerator":
        """Open the newest checkpoint at `path` on `device` (None: the accelerator if any).

        Raises DataError if there is none, or if the model generates no text.
        """
        opened = checkpoint.open_model(path)
        check_speaks(opened.path, opened.config)
        return cls.load(opened, device)

    @classmethod
    def load(cls, opened: checkpoint.CheckpointModel, device: str | None = None) -> "TextGenerator":
        """Build the model that was `opened` on `device` (None: the accelerator if any)."""
        encoder = Encoder(opened.tokenizer, opened.path, opened.beside)
        model = opened.build().to(device or ("cuda" if torch.cuda.is_available() else "cpu"))
        return cls(model, encoder, opened.tuned)

    @classmethod
    def open_in_vllm(cls, path: str, memory: float) -> "TextGenerator":
        """Open the newest checkpoint at `path` in vLLM with a share `memory` of the GPU's memory.

        Raises DataError if there is none, ConfigError where vLLM is not installed.
        """
        stored = checkpoint.StoredModel(path)
        check_speaks(stored.path, stored.config)
        if isinstance(stored.config, EncoderDecoderConfig):
            raise DataError(
                f"{stored.path}: {stored.config.description}, which vLLM does not support; "
                "leave --engine out"
            )
        encoder = Encoder(stored.files.tokenizer, stored.path, stored.files.beside)
        model = VllmModel(stored.config, stored.read, stored.files, memory, "--engine vllm")
        return cls(model, encoder)

    def speak(self, prompt: str, sampling: Sampling, chat: bool = False) -> Spoken:
        """Continue `prompt`; with `chat`, answer it as the assistant."""
        given = (chat_messages.Message("user", prompt),) if chat else prompt
        return self.speak_all([TextRequest(given, sampling)])[0]

    def fill(self, prefix: str, suffix: str, sampling: Sampling) -> Spoken:
        """Generate the text between `prefix` and `suffix`.

        The model must be trained with FillInTheMiddle or SpanCorruption.
        """
        return self.speak_all([TextRequest(Gap(prefix, suffix), sampling)])[0]

    def answer(
        self,
        messages: Sequence[chat_messages.Message],
        sampling: Sampling,
        hear: Callable[[str], None] | None = None,
    ) -> Spoken:
        """Generate the assistant's answer to `messages`; call `hear` with each new piece."""
        return self.speak_all([TextRequest(tuple(messages), sampling, hear)])[0]

    def speak_all(self, requests: Sequence[TextRequest]) -> list[Spoken]:
        """Generate the texts of all `requests` in one batch.

        Raises DataError for a prompt that does not fit, and for conversations if the chat template
        makes no prompt for the assistant. With an encoder-decoder, raises it for every prompt but a
        gap.
        """
        if isinstance(self.model, EncoderDecoder):
            return [self._fill_span(self.model, request) for request in requests]
        listeners = [_build_listener(self.encoder, request) for request in requests]
        asked = [
            Request(tuple(self.encode_prompt(request.prompt)), request.sampling, listener)
            for request, listener in zip(requests, listeners, strict=True)
        ]
        stop = set(self.encoder.special_tokens.stop_ids)
        entries = self.encoder.vocabulary_size
        if isinstance(self.model, VllmModel):
            generations = self.model.generate(asked, stop, entries)
        else:
            generations = generate_batch(self.model, asked, stop, entries)
        return [
            Spoken(listener.finish(), generation.stopped, len(generation.ids))
            for listener, generation in zip(listeners, generations, strict=True)
        ]

    def _fill_span(self, model: EncoderDecoder, request: TextRequest) -> Spoken:
        """Return the text that `model` generates for the first sentinel, which marks the gap."""
        gap = request.prompt
        special = self.encoder.special_tokens
        if not isinstance(gap, Gap):
            raise DataError(
                "the model has an encoder and a decoder, so it does not continue a text or "
                "answer one; give it a gap to fill, with --prefix and --suffix"
            )
        sentinels = find_sentinels(self.encoder)
        check_sentinels(self.encoder.files.where, "SpanCorruption", len(sentinels), 1)
        before, after = (
            [int(number) for number in ids]
            for ids in self.encoder.encode_batch([gap.prefix, gap.suffix])
        )
        listener = _build_listener(self.encoder, request)
        generation = write_answer(
            model,
            [*before, sentinels[0], *after, self.encoder.end_of_text],
            (special.padding, sentinels[0]),
            request.sampling,
            {*special.stop_ids, *sentinels[1:]},
            self.encoder.vocabulary_size,
            listener,
        )
        return Spoken(listener.finish(), generation.stopped, len(generation.ids))

    def encode_prompt(self, prompt: AnyPrompt) -> list[int]:
        """Return the token ids that the model continues from."""
        return self._prompts.encode(prompt)

    @functools.cached_property
    def _prompts(self) -> PromptEncoder:
        return PromptEncoder(self.encoder, self.variables)


def _build_listener(encoder: Encoder, request: TextRequest) -> TextListener:
    answers = isinstance(request.prompt, tuple | chat_messages.Conversation)
    return TextListener(encoder, request.sampling.stop, answers, request.hear)


def check_speaks(where: str, config: DecoderConfig) -> None:
    """Raise DataError for a model that does not continue texts."""
    if config.head != "tokens":
        raise DataError(
            f"{where}: {config.description}, which generates no text; use `trainrig score`"
        )
    if config.bidirectional:
        raise DataError(
            f"{where}: an encoder, which does not continue a text; use `trainrig evaluate` to "
            "score it"
        )


Row = Mapping[str, Any]


def generate_file(
    checkpoint: str,
    prompts: str,
    out: str,
    sampling: Sampling,
    *,
    batch: int = BATCH,
    workers: int = 0,
    vllm_memory: float | None = None,
) -> dict[str, int]:
    """Write to `out` the rows of `prompts` with `text` and `stopped` added; return counts.

    A row has `prompt`, a text to continue, or `messages`, a conversation to answer, which may have
    `tools`. A row may have its own `seed`; the default is the sampling's seed plus the row number.
    If `vllm_memory` is given, vLLM runs the model in this process with that share of the GPU's
    memory. Raises DataError for rows with neither `prompt` nor `messages`, before anything is
    generated.
    """
    rows = read_prompts(prompts)
    splits = [
        Split(f"{begin:08d}", {"rows": rows[begin : begin + batch], "first": begin})
        for begin in range(0, len(rows), batch)
    ]
    scratch = f"{out}.parts"
    make = functools.partial(_make_work, checkpoint, sampling, scratch, vllm_memory)
    if workers:
        connect(workers, "workers", models=True)
    memory = _estimate_memory(checkpoint) if workers else 0
    done = storage.join(scratch, "done")
    phase = Phase(done, make, title="generate: answer prompts", memory=memory)
    map_splits(phase, splits, workers, models=True)
    parts = [storage.join(scratch, f"{split.name}.jsonl") for split in splits]
    lines = b"".join(storage.read_files(parts))
    storage.write(out, lines)
    storage.delete_folder(scratch)
    ended = [json.loads(line)["stopped"] for line in lines.splitlines()]
    return {"rows": len(rows), **{kind: ended.count(kind) for kind in sorted(set(ended))}}


def read_prompts(path: str) -> list[dict[str, Any]]:
    """Read the rows of the JSONL file at `path`.

    Raises DataError if the file is missing or empty, or if a row is not a valid request.
    """
    if not storage.exists(path):
        raise DataError(f"{path}: no such file; name a JSONL file of prompts")
    rows = []
    for number, line in enumerate(storage.read(path).splitlines(), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
            read_request(row, Sampling())
        except (ValueError, RecursionError) as error:
            raise DataError(
                f"{path}:{number}: not JSON: {error}; write one object on each line"
            ) from None
        except (chat_messages.BadRow, TypeError, KeyError) as error:
            raise DataError(
                f"{path}:{number}: {error}; a row is an object with `prompt`, a text, or with "
                "`messages`, a list of objects with `role` and `content`"
            ) from None
        rows.append(row)
    if not rows:
        raise DataError(f"{path}: the file has no rows; write an object with `prompt` on each line")
    return rows


def read_request(row: Any, sampling: Sampling) -> TextRequest:
    """Return the request that `row` describes.

    Raises BadRow, KeyError or TypeError if the row is not a valid request.
    """
    prompt: str | chat_messages.Conversation
    if "messages" in row:
        prompt = chat_messages.Conversation(
            chat_messages.parse_messages(row["messages"]),
            chat_messages.parse_tools(row.get("tools")),
        )
    elif isinstance(row["prompt"], str):
        prompt = row["prompt"]
    else:
        raise TypeError("`prompt` is not text")
    return TextRequest(prompt, sampling)


def build_requests(rows: Sequence[Row], sampling: Sampling, first: int = 0) -> list[TextRequest]:
    """Return the requests of `rows`, whose numbers in their file begin at `first`.

    The seed of a row is its own, or the sampling's seed plus the number of the row.
    """
    return [
        read_request(
            row,
            sampling.model_copy(update={"seed": row.get("seed", sampling.seed + first + number)}),
        )
        for number, row in enumerate(rows)
    ]


def _estimate_memory(path: str) -> int:
    return checkpoint.estimate_worker_memory(checkpoint.resolve(path, verify=False))


def _make_work(checkpoint: str, sampling: Sampling, folder: str, vllm_memory: float | None) -> Work:
    """Return the function that answers one batch of rows."""
    if vllm_memory is None:
        generator = TextGenerator.open(checkpoint)
    else:
        generator = TextGenerator.open_in_vllm(checkpoint, vllm_memory)

    def speak(task: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, FileSum]]:
        rows = task["rows"]
        first = task["first"]
        spoken = generator.speak_all(build_requests(rows, sampling, first))
        lines = [
            json.dumps({**row, "text": answer.text, "stopped": answer.stopped}, ensure_ascii=False)
            for row, answer in zip(rows, spoken, strict=True)
        ]
        path = storage.join(folder, f"{first:08d}.jsonl")
        storage.write(path, "".join(f"{line}\n" for line in lines).encode("utf-8", "replace"))
        return {"rows": len(rows)}, {}

    return speak
