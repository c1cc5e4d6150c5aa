"""Hugging Face folders of the Llama kind, written and read without Transformers and without pickle.

Hugging Face's names for things live in this file and nowhere else. What newer readers find under a
new name is written under the old one as well, because vLLM, llama.cpp and Transformers 4 read that.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import torch
from pydantic import Field, ValidationError
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from trainrig import storage
from trainrig.config import Settings
from trainrig.errors import DataError, OutputTaken
from trainrig.models.decoder import Decoder, DecoderConfig, count_parameters

TRANSFORMERS = "5.0.0"  # the release whose names for things the newer half of the keys is in
CONFIG, TOKENIZER = "config.json", "tokenizer.json"
# Written before the config, which completes the folder.
BEFORE_CONFIG = (
    TOKENIZER,
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
    "generation_config.json",
    "README.md",
)
WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"

# Our name of a tensor and theirs; {} is the number of the layer.
BEFORE_LAYERS = {"embedding.weight": "model.embed_tokens.weight"}
OF_EACH_LAYER = {
    "layers.{}.attention_norm.weight": "model.layers.{}.input_layernorm.weight",
    "layers.{}.attention.query.weight": "model.layers.{}.self_attn.q_proj.weight",
    "layers.{}.attention.key.weight": "model.layers.{}.self_attn.k_proj.weight",
    "layers.{}.attention.value.weight": "model.layers.{}.self_attn.v_proj.weight",
    "layers.{}.attention.output.weight": "model.layers.{}.self_attn.o_proj.weight",
    "layers.{}.feedforward_norm.weight": "model.layers.{}.post_attention_layernorm.weight",
    "layers.{}.feedforward.gate.weight": "model.layers.{}.mlp.gate_proj.weight",
    "layers.{}.feedforward.up.weight": "model.layers.{}.mlp.up_proj.weight",
    "layers.{}.feedforward.down.weight": "model.layers.{}.mlp.down_proj.weight",
}
AFTER_LAYERS = {"norm.weight": "model.norm.weight"}
HEAD = {"head.weight": "lm_head.weight"}  # a tied head is left out: its file entry would be empty
# Tables of rotary rates in old checkpoints: they follow from the configuration.
DERIVED = re.compile(r"model\.layers\.\d+\.self_attn\.rotary_emb\.inv_freq")

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


class HubFolder(Settings):
    """How a model is written for others to load."""

    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    file_bytes: int = Field(default=5 * 10**9, ge=1)  # of tensors in one file: Transformers 4's
    # For the card, by the Hub's names: "apache-2.0", "owner/model", "owner/dataset".
    license: str | None = None
    base_model: str | None = None
    datasets: tuple[str, ...] = ()


@dataclass(frozen=True)
class HubTokenizer:
    """A tokenizer with what says how its model is spoken to, and when the model has finished."""

    json: str  # what tokenizer.json is to hold
    end_of_text: str = "<|end_of_text|>"  # stands between documents, and so before the first
    pad: str | None = "<|pad|>"
    end_of_turn: str | None = None  # where an answer ends, of a model tuned to chat
    chat_template: str | None = None  # Jinja

    @cached_property
    def ids(self) -> dict[str, int]:
        """The id of every entry. Raises DataError for what is no tokenizer.json."""
        try:
            parsed = json.loads(self.json)
            entries = parsed["model"]["vocab"]
            added = {each["content"]: each["id"] for each in parsed["added_tokens"]}
            if isinstance(entries, list):  # a Unigram model's, each with its score
                return {entry[0]: index for index, entry in enumerate(entries)} | added
            return dict(entries) | added
        except (ValueError, KeyError, TypeError) as error:
            raise DataError(
                f"{TOKENIZER}: not what the tokenizers library saves: {error}"
            ) from None

    @property
    def stop_ids(self) -> list[int]:
        """Ids that end an answer: end of text and, if there is one, end of turn."""
        return [self.ids[each] for each in (self.end_of_text, self.end_of_turn) if each is not None]

    def check(self, vocabulary: int) -> None:
        """Raise DataError unless it fits a model of `vocabulary` ids and is at one with itself."""
        for token in (self.end_of_text, self.pad, self.end_of_turn):
            if token is not None and token not in self.ids:
                raise DataError(f"{TOKENIZER}: no token {token!r}; name one that it has")
        if max(self.ids.values()) >= vocabulary:
            raise DataError(
                f"{TOKENIZER}: ids up to {max(self.ids.values())}, but the model has {vocabulary} "
                "entries; export it with the tokenizer that it was trained on"
            )
        if self.pad in (self.end_of_text, self.end_of_turn):
            raise DataError(
                f"pad is {self.pad!r}, which also ends a text: whoever tunes this model would mask "
                "the end and never learn to stop; name another token or None"
            )
        if self.chat_template is not None and (
            self.end_of_turn is None or self.end_of_turn not in self.chat_template
        ):
            raise DataError(
                f"the chat template never writes the end of turn, {self.end_of_turn!r}, so that no "
                "answer would end; name as end_of_turn what the template ends a message with"
            )


def export_llama(
    state: Mapping[str, Tensor],
    config: DecoderConfig,
    tokenizer: HubTokenizer,
    out: str,
    settings: HubFolder | None = None,
) -> None:
    """Write a model as the folder `out`: weights first; config, without which nothing loads, last.

    `state` is the model's `state_dict()`, of whole tensors. The same arguments give the same bytes.
    Raises DataError if weights, sizes and tokenizer do not fit each other, OutputTaken if `out`
    already holds a model.
    """
    settings = settings or HubFolder()
    _check_state(state, config)
    tokenizer.check(config.shape.vocabulary)
    tensors = {
        theirs: state[ours].detach().to("cpu", DTYPES[settings.dtype]).contiguous()
        for ours, theirs in tensor_names(config).items()
    }
    files = split_into_files({name: t.nbytes for name, t in tensors.items()}, settings.file_bytes)
    _refuse_another_folder(out, files)
    for file, names in files.items():
        with storage.atomic_file(storage.join(out, file)) as path:
            save_file({name: tensors[name] for name in names}, path, metadata={"format": "pt"})
    if len(files) > 1:
        _write_json(
            storage.join(out, INDEX),
            {
                "metadata": {"total_size": sum(t.nbytes for t in tensors.values())},
                "weight_map": {name: file for file, names in files.items() for name in names},
            },
        )
    _write_tokenizer(out, tokenizer, config.positions)
    storage.write(storage.join(out, "README.md"), _card(config, settings).encode())
    _write_json(storage.join(out, "generation_config.json"), _generation_json(tokenizer))
    _write_json(storage.join(out, CONFIG), _config_json(config, settings, tokenizer))


def tensor_names(config: DecoderConfig) -> dict[str, str]:
    """Our name of each tensor of a model and theirs, from the embedding to the head."""
    names = dict(BEFORE_LAYERS)
    for layer in range(config.layers):
        names |= {
            ours.format(layer): theirs.format(layer) for ours, theirs in OF_EACH_LAYER.items()
        }
    return names | AFTER_LAYERS | ({} if config.tie_embeddings else HEAD)


def split_into_files(sizes: Mapping[str, int], limit: int) -> dict[str, list[str]]:
    """Files, and the tensors in each, in order; no file has above `limit` bytes of tensors.

    But a tensor that is larger than that by itself has a file to itself.
    """
    groups: list[list[str]] = [[]]
    filled = 0
    for name, size in sizes.items():
        if groups[-1] and filled + size > limit:
            groups.append([])
            filled = 0
        groups[-1].append(name)
        filled += size
    if len(groups) == 1:
        return {WEIGHTS: groups[0]}
    last = len(groups)
    return {f"model-{n:05}-of-{last:05}.safetensors": group for n, group in enumerate(groups, 1)}


def import_llama(folder: str) -> tuple[dict[str, Tensor], DecoderConfig, str]:
    """The weights of a Llama folder under our names, its sizes, and its tokenizer.json.

    The weights are in the dtype they are stored in. Raises DataError for what is not there, and
    for a model that would compute something else here than it does in Transformers.
    """
    config = _read_config(storage.join(folder, CONFIG))
    stored = _read_weights(folder)
    names = tensor_names(config)
    missing = sorted(set(names.values()) - set(stored))
    if missing:
        raise DataError(
            f"{folder}: no tensor {missing[0]!r} ({len(missing)} missing) among the "
            f"{len(stored)} there are; download or save the model again"
        )
    known = set(names.values()) | set(HEAD.values())  # some files repeat a tied head
    surplus = sorted(name for name in stored if name not in known and not DERIVED.fullmatch(name))
    if surplus:
        raise DataError(
            f"{folder}: tensor {surplus[0]!r} ({len(surplus)} such) has no place in a Llama model; "
            "merge adapters and undo quantisation before the import"
        )
    state = {ours: stored[theirs] for ours, theirs in names.items()}
    _check_state(state, config)
    try:
        tokenizer_json = storage.read(storage.join(folder, TOKENIZER)).decode()
    except FileNotFoundError:
        raise DataError(
            f"{folder}: no {TOKENIZER}; load its tokenizer with Transformers' AutoTokenizer and "
            "save it back into the folder with save_pretrained"
        ) from None
    return state, config, tokenizer_json


def _check_state(state: Mapping[str, Tensor], config: DecoderConfig) -> None:
    with torch.device("meta"):
        wanted = {name: t.shape for name, t in Decoder(config).state_dict().items()}
    if wanted.keys() != state.keys():
        odd = sorted(wanted.keys() ^ state.keys())[0]
        raise DataError(
            f"weights and model settings disagree: {odd!r} is only in the "
            f"{'settings' if odd in wanted else 'weights'}"
        )
    for name, shape in wanted.items():
        if state[name].shape != shape:
            raise DataError(
                f"weights and model settings disagree: {name} is {tuple(state[name].shape)}, "
                f"by the settings it would be {tuple(shape)}"
            )


def _refuse_another_folder(out: str, files: Mapping[str, Any]) -> None:
    # Files of ours without a config are what a killed export left: they are written over.
    ours = {*files, INDEX, *BEFORE_CONFIG}
    for path in storage.list_files(out):
        name = path.removeprefix(out.rstrip("/") + "/")
        if name == CONFIG or (name.endswith(".safetensors") and name not in files):
            raise OutputTaken(f"{out}: holds a model already ({name}); name another folder")
        if name not in ours:
            raise OutputTaken(f"{out}: holds other files ({name}); name another folder")


def _config_json(
    config: DecoderConfig, settings: HubFolder, tokenizer: HubTokenizer
) -> dict[str, Any]:
    shape = config.shape
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": shape.vocabulary,
        "hidden_size": shape.channels,
        "intermediate_size": shape.feedforward_channels,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_channels,
        "hidden_act": "silu",
        "max_position_embeddings": config.positions,
        "rms_norm_eps": config.norm_epsilon,
        "rope_theta": config.rope_theta,
        "rope_scaling": None,
        "rope_parameters": {"rope_type": "default", "rope_theta": config.rope_theta},
        "attention_bias": False,
        "mlp_bias": False,
        "attention_dropout": 0.0,
        "initializer_range": config.initial_std,
        "tie_word_embeddings": config.tie_embeddings,
        "use_cache": True,
        **_special_ids(tokenizer),
        "dtype": settings.dtype,
        "torch_dtype": settings.dtype,
        "transformers_version": TRANSFORMERS,
    }


def _generation_json(tokenizer: HubTokenizer) -> dict[str, Any]:
    return {
        **_special_ids(tokenizer),
        "eos_token_id": tokenizer.stop_ids,
        "transformers_version": TRANSFORMERS,
    }


def _special_ids(tokenizer: HubTokenizer) -> dict[str, int | None]:
    end = tokenizer.ids[tokenizer.end_of_text]
    pad = None if tokenizer.pad is None else tokenizer.ids[tokenizer.pad]
    return {"bos_token_id": end, "eos_token_id": end, "pad_token_id": pad}


def _write_tokenizer(out: str, tokenizer: HubTokenizer, positions: int) -> None:
    roles = {"bos_token": tokenizer.end_of_text, "eos_token": tokenizer.end_of_text}
    if tokenizer.pad is not None:
        roles["pad_token"] = tokenizer.pad
    settings: dict[str, Any] = {
        # By its older name: Transformers 4, vLLM and llama.cpp do not know the newer one.
        "tokenizer_class": "PreTrainedTokenizerFast",
        **roles,
        "model_max_length": positions,
        "clean_up_tokenization_spaces": False,  # decoding gives the text back as it was
    }
    if tokenizer.chat_template is not None:
        settings["chat_template"] = tokenizer.chat_template
        template = tokenizer.chat_template.encode()
        storage.write(storage.join(out, "chat_template.jinja"), template)
    storage.write(storage.join(out, TOKENIZER), tokenizer.json.encode())
    _write_json(storage.join(out, "tokenizer_config.json"), settings)
    _write_json(storage.join(out, "special_tokens_map.json"), roles)


def _card(config: DecoderConfig, settings: HubFolder) -> str:
    about: dict[str, Any] = {"library_name": "transformers", "pipeline_tag": "text-generation"}
    about |= {
        key: value
        for key, value in (
            ("license", settings.license),
            ("base_model", settings.base_model),
            ("datasets", list(settings.datasets)),
        )
        if value
    }
    # JSON values are YAML values, with nothing left to escape.
    lines = [f"{key}: {json.dumps(value)}" for key, value in about.items()]
    shape, parameters = config.shape, count_parameters(config).total
    return "\n".join(
        [
            "---",
            *lines,
            "---",
            "",
            f"A Llama model of {parameters:,} parameters, trained with trainrig.",
            "",
            f"{shape.layers} layers, {shape.channels} channels, {shape.heads} heads "
            f"({shape.kv_heads} for keys and values), {shape.vocabulary:,} entries of vocabulary, "
            f"{config.positions:,} positions, stored in {settings.dtype}.",
            "",
            "Transformers reads the name of a special token in a text as that token. Encode what "
            "others wrote by `tokenizer(text, split_special_tokens=True)`.",
            "",
        ]
    )


def _write_json(path: str, value: Mapping[str, Any]) -> None:
    storage.write(path, (json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode())


def _read_json(path: str) -> dict[str, Any]:
    try:
        value = json.loads(storage.read(path))
    except FileNotFoundError:
        raise DataError(f"{path}: not there; name the folder of a Hugging Face model") from None
    except ValueError as error:
        raise DataError(f"{path}: not JSON: {error}") from None
    if not isinstance(value, dict):
        raise DataError(f"{path}: not a JSON object")
    return value


def _read_config(path: str) -> DecoderConfig:
    """Keys that are not there have the values that Transformers gives them."""
    given = _read_json(path)
    if given.get("model_type") != "llama" or given.get("architectures") != ["LlamaForCausalLM"]:
        raise DataError(
            f"{path}: model_type {given.get('model_type')!r} and architectures "
            f"{given.get('architectures')!r}; only 'llama' and ['LlamaForCausalLM'] can be imported"
        )
    for key, plain in {
        "attention_bias": False,
        "mlp_bias": False,
        "hidden_act": "silu",
        "quantization_config": None,
    }.items():
        if given.get(key, plain) != plain:
            raise DataError(
                f"{path}: {key} is {given[key]!r}, which a Decoder does not do; "
                f"only models with {plain!r} can be imported"
            )
    try:
        return DecoderConfig(
            layers=given["num_hidden_layers"],
            channels=given["hidden_size"],
            heads=given["num_attention_heads"],
            kv_heads=given.get("num_key_value_heads"),
            head_channels=given.get("head_dim"),
            feedforward_channels=given["intermediate_size"],
            vocabulary=given["vocab_size"],
            positions=given.get("max_position_embeddings", 2048),
            rope_theta=_rope_theta(given, path),
            norm_epsilon=given.get("rms_norm_eps", 1e-6),
            tie_embeddings=given.get("tie_word_embeddings", False),
            initial_std=given.get("initializer_range", 0.02),
        )
    except KeyError as error:
        raise DataError(f"{path}: no key {error}; save the model again") from None
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise DataError(f"{path}: as a Decoder's {where or 'sizes'}: {first['msg']}") from None


def _rope_theta(given: Mapping[str, Any], path: str) -> float:
    """From the new key, the old one, or both if they agree; scaled rotations are refused."""
    tables = {key: given.get(key) or {} for key in ("rope_parameters", "rope_scaling")}
    for key, table in tables.items():
        kind = table.get("rope_type", table.get("type", "default"))
        if kind != "default":
            raise DataError(
                f"{path}: {key} asks for rotary positions of type {kind!r}; only models with plain "
                "ones can be imported"
            )
    thetas = [
        float(where["rope_theta"])
        for where in (tables["rope_parameters"], given)
        if where.get("rope_theta") is not None
    ]
    if len(set(thetas)) > 1:
        raise DataError(f"{path}: rope_theta is {thetas[1]}, in rope_parameters {thetas[0]}")
    return thetas[0] if thetas else 10_000.0


def _read_weights(folder: str) -> dict[str, Tensor]:
    tensors: dict[str, Tensor] = {}
    for file in _weight_files(folder):
        path = storage.join(folder, file)
        try:
            tensors |= load_file(storage.local_path(path))
        except FileNotFoundError:
            raise DataError(f"{path}: not there, though {INDEX} names it; download it") from None
        except SafetensorError as error:
            raise DataError(f"{path}: damaged ({error}); download or save it again") from None
    return tensors


def _weight_files(folder: str) -> list[str]:
    if storage.exists(storage.join(folder, WEIGHTS)):
        return [WEIGHTS]
    index = storage.join(folder, INDEX)
    if not storage.exists(index):
        old = [p for p in storage.list_files(folder) if p.endswith((".bin", ".pt", ".pth"))]
        found = f"{old[0].rpartition('/')[2]} is a pickle, which can run any code" if old else ""
        raise DataError(
            f"{folder}: no {WEIGHTS}{'; ' + found if found else ''}; load the model with "
            "Transformers and save it with save_pretrained, which writes safetensors"
        )
    files = sorted(set(_read_json(index).get("weight_map", {}).values()))
    for file in files:
        if "/" in file or not file.endswith(".safetensors"):
            raise DataError(f"{index}: {file!r} is no safetensors file of this folder")
    return files
