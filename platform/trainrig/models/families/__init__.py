"""Families of Hugging Face models that can be imported and exported.

To add a family, write a module with its table of tensors and its keys (keys.py), which convert its
settings in both directions, and add it to FAMILIES.
"""

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from trainrig.errors import DataError
from trainrig.models.architecture.decoder_config import DecoderConfig
from trainrig.models.architecture.decoder_fields import Head
from trainrig.models.families.bert import BERT, ELECTRA, ROBERTA
from trainrig.models.families.cohere import COHERE, COHERE2
from trainrig.models.families.deepseek import DEEPSEEK_V2, DEEPSEEK_V3
from trainrig.models.families.exaone4 import EXAONE4
from trainrig.models.families.gemma import GEMMA, GEMMA2, GEMMA3
from trainrig.models.families.glm import ERNIE4_5, GLM, GLM4
from trainrig.models.families.glm4_moe import GLM4_MOE
from trainrig.models.families.gpt2 import GPT2
from trainrig.models.families.gpt_neox import GPT_NEOX
from trainrig.models.families.gpt_oss import GPT_OSS
from trainrig.models.families.granite import GRANITE, GRANITE_MOE
from trainrig.models.families.llama import LLAMA, MINISTRAL, MISTRAL, MIXTRAL, SEED_OSS
from trainrig.models.families.mapping import (
    ENDINGS,
    OF_TOKENS,
    Family,
    HubConfig,
    describe_invalid,
    read_labels,
    strip_config,
)
from trainrig.models.families.modernbert import MODERNBERT
from trainrig.models.families.olmo import OLMO3, OLMOE
from trainrig.models.families.phi3 import PHI3
from trainrig.models.families.qwen2_moe import QWEN2_MOE
from trainrig.models.families.qwen_olmo import OLMO2, QWEN2, QWEN3, QWEN3_MOE
from trainrig.models.families.smollm3 import SMOLLM3
from trainrig.models.families.starcoder_stablelm_phi import PHI, STABLELM, STARCODER2
from trainrig.models.families.t5 import T5

__all__ = [
    "FAMILIES",
    "NAMES",
    "Family",
    "find_family",
    "read_config",
    "strip_config",
]


# The order in which families are tried for a model that came from none of them.
FAMILIES = (
    LLAMA, MISTRAL, MIXTRAL, QWEN2, QWEN3, QWEN3_MOE, OLMO2, GEMMA2, GEMMA3, GPT2,
    BERT, ELECTRA, ROBERTA, MODERNBERT, T5,
    GRANITE, SEED_OSS, MINISTRAL, PHI3, OLMO3, OLMOE, GPT_NEOX, STARCODER2, STABLELM, GLM, GLM4,
    ERNIE4_5, SMOLLM3, COHERE, COHERE2, GRANITE_MOE, GEMMA, EXAONE4, PHI,
    GPT_OSS, QWEN2_MOE, DEEPSEEK_V3, DEEPSEEK_V2, GLM4_MOE,
)  # fmt: skip
NAMES = ", ".join(family.model_type for family in FAMILIES)

_MAMBA = "Mamba layers"
_DELTA = "Gated DeltaNet layers"
# Parts that well-known models have and trainrig does not, by `model_type`.
_MISSING_PARTS: Mapping[str, str] = {
    "bamba": _MAMBA,
    "falcon_h1": _MAMBA,
    "gemma4_text": "keys and values that layers share, and an embedding for each layer",
    "granitemoehybrid": _MAMBA,
    "hunyuan_v1_dense": "norms of queries and keys after their rotation",
    "jamba": _MAMBA,
    "kimi_linear": _DELTA,
    "llama4_text": "attention in chunks",
    "mamba": _MAMBA,
    "mamba2": _MAMBA,
    "ministral3": "queries whose scale grows with the position",
    "nemotron_h": _MAMBA,
    "olmo": "layer norms without gains",
    "qwen3_5_text": _DELTA,
    "qwen3_next": _DELTA,
}


def read_config(given: Mapping[str, Any], path: str) -> tuple[Family, DecoderConfig]:
    """Return the family and the settings of the model whose config.json, at `path`, is `given`.

    Missing keys have Transformers' defaults. Raises DataError for a model that trainrig would
    compute differently than Transformers, and for values of a wrong type or size.
    """
    try:
        return _read_config(given, path)
    except ValidationError as error:
        raise DataError(f"{path}: {describe_invalid(error)}") from None
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        # A family reads dozens of keys; whichever is wrong, the file is.
        raise DataError(
            f"{path}: a value has a wrong type or size ({type(error).__name__}: {error}); "
            "correct it, or save the model again with Transformers"
        ) from error


def _read_config(given: Mapping[str, Any], path: str) -> tuple[Family, DecoderConfig]:
    kind = given.get("model_type")
    known = next((family for family in FAMILIES if family.model_type == kind), None)
    if "auto_map" in given and (known is None or not _is_adopted(given["auto_map"], known)):
        raise DataError(
            f"{path}: needs custom code (auto_map, trust_remote_code), which is never run; only "
            f"models that Transformers itself has can be imported: {NAMES}"
        )
    if given.get("quantization_config") is not None:
        method = given["quantization_config"].get("quant_method", "unknown")
        if known is None or method != known.quantised:
            raise DataError(
                f"{path}: its weights are quantised ({method}); use the unquantised model, or "
                "dequantise it with Transformers and save it again"
            )
    architectures = given.get("architectures")
    for family in FAMILIES:
        if family.model_type != kind:
            continue
        if architectures in (None, [family.architecture]):
            return family, family.read(HubConfig(given, path))
        config = family.read(HubConfig(given, path))
        for head in ENDINGS:
            if architectures == [family.find_architecture(config.with_head(head))]:
                return family, _add_head(config, head, given, path)
    raise DataError(f"{path}: {_explain_refusal(given)}")


def _explain_refusal(given: Mapping[str, Any]) -> str:
    """Return why a model with the config.json `given` cannot be imported, and what can."""
    kind = given.get("model_type")
    if "text_config" in given:
        return (
            f"model_type {kind!r} reads more than text; save its language model alone with "
            f"Transformers, if it is one of these: {NAMES}"
        )
    part = _MISSING_PARTS.get(str(kind))
    if part is not None:
        return f"model_type {kind!r} needs {part}, which trainrig lacks; supported: {NAMES}"
    return (
        f"cannot import model_type {kind!r} with architectures {given.get('architectures')!r}; "
        f"supported: {NAMES}"
    )


def _is_adopted(custom: Mapping[str, Any], family: Family) -> bool:
    """Return whether Transformers has since adopted all classes that the `custom` code names.

    That holds for few families, whose classes have the names of the custom ones. Transformers runs
    its own code then, too. A tokenizer of custom code is not read: tokenizer.json is.
    """
    named = {str(name) for key, name in custom.items() if key != "AutoTokenizer"}
    endings = ("Config", "Model", *OF_TOKENS, *ENDINGS.values())
    own = {family.stem + ending for ending in endings}
    return family.adopted and {name.rpartition(".")[2] for name in named} <= own


def _add_head(
    config: DecoderConfig, head: Head, given: Mapping[str, Any], path: str
) -> DecoderConfig:
    """Return `config` with the head that `given` describes; one class on a decoder is a score.

    Raises DataError for a head that trainrig does not have.
    """
    if head in ("spans", "replaced"):
        if not config.bidirectional:
            raise DataError(
                f"{path}: classifies tokens with a decoder, which does not see later tokens; "
                "only encoders with such heads can be imported"
            )
        return config.with_head(head)
    labels = read_labels(given)
    kind = given.get("problem_type")
    if kind not in (None, "single_label_classification"):
        raise DataError(
            f"{path}: problem_type is {kind!r}; only classifiers of one class for each text "
            "(single_label_classification) can be imported"
        )
    if len(labels) > 1:
        return config.with_head("classes", labels)
    if config.bidirectional:
        raise DataError(
            f"{path}: {given['architectures'][0]} has one output, which is a regression; only "
            "classifiers of two classes or more can be imported"
        )
    return config.with_score_head()


def find_family(config: DecoderConfig, brought: Mapping[str, Any]) -> Family:
    """Return the family that a model of `config` is exported as.

    That is the family of the config.json that the model was imported with, `brought`, if it still
    fits, and otherwise the first that can express the model. Raises DataError if none can.
    """
    known = [family for family in FAMILIES if family.model_type == brought.get("model_type")]
    for family in (*known, *FAMILIES):
        if family.holds(config):
            return family
    raise DataError(
        "no supported architecture of Transformers can express this model, so it cannot be "
        f"exported; supported: {NAMES}; `trainrig check` prints the settings of the model"
    )
