"""Opened checkpoints: a model with its tokenizer, which continues texts and answers messages."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypedDict, Unpack, overload

import torch

from trainrig import config
from trainrig.errors import ConfigError
from trainrig.models.architecture.decoder_config import DecoderConfig, count_parameters
from trainrig.models.huggingface import open_folder
from trainrig.models.token_sampling import Sampling
from trainrig.posttrain.model_source import is_hub_folder
from trainrig.posttrain.text_generator import (
    BATCH,
    TextGenerator,
    TextRequest,
    build_requests,
    check_speaks,
)
from trainrig.python_api.html_tables import render_html_table
from trainrig.tokens.chat.chat_messages import BadRow, parse_messages
from trainrig.tokens.tokenizers.encode import Encoder
from trainrig.train import checkpoint

Messages = str | Sequence[Mapping[str, Any]]


class SamplingOptions(TypedDict, total=False):
    """Options of `LoadedModel.generate`, with the names of the command `generate`."""

    tokens: int
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    repetition_penalty: float
    stop: Sequence[str]
    seed: int


@dataclass(frozen=True)
class LoadedModel:
    """A model with its tokenizer, in evaluation mode."""

    path: str  # folder of the checkpoint, or the Hugging Face folder
    step: int  # updates made; 0 for a Hugging Face folder
    config: DecoderConfig  # architecture of the model
    generator: TextGenerator  # the object behind the command `generate`

    @property
    def model(self) -> torch.nn.Module:
        """The torch module; `model.model(ids).logits` are its predictions."""
        assert isinstance(self.generator.model, torch.nn.Module)  # `load` never opens vLLM
        return self.generator.model

    @property
    def tokenizer(self) -> Encoder:
        """The tokenizer: `encode_batch(["a text"])` and `decode(ids)`."""
        return self.generator.encoder

    @overload
    def generate(  # type: ignore[overload-overlap]  # a text is also a sequence of texts
        self, prompts: str, **options: Unpack[SamplingOptions]
    ) -> str: ...

    @overload
    def generate(self, prompts: Sequence[str], **options: Unpack[SamplingOptions]) -> list[str]: ...

    def generate(
        self,
        prompts: str | Sequence[str],
        *,
        tokens: int = 64,
        temperature: float = 0.8,
        top_k: int = 50,
        top_p: float = 1.0,
        min_p: float = 0.0,
        repetition_penalty: float = 1.0,
        stop: Sequence[str] = (),
        seed: int = 0,
    ) -> str | list[str]:
        """Continue one text, or each text of a list, as `trainrig generate` does.

        The settings and their defaults are the options of the command, and give the same text. The
        seed of text number N of a list, counted from 0, is `seed` + N.

        >>> model = trainrig.load("model")
        >>> model.generate("The sea is", tokens=32, temperature=0)
        """
        sampling = build_sampling(
            "generate",
            tokens=tokens,
            temperature=temperature,
            top_k=top_k,
            top_p=top_p,
            min_p=min_p,
            repetition_penalty=repetition_penalty,
            stop=tuple(stop),
            seed=seed,
        )
        rows = [{"prompt": text} for text in ([prompts] if isinstance(prompts, str) else prompts)]
        requests = build_requests(rows, sampling)
        texts = [
            text
            for begin in range(0, len(requests), BATCH)
            for text in self._speak(requests[begin : begin + BATCH])
        ]
        return texts[0] if isinstance(prompts, str) else texts

    def chat(
        self,
        messages: Messages,
        *,
        tokens: int = 512,
        temperature: float = 0.8,
        top_k: int = 50,
        top_p: float = 1.0,
        min_p: float = 0.0,
        repetition_penalty: float = 1.0,
        seed: int = 0,
    ) -> str:
        """Return the assistant's answer to `messages`, as `trainrig chat` does.

        `messages` are `{"role", "content"}` tables, or one text of the user. Raises ConfigError for
        a message without a known role or text.

        >>> model = trainrig.load("tuned")
        >>> model.chat([{"role": "user", "content": "What does json.dumps do?"}])
        """
        sampling = build_sampling(
            "chat",
            tokens=tokens,
            temperature=temperature,
            top_k=top_k,
            top_p=top_p,
            min_p=min_p,
            repetition_penalty=repetition_penalty,
            seed=seed,
        )
        turns = [{"role": "user", "content": messages}] if isinstance(messages, str) else messages
        try:
            parsed = parse_messages([dict(turn) for turn in turns])
        except BadRow as error:
            raise ConfigError(
                f"chat: {error}; a message is a table with `role` and `content`"
            ) from None
        return self._speak([TextRequest(parsed, sampling)])[0]

    def _speak(self, requests: Sequence[TextRequest]) -> list[str]:
        check_speaks(self.path, self.config)
        return [spoken.text for spoken in self.generator.speak_all(requests)]

    def _repr_html_(self) -> str:
        rows = {
            "step": self.step,
            "parameters": count_parameters(self.config).total,
            "vocabulary": self.tokenizer.vocabulary_size,
        }
        return render_html_table(self.path, rows)


def load(path: str | os.PathLike[str], device: str | None = None) -> LoadedModel:
    """Load a model with its tokenizer from a run folder, a checkpoint or a Hugging Face folder.

    A run folder gives its newest checkpoint, and RUN/best its best one. `device` is a name of
    torch, or None for the GPU if there is one. Raises DataError if `path` is none of these.

    >>> model = trainrig.load("model", device="cpu")
    >>> model.tokenizer.encode_batch(["The sea is"])
    """
    opened = _open_any_model(os.fspath(path))
    generator = TextGenerator.load(opened, device)
    return LoadedModel(opened.path, opened.step, opened.config, generator)


def _open_any_model(path: str) -> checkpoint.CheckpointModel:
    """Read the model at `path` to the CPU, in float32."""
    if not is_hub_folder(path):
        return checkpoint.open_model(path)
    found = open_folder(path)
    weights = {name: tensor.float() for name, tensor in found.read_state().items()}
    files = found.files
    return checkpoint.CheckpointModel(
        path, 0, found.config, files.tokenizer, dict(files.beside), weights
    )


def build_sampling(where: str, *, tokens: int, **given: Any) -> Sampling:
    """Build the sampling settings from the options of a command. Raises ConfigError."""
    return config.build(Sampling, {**given, "maximum_tokens": tokens}, where)
