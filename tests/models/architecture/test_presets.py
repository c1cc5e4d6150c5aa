"""Each preset has as many parameters as the model that it is named for, and can be changed."""

import pytest
import torch

from trainrig import config as run_files
from trainrig.errors import ConfigError
from trainrig.estimate.step_memory import estimate_cache_memory
from trainrig.manifest.stage_records import digest
from trainrig.models import find_model_class
from trainrig.models.architecture.attention_settings import GatedAttention
from trainrig.models.architecture.decoder_config import DecoderConfig, count_parameters
from trainrig.models.architecture.presets import PRESETS
from trainrig.models.encoder import build_model

# Published parameter counts, or the counts of Transformers' model of the published config.json:
# all parameters, and the ones active for one token.
PARAMETERS = {
    "gpt-2-1.5b": (1_557_611_200,),
    "gpt-3-175b": (174_604_259_328,),
    "llama-2-7b": (6_738_415_616,),
    "llama-2-70b": (68_976_648_192,),
    "llama-3-8b": (8_030_261_248,),
    "llama-3-70b": (70_553_706_496,),
    "llama-3-405b": (405_853_388_800,),
    "llama-3.1-8b": (8_030_261_248,),
    "llama-3.1-70b": (70_553_706_496,),
    "llama-3.2-1b": (1_235_814_400,),
    "llama-3.2-3b": (3_212_749_824,),
    "llama-3.3-70b": (70_553_706_496,),
    "mistral-7b": (7_241_732_096,),
    "mixtral-8x7b": (46_702_792_704, 12_879_925_248),
    "qwen-2.5-72b": (72_706_203_648,),
    "qwen-3-0.6b": (596_049_920,),
    "qwen-3-1.7b": (1_720_574_976,),
    "qwen-3-4b": (4_022_468_096,),
    "qwen-3-8b": (8_190_735_360,),
    "qwen-3-14b": (14_768_307_200,),
    "qwen-3-32b": (32_762_123_264,),
    "qwen-3-30b-a3b": (30_532_122_624, 3_353_032_704),
    "qwen-3-235b-a22b": (235_093_634_560, 22_190_763_520),
    "gemma-2-2b": (2_614_341_888,),
    "gemma-2-9b": (9_241_705_984,),
    "gemma-2-27b": (27_227_128_320,),
    "gemma-3-1b": (999_885_952,),
    "gemma-3-4b": (3_880_263_168,),
    "gemma-3-12b": (11_766_034_176,),
    "gemma-3-27b": (27_009_346_304,),
    "olmo-2-1b": (1_484_916_736,),
    "olmo-2-7b": (7_298_617_344,),
    "olmo-2-13b": (13_716_198_400,),
    "olmo-2-32b": (32_234_279_936,),
    "smollm-2-135m": (134_515_008,),
    "smollm-2-360m": (361_821_120,),
    "smollm-2-1.7b": (1_711_376_384,),
    "bert-base": (109_514_298,),
    "bert-large": (335_174_458,),
    "roberta-base": (124_697_433,),
    "roberta-large": (355_412_057,),
    # These count the generator that each is trained with, less the embedding that the two share.
    "electra-small": (14_196_219,),
    "electra-base": (119_386_427,),
    "electra-large": (354_655_291,),
    "modernbert-base": (149_655_232,),
    "modernbert-large": (395_881_664,),
}
SCALES = {"1m": 1e6, "2m": 2e6, "5m": 5e6, "10m": 1e7, "20m": 2e7, "50m": 5e7, "100m": 1e8}
SCALES |= {"200m": 2e8, "500m": 5e8, "1b": 1e9}


def settings(**keys) -> DecoderConfig:
    return run_files.build(find_model_class(keys), keys, "run.toml")


@pytest.mark.parametrize("name", PARAMETERS)
def test_a_preset_has_exactly_the_parameters_of_its_model(name):
    count = count_parameters(settings(preset=name))
    assert (count.total, count.active) == (PARAMETERS[name][0], PARAMETERS[name][-1])


def test_the_ladders_sizes_grow_and_every_preset_is_checked():
    ladder = {name for name in PRESETS if name.startswith("ladder-")}
    assert set(PRESETS) == set(PARAMETERS) | ladder
    assert ladder == {f"ladder-{scale}" for scale in SCALES}
    for scale, wanted in SCALES.items():
        layers = count_parameters(settings(preset=f"ladder-{scale}", vocabulary=64)).layers
        assert layers == pytest.approx(wanted, rel=0.12)


@pytest.mark.parametrize(
    "name",
    [
        "gpt-2-1.5b",
        "mixtral-8x7b",
        "gemma-3-1b",
        "olmo-2-1b",
        "roberta-base",
        "modernbert-base",
        "electra-small",
    ],
)
def test_the_built_model_has_the_counted_parameters(name):
    config = settings(preset=name)
    with torch.device("meta"):
        built = sum(p.numel() for p in build_model(config).parameters())
    assert built == count_parameters(config).total


MADE_BY_TRANSFORMERS = {
    "llama-3.2-3b": ("llama", {}),
    "qwen-2.5-72b": ("qwen2", {}),
    "qwen-3-14b": ("qwen3", {}),
    "qwen-3-30b-a3b": (
        "qwen3_moe",
        {"moe_intermediate_size": 768, "num_experts": 128, "num_experts_per_tok": 8},
    ),
    "gemma-2-9b": ("gemma2", {}),
    "gemma-3-27b": ("gemma3_text", {}),
    "olmo-2-13b": ("olmo2", {}),
    "mixtral-8x7b": ("mixtral", {}),
    "bert-large": ("bert", {}),
    "roberta-base": ("roberta", {"type_vocab_size": 1, "max_position_embeddings": 514}),
    "modernbert-base": ("modernbert", {}),
}


@pytest.mark.parametrize("name", MADE_BY_TRANSFORMERS)
def test_transformers_model_has_equally_many_parameters(name):
    transformers = pytest.importorskip("transformers")
    kind, more = MADE_BY_TRANSFORMERS[name]
    config = settings(preset=name)
    shape = config.shape
    theirs = transformers.AutoConfig.for_model(
        kind,
        vocab_size=shape.vocabulary,
        hidden_size=shape.channels,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        head_dim=shape.head_channels,
        intermediate_size=shape.feedforward_channels,
        tie_word_embeddings=config.tie_embeddings,
        **more,
    )
    with torch.device("meta"):
        if config.bidirectional:
            built = transformers.AutoModelForMaskedLM.from_config(theirs)
        else:
            built = transformers.AutoModelForCausalLM.from_config(theirs)
    assert sum(p.numel() for p in built.parameters()) == count_parameters(config).total


def test_keys_next_to_a_preset_override_it():
    changed = settings(preset="mistral-7b", layers=2, attention={"window": {"size": 128}})
    whole = settings(preset="mistral-7b")
    assert (changed.layers, changed.channels, changed.attention.window.size) == (2, 4096, 128)
    assert changed.norm == whole.norm and whole.attention.window.size == 4096


def test_another_kind_of_attention_keeps_the_presets_settings():
    changed = settings(preset="qwen-3-0.6b", attention={"kind": "GatedAttention"})
    assert changed.attention == GatedAttention(qk_norm="head")


def test_a_table_of_another_kind_takes_the_place_of_the_presets():
    changed = settings(preset="mixtral-8x7b", feedforward={"kind": "GELU"})
    assert changed.feedforward.kind == "GELU"
    more = settings(preset="mixtral-8x7b", feedforward={"active": 3})
    assert (more.feedforward.experts, more.feedforward.active) == (8, 3)


def test_a_resolved_preset_is_read_back_unchanged():
    config = settings(preset="gemma-2-2b")
    assert config.preset is None
    assert settings(**config.model_dump(mode="json")) == config


def test_a_missing_preset_is_refused_with_the_nearest():
    with pytest.raises(ConfigError, match=r"no preset 'llama-3-7b'.*'llama-3-70b'"):
        settings(preset="llama-3-7b")


def test_a_cache_holds_no_more_of_a_local_layer_than_its_window():
    # arXiv:2407.21783's 8B: 32 layers, 8 heads of 128 channels, 2 bytes: 128 KiB a token.
    assert estimate_cache_memory(settings(preset="llama-3-8b"), 8192) == 8192 * 131_072
    config = settings(preset="gemma-3-1b")
    # Local and far layers, of 26.
    local = 22
    far = 4
    assert estimate_cache_memory(config, 4096) == 2 * 2 * 256 * (local * 512 + far * 4096)


@pytest.mark.parametrize(
    ("preset", "identity"),
    [
        ("llama-3.1-8b", "543ce42e642380177bcb123a9715d97fe919910e734b6e1e202beb9998b9c676"),
        ("gemma-3-1b", "e51a7f995164446378331934a79c9e9f1be59d2bd5bbff79b845c9c9593a6755"),
    ],
)
def test_the_identity_of_a_model_is_that_of_older_versions(preset, identity):
    """A new field that changes these sums would refuse older runs: mark it ADDED_LATER."""
    model = run_files.build(DecoderConfig, {"preset": preset}, "run.toml")
    assert digest(run_files.extract_identity(model)) == identity
