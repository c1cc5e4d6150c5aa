"""Export and import of Hugging Face folders of all families, without Transformers and pickle.

Tensors are read and written one by one, so only the largest is in memory at a time. The files that
an imported model came with (tokenizer, chat template, generation config) are exported unchanged.
Keys of config.json that newer releases renamed are written under the old name as well, because
vLLM, llama.cpp and Transformers 4 read that.
"""

import base64
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import torch
from pydantic import Field
from torch import Tensor

from trainrig import storage
from trainrig.config import Settings
from trainrig.errors import DataError, OutputTaken
from trainrig.models.architecture.decoder_config import DecoderConfig, count_parameters
from trainrig.models.architecture.encoder_configs import EncoderDecoderConfig
from trainrig.models.families import (
    Family,
    find_family,
    read_config,
    safetensors_files,
    strip_config,
)
from trainrig.models.families.mapping import HubConfig, read_labels, write_labels
from trainrig.models.families.mxfp4 import unpack_tensors
from trainrig.models.families.tensors import (
    add_prefix,
    check_names,
    list_tensor_shapes,
    list_tensors,
    list_their_shapes,
    read_ours,
    read_theirs,
)
from trainrig.storage.missing_folders import describe_missing_model, is_missing
from trainrig.tokens import special_tokens

TRANSFORMERS = "5.0.0"  # release that introduced the newer names of config keys
# Files that repeat others for certain readers; they are copied unchanged.
REPEATING = ("vocab.json", "merges.txt", "added_tokens.json", "chat_template.json")
SENTENCEPIECE = "tokenizer.model"  # a binary file, kept in memory as base64
BASE64 = "base64:"
CARD = "README.md"
PARENTS = "trainrig_parents.json"  # record of an earlier export (train/checkpoint/model_parents.py)
# Keys of config.json that an export drops: it is not quantised, and has no files of custom code.
LEFT_BEHIND = {"quantization_config", "auto_map"}
ONE_SCORE = ("score",)  # Transformers counts outputs by their labels
# The Hub's task and trainrig's description for each head that does not predict tokens.
TASKS = {
    "score": "text-classification",
    "classes": "text-classification",
    "spans": "question-answering",
    "replaced": "feature-extraction",
}
DESCRIPTIONS = {
    "tokens": "model",
    "score": "reward model",
    "classes": "classifier",
    "replaced": "discriminator",
}
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


class HubFolder(Settings):
    """Settings of an export to the Hugging Face format."""

    # Data type of the weights; None: the data type of the imported model, or float32.
    dtype: Literal["float32", "bfloat16", "float16"] | None = None
    # Largest size of one weights file in bytes; Transformers 4 has the same.
    file_bytes: int = Field(default=5 * 10**9, ge=1)
    # Metadata of the model card in the Hub's names: "apache-2.0", "owner/model", "owner/dataset".
    license: str | None = None
    base_model: str | None = None
    datasets: tuple[str, ...] = ()
    # Markdown to append to the model card, for example how the model was made and what it scores.
    sections: str = ""


@dataclass(frozen=True)
class HubModel:
    """Model in a Hugging Face folder, whose tensors are read on access."""

    config: DecoderConfig
    files: special_tokens.TokenizerFiles  # the tokenizer and all files that came with it
    tensors: Mapping[str, safetensors_files.PlannedTensor]  # tensors by trainrig's parameter names

    def read_state(self) -> dict[str, Tensor]:
        """Return all tensors as the decoder's `state_dict()`, in their stored dtypes."""
        return {name: tensor.read() for name, tensor in self.tensors.items()}


def open_folder(folder: str) -> HubModel:
    """Return the model in the Hugging Face folder `folder`, on disk or S3, without reading tensors.

    Raises DataError for missing files, and for a model that trainrig would compute differently than
    Transformers.
    """
    if is_missing(folder):
        raise DataError(describe_missing_model(folder, "the folder of a Hugging Face model"))
    given = _read_json(storage.join(folder, special_tokens.MODEL_CONFIG))
    family, config = read_config(given, storage.join(folder, special_tokens.MODEL_CONFIG))
    shapes = list_tensor_shapes(config)
    names = list_tensors(family, config, shapes)
    found = safetensors_files.open_tensors(folder)
    quantised = given.get("quantization_config") is not None
    stored = add_prefix(unpack_tensors(found) if quantised else found, family, names)
    check_names(folder, family, names, stored, shapes)
    tensors = {}
    for entry in names:
        for part, ours in enumerate(entry.ours):
            read = partial(read_ours, entry, part, shapes, stored)
            tensors[ours] = safetensors_files.PlannedTensor(shapes[ours], read)
    files = _read_files(folder)
    if LEFT_BEHIND & given.keys():
        plain = {key: value for key, value in given.items() if key not in LEFT_BEHIND}
        beside = {**files.beside, special_tokens.MODEL_CONFIG: _to_json(plain)}
        files = replace(files, beside=beside)
    _check_tokenizer(files, config)
    return HubModel(config, files, tensors)


def _read_files(folder: str) -> special_tokens.TokenizerFiles:
    try:
        files = special_tokens.TokenizerFiles.read(folder)
    except DataError as error:
        if storage.exists(storage.join(folder, special_tokens.TOKENIZER)):
            raise
        raise DataError(
            f"{folder}: no {special_tokens.TOKENIZER}; load its tokenizer with Transformers' "
            "AutoTokenizer and save it back into the folder with save_pretrained"
        ) from error
    beside = dict(files.beside)
    for name in REPEATING:
        if storage.exists(path := storage.join(folder, name)):
            beside[name] = storage.read(path).decode("utf-8", "surrogateescape")
    if storage.exists(path := storage.join(folder, SENTENCEPIECE)):
        beside[SENTENCEPIECE] = BASE64 + base64.b64encode(storage.read(path)).decode()
    return replace(files, beside=beside)


def _check_tokenizer(files: special_tokens.TokenizerFiles, config: DecoderConfig) -> None:
    """Raise DataError unless the tokenizer fits the model's vocabulary and padding id."""
    special = special_tokens.find_special_tokens(files)
    entries = special.entries
    offset = getattr(config, "positions_offset", 0)
    if offset and (special.pad is None or special.pad.id != offset - 1):
        found = "none" if special.pad is None else f"{special.pad.id}"
        raise DataError(
            f"{files.where}: the padding id is {found}, but RoBERTa needs padding id {offset - 1} "
            f"for the model's positions_offset of {offset}; train with "
            "positions_offset = 0, as in BERT"
        )
    if entries > config.shape.vocabulary:
        raise DataError(
            f"{files.where}: the tokenizer has ids up to {entries - 1}, but the model has only "
            f"{config.shape.vocabulary} entries; use the tokenizer of its training, or resize "
            "the model's embeddings with Transformers' resize_token_embeddings"
        )


def write_folder(
    out: str,
    config: DecoderConfig,
    read: Callable[[str], Tensor],
    files: special_tokens.TokenizerFiles,
    settings: HubFolder | None = None,
    chat_template: str | None = None,
    keep: bool = False,
) -> Family:
    """Write a model to the folder `out` and return its family.

    Weights are written first, and config.json, without which no reader loads the folder, last.
    `read` returns a whole tensor by its name in the decoder's `state_dict()`. `chat_template` is
    used if the tokenizer has no files of its own. The same arguments give the same bytes. With
    `keep`, nothing is written if `out` holds exactly this model already.

    Raises DataError if weights, settings and tokenizer do not fit each other, and OutputTaken if
    `out` already holds a model, or with `keep` another model.
    """
    settings = settings or HubFolder()
    brought = files.parse_json(special_tokens.MODEL_CONFIG)
    family = find_family(config, brought)
    _check_tokenizer(files, config)
    shapes = list_tensor_shapes(config)
    planned = {
        name: safetensors_files.PlannedTensor(
            size,
            partial(read_theirs, entry, name, shapes, read),
            torch.float32 if entry.in_float32 else None,
        )
        for entry in list_tensors(family, config, shapes)
        for name, size in list_their_shapes(entry, shapes).items()
    }
    dtype = settings.dtype or brought.get("dtype") or brought.get("torch_dtype")
    dtype = dtype if dtype in DTYPES else "float32"
    special = special_tokens.find_special_tokens(files)
    texts = _write_texts(files, special, config, chat_template)
    texts[CARD] = _write_card(family, config, dtype, settings)
    described = _write_config(family, config, files, special, dtype)
    if keep and _is_written(out, {**texts, special_tokens.MODEL_CONFIG: described}, planned, dtype):
        return family
    sizes = {name: tensor.count_bytes(DTYPES[dtype]) for name, tensor in planned.items()}
    _refuse_another_folder(
        out, safetensors_files.split_into_files(sizes, settings.file_bytes), texts
    )
    safetensors_files.write_tensors(out, planned, DTYPES[dtype], settings.file_bytes)
    for name, text in texts.items():
        storage.write(storage.join(out, name), _encode_file(name, text))
    storage.write(storage.join(out, special_tokens.MODEL_CONFIG), described.encode())
    return family


def _encode_file(name: str, text: str) -> bytes:
    """Return the bytes of the file `name` whose text, or base64 text, is `text`."""
    if name == SENTENCEPIECE:
        return base64.b64decode(text.removeprefix(BASE64))
    return text.encode("utf-8", "surrogateescape")


def _is_written(
    out: str,
    texts: Mapping[str, str],
    planned: Mapping[str, safetensors_files.PlannedTensor],
    dtype: str,
) -> bool:
    """Return whether the folder `out` holds exactly these files and tensors; reads all of them."""
    for name, text in texts.items():
        path = storage.join(out, name)
        if not storage.exists(path) or storage.read(path) != _encode_file(name, text):
            return False
    stored = safetensors_files.open_tensors(out)
    if stored.keys() != planned.keys():
        return False
    return all(
        torch.equal(stored[name].read(), tensor.read().to(tensor.dtype or DTYPES[dtype]))
        for name, tensor in planned.items()
    )


def _write_config(
    family: Family,
    config: DecoderConfig,
    files: special_tokens.TokenizerFiles,
    special: special_tokens.SpecialTokens,
    dtype: str,
) -> str:
    """Return the text of config.json.

    The text of an imported model is kept where it still describes the model.
    """
    brought = files.parse_json(special_tokens.MODEL_CONFIG)
    kept = brought if brought.get("model_type") == family.model_type else {}
    told = {"dtype": dtype, "torch_dtype": dtype}
    brought_as = kept.get("architectures") or [family.architecture]
    as_brought = kept and brought_as == [family.find_architecture(config)]
    if config.head == "classes":
        as_brought = as_brought and read_labels(kept) == config.labels
    there = config.with_head("tokens")
    if as_brought and strip_config(
        family.read(HubConfig(kept, special_tokens.MODEL_CONFIG))
    ) == strip_config(there):
        if kept.get("dtype", kept.get("torch_dtype")) == dtype:
            return files.beside[special_tokens.MODEL_CONFIG]
        return _to_json({**kept, **{k: v for k, v in told.items() if k in kept}})
    written = family.write(config.plain)
    assert written is not None  # `find_family` has checked that the family can express it
    begin = _find_first_token(special) or special.end
    end = special.end
    pad = special.pad
    own = {} if kept else {
        "bos_token_id": begin.id if begin else None,
        "eos_token_id": end.id if end else None,
        "pad_token_id": pad.id if pad else None,
        "transformers_version": TRANSFORMERS,
    }  # fmt: skip
    if isinstance(config, EncoderDecoderConfig):  # the first token that its decoder reads
        written = {**written, "decoder_start_token_id": special.padding}
    own = {key: value for key, value in own.items() if key not in written}
    head = {"architectures": [family.find_architecture(config)], "model_type": family.model_type}
    outputs = head
    if config.head in ("score", "classes"):
        outputs = head | write_labels(config.labels or ONE_SCORE)
    return _to_json({**head, **kept, **written, **own, **told, **outputs})


def _write_texts(
    files: special_tokens.TokenizerFiles,
    special: special_tokens.SpecialTokens,
    config: DecoderConfig,
    template: str | None,
) -> dict[str, str]:
    """Return the texts of all files but weights and config.json, by file name.

    Files of an imported model are returned unchanged.
    """
    texts = {special_tokens.TOKENIZER: files.tokenizer}
    texts |= {
        k: v
        for k, v in files.beside.items()
        if k not in (special_tokens.MODEL_CONFIG, special_tokens.ROLES, special_tokens.NEW_TOKENS)
    }
    if special_tokens.TOKENIZER_CONFIG not in texts:
        texts |= _write_tokenizer_files(special, config, template)
    if special_tokens.GENERATION not in texts and not config.bidirectional:
        pad = special.pad
        begin = _find_first_token(special)
        if begin is None and special_tokens.MODEL_CONFIG not in files.beside:
            begin = special.end
        ids = {"bos_token_id": begin and begin.id, "eos_token_id": list(special.stop_ids) or None,
               "pad_token_id": pad and pad.id}  # fmt: skip
        texts[special_tokens.GENERATION] = _to_json({**ids, "transformers_version": TRANSFORMERS})
    return texts


def _find_first_token(special: special_tokens.SpecialTokens) -> special_tokens.SpecialToken | None:
    """Return the token before a text: what the tokenizer adds, or the one with the role `begin`."""
    if special.end and special.prefix == (special.end.id,):
        return special.end
    return special.begin


def _write_tokenizer_files(
    special: special_tokens.SpecialTokens, config: DecoderConfig, template: str | None
) -> dict[str, str]:
    """Return the settings of a tokenizer trained by trainrig: special tokens and chat template."""
    end = special.of("end")
    pad = special.pad
    roles = {"bos_token": end.text, "eos_token": end.text}
    if pad is not None:
        roles["pad_token"] = pad.text
    if special.mask is not None and config.bidirectional:
        roles["mask_token"] = special.mask.text
    settings: dict[str, Any] = {
        # Transformers 4, vLLM and llama.cpp know only this older name.
        "tokenizer_class": "PreTrainedTokenizerFast",
        **roles,
        "model_max_length": config.positions,
        "clean_up_tokenization_spaces": False,  # decoding returns the original text
    }
    if special.prefix == (end.id,):
        # Read by trainrig and llama.cpp. Transformers 5 adds what tokenizer.json says: nothing.
        settings["add_bos_token"] = True
    texts = {special_tokens.MAP: _to_json(roles)}
    speaks = special.end_of_turn and special.user and special.assistant
    if template is not None and speaks:
        settings["chat_template"] = template
        texts[special_tokens.TEMPLATE_FILE] = template
    return texts | {special_tokens.TOKENIZER_CONFIG: _to_json(settings)}


def _refuse_another_folder(out: str, files: Mapping[str, Any], texts: Mapping[str, str]) -> None:
    # Files of trainrig without a config.json are left from an interrupted export: overwrite them.
    ours = {*files, safetensors_files.INDEX, *texts, PARENTS}
    for path in storage.list_files(out):
        name = path.removeprefix(out.rstrip("/") + "/")
        if name == special_tokens.MODEL_CONFIG or (
            name.endswith(".safetensors") and name not in files
        ):
            raise OutputTaken(f"{out}: already holds a model ({name}); name another folder")
        if name not in ours:
            raise OutputTaken(f"{out}: holds other files ({name}); name another folder")


def _write_card(family: Family, config: DecoderConfig, dtype: str, settings: HubFolder) -> str:
    task = "fill-mask" if config.bidirectional else "text-generation"
    task = "text2text-generation" if isinstance(config, EncoderDecoderConfig) else task
    task = TASKS.get(config.head, task)
    about: dict[str, Any] = {"library_name": "transformers", "pipeline_tag": task}
    about |= {
        key: value
        for key, value in (
            ("license", settings.license),
            ("base_model", settings.base_model),
            ("datasets", list(settings.datasets)),
        )
        if value
    }
    # Every JSON value is a YAML value, so no further escaping is needed.
    lines = [f"{key}: {json.dumps(value)}" for key, value in about.items()]
    shape = config.shape
    parameters = count_parameters(config).total
    what = DESCRIPTIONS.get(config.head, "extractive question-answering model")
    return "\n".join(
        [
            "---",
            *lines,
            "---",
            "",
            f"A {family.stem} {what} of {parameters:,} parameters, trained with trainrig.",
            "",
            f"{shape.layers} layers, {shape.channels} channels, {shape.heads} heads "
            f"({shape.kv_heads} for keys and values), {shape.vocabulary:,} entries of vocabulary, "
            f"{config.positions:,} positions, stored in {dtype}.",
            "",
            "Transformers reads the name of a special token in a text as that token. Encode "
            "untrusted text with `tokenizer(text, split_special_tokens=True)`.",
            "",
            *([settings.sections] if settings.sections else []),
        ]
    )


def _to_json(value: Mapping[str, Any]) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False) + "\n"


def _read_json(path: str) -> dict[str, Any]:
    try:
        value = json.loads(storage.read(path))
    except FileNotFoundError:
        raise DataError(f"{path}: is missing; name the folder of a Hugging Face model") from None
    except ValueError as error:
        raise DataError(f"{path}: is not valid JSON: {error}") from None
    if not isinstance(value, dict):
        raise DataError(f"{path}: is not a JSON object")
    return value
