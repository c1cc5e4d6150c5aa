"""Keys of config.json that are missing or null mean what they mean to Transformers."""

import json

import pytest
import torch
from support import peer_models

from trainrig.errors import DataError
from trainrig.models.families import read_config, strip_config
from trainrig.models.layer_parts import compute_rotation_rates

# One model for each class of settings; the others of `peer_models` differ in values only.
ONE_OF_EACH = {kind: name for name, (kind, _) in reversed(peer_models.FAMILIES.items())}
ABOUT = ("model_type", "architectures", "transformers_version", "dtype")


@pytest.fixture(scope="module", params=ONE_OF_EACH)
def family(request, transformers):
    """Return Transformers' class of settings, a whole config.json, and the architecture."""
    kind = request.param
    config_class = getattr(transformers, f"{kind}Config")
    whole = config_class(**peer_models.choose_settings(ONE_OF_EACH[kind])).to_dict()
    return config_class, whole, peer_models.ARCHITECTURES.get(kind, f"{kind}ForCausalLM")


def describe(given):
    """Return the settings that trainrig reads, or the message with which it refuses them."""
    try:
        return strip_config(read_config(given, "config.json")[1])
    except DataError as error:
        return str(error)


def test_missing_and_null_keys_mean_what_transformers_assumes(family):
    config_class, whole, architecture = family
    compared = 0
    for key in whole.keys() - set(ABOUT):
        rest = {name: value for name, value in whole.items() if name != key}
        for given in (rest, {**rest, key: None}):
            named = {name: value for name, value in given.items() if name not in ABOUT}
            try:
                filled = config_class(**named).to_dict()
            except Exception:  # Transformers refuses it, in many ways
                continue
            found = describe({**given, "model_type": whole["model_type"]})
            if isinstance(found, str) and "no key" in found:
                continue  # a size that trainrig doesn't guess
            expected = describe({**filled, "architectures": [architecture]})
            assert found == expected, (key, given.get(key, "missing"))
            compared += 1
    assert compared > 20


LONG = {"short_factor": [1.0, 1.1, 1.2, 1.3], "long_factor": [1.0, 2.0, 3.0, 4.0]}
ROTARY = {
    "default": {},
    "linear": {"factor": 3.0},
    "dynamic": {"factor": 2.0},
    "llama3": {
        key: value
        for key, value in peer_models.LLAMA_3_1.items()
        if key.startswith(("low", "high"))
    }
    | {"factor": 8.0, "original_max_position_embeddings": 16},
    "yarn": {"factor": 4.0, "original_max_position_embeddings": 16},
    "longrope": {**LONG, "factor": 4.0, "original_max_position_embeddings": 16},
}


@pytest.mark.parametrize("kind", ROTARY)
@pytest.mark.parametrize("old", [False, True], ids=["rope_parameters", "rope_scaling"])
def test_rotary_scaling_is_that_of_transformers_or_refused(family, kind, old, transformers):
    config_class, whole, architecture = family
    if whole["model_type"] in ("gpt2", "gemma3_text", "olmo3"):
        pytest.skip("it has no rotary positions, or a table for each kind of layer")
    given = {name: value for name, value in whole.items() if name != "rope_parameters"}
    share = (whole["rope_parameters"] or {}).get("partial_rotary_factor", 1.0)
    table = {"rope_type": kind, **ROTARY[kind]}
    if old:
        given |= {"rope_theta": 3e4, "rope_scaling": table}
    else:
        given["rope_parameters"] = {**table, "rope_theta": 3e4}
    given |= {"partial_rotary_factor": share, "rotary_pct": share, "rotary_emb_base": 3e4}
    named = json.loads(json.dumps({n: v for n, v in given.items() if n not in ABOUT}))
    found = describe({**given, "architectures": [architecture]})
    if isinstance(found, str):
        assert ("can" in found and "supported" in found) or "does not support" in found
        return
    theirs = config_class(**named)
    theirs._attn_implementation = "eager"
    model = getattr(transformers, architecture)(theirs).base_model
    rope = read_config({**given, "architectures": [architecture]}, "config.json")[1]
    width = rope.position_embedding.count_rotated_channels(rope.rotary_channels)
    rates, factor = compute_rotation_rates(rope.position_embedding, width, torch.device("cpu"))
    torch.testing.assert_close(rates, model.rotary_emb.inv_freq)
    assert factor == pytest.approx(model.rotary_emb.attention_scaling, rel=1e-12)


# Keys that Transformers reads under these older names.
OLDER = {
    *("rope_scaling", "rope_theta", "rotary_pct", "partial_rotary_factor", "layer_types"),
    *("sliding_window", "sliding_window_pattern", "no_rope_layer_interval", "no_rope_layers"),
    *("id2label", "quantization_config"),
}
BAD_VALUES = (0, -1, 0.5, 1e400, "x", [], [1], ["x", 1], {}, {"x": 1}, True)


def test_a_bad_value_of_any_key_is_refused_in_one_line_that_names_the_file(family):
    _, whole, architecture = family
    whole = {**whole, "architectures": [architecture]}
    refused = 0
    for key in whole.keys() | OLDER:
        for left_out in ((), ("layer_types", "no_rope_layers")):
            rest = {name: value for name, value in whole.items() if name not in left_out}
            for value in BAD_VALUES:
                try:
                    read_config({**rest, key: value}, "folder/config.json")
                except DataError as error:
                    assert str(error).startswith("folder/config.json: "), key
                    assert "\n" not in str(error)
                    refused += 1
    assert refused > 40


@pytest.mark.parametrize(
    ("name", "bad", "said"),
    [
        ("pythia", {"rotary_pct": 0}, "invalid rotated_share: .*greater than 0"),
        ("stablelm", {"partial_rotary_factor": 0}, "invalid rotated_share: .*greater than 0"),
        ("granite", {"attention_multiplier": 0}, "attention_multiplier is 0; .*above 0"),
        ("granite", {"logits_scaling": 0}, "logits_scaling is 0; .*above 0"),
        ("granite", {"rope_theta": 0}, "invalid theta: .*greater than 0"),
        ("granite", {"rope_scaling": [1]}, r"rope_scaling is \[1\]; it must be a table"),
        ("smollm3", {"no_rope_layer_interval": 0}, "no_rope_layer_interval is 0; .*above 0"),
        ("cohere2", {"sliding_window_pattern": 0}, "sliding_window_pattern is 0; .*above 0"),
        ("exaone4", {"sliding_window_pattern": 0}, "sliding_window_pattern is 0; .*above 0"),
        ("cohere2", {"sliding_window": 0}, "sliding_window is 0; .*above 0"),
        ("ministral", {"sliding_window": 0}, "sliding_window is 0; .*above 0"),
        ("mistral", {"sliding_window": 0}, "sliding_window is 0; .*above 0"),
    ],
)
def test_a_number_that_must_be_above_zero_is_named(name, bad, said, transformers):
    kind, _ = peer_models.FAMILIES[name]
    whole = getattr(transformers, f"{kind}Config")(**peer_models.choose_settings(name)).to_dict()
    kept_out = ("layer_types", "no_rope_layers", "rope_parameters", "architectures")
    given = {key: value for key, value in whole.items() if key not in kept_out}
    with pytest.raises(DataError, match=f"^config.json: {said}"):
        read_config({**given, **bad}, "config.json")
