"""Every family compared with random models of Transformers: logits, files, an optimizer's step."""

import json

import pytest
import torch
from support import brought, peer_models

from trainrig.errors import DataError
from trainrig.models.decoder import Decoder, DecoderConfig, initialise
from trainrig.models.families import FAMILIES, find_family, read_config, strip_config
from trainrig.models.families.mapping import HubConfig
from trainrig.models.families.rope_tables import read_rope
from trainrig.models.generation import Request, generate, generate_batch
from trainrig.models.huggingface import HubFolder, open_folder, write_folder
from trainrig.models.layer_parts import compute_rotation_rates
from trainrig.models.token_sampling import Sampling
from trainrig.tokens.special_tokens import TokenizerFiles

NAMES = list(peer_models.FAMILIES)
IDS = torch.randint(331, (3, 20), generator=torch.Generator().manual_seed(1))
BOUND = 1e-5


@pytest.fixture(scope="module", params=NAMES)
def pair(request, transformers, tmp_path_factory):
    """Return Transformers' model and trainrig's, read from the same folder."""
    folder = tmp_path_factory.mktemp("theirs")
    theirs = peer_models.make(transformers, request.param, folder)
    brought.write("llama3", folder)
    return theirs, *peer_models.open_ours(folder), folder


@torch.no_grad()
def test_logits_are_transformers(pair):
    theirs, ours, *_ = pair
    expected = theirs(IDS).logits
    assert expected.std() > 0.05
    assert (expected - ours(IDS).logits).abs().max() <= BOUND


@torch.no_grad()
def test_logits_of_padded_packed_and_cached_inputs_are_transformers(pair):
    """Compare prompts padded on the left, then a second document, then one more token by caches."""
    from trainrig.models.attention import KeyValueCache

    theirs, ours, *_ = pair
    pads = torch.tensor([0, 3, 11])
    places = torch.arange(20)[None, :] - pads[:, None]
    mask = (places >= 0).long()
    expected = theirs(IDS, attention_mask=mask, position_ids=places.clamp(min=0)).logits
    caches = [KeyValueCache() for _ in ours.layers]
    parts = [
        ours(
            IDS[:, begin:end],
            caches,
            positions_BT=places.clamp(min=0)[:, begin:end],
            documents_BS=mask[:, :end],
        ).logits
        for begin, end in ((0, 14), (14, 19), (19, 20))
    ]
    real = mask.bool()
    assert (expected - torch.cat(parts, dim=1))[real].abs().max() <= BOUND
    alone = [theirs(IDS[:1, :8]).logits, theirs(IDS[:1, 8:]).logits]
    packed = torch.cat([torch.arange(8), torch.arange(12)])[None, :]
    both = ours(IDS[:1], positions_BT=packed).logits
    assert (torch.cat(alone, dim=1) - both).abs().max() <= BOUND


def test_greedy_texts_of_a_batch_are_transformers(pair):
    """Compare prompts of different lengths, some longer than the window."""
    theirs, ours, *_ = pair
    prompts = [IDS[0, :3], IDS[1, :12], IDS[2, :7]]
    greedy = Sampling(temperature=0.0, maximum_tokens=14)
    requests = [Request(tuple(prompt.tolist()), greedy) for prompt in prompts]
    said = generate_batch(ours, requests, stop=())
    width = max(map(len, prompts))
    ids = torch.stack([torch.cat([torch.zeros(width - len(p)).long(), p]) for p in prompts])
    mask = torch.stack(
        [torch.cat([torch.zeros(width - len(p)), torch.ones(len(p))]) for p in prompts]
    )
    expected = theirs.generate(
        ids, attention_mask=mask.long(), do_sample=False, max_new_tokens=14, eos_token_id=None,
        pad_token_id=0,
    )[:, width:]  # fmt: skip
    assert [list(completion.ids) for completion in said] == expected.tolist()
    alone = [generate(ours, request.prompt, greedy, stop=()) for request in requests]
    assert alone == said


def test_after_a_step_of_training_the_folder_is_read_by_transformers(pair, transformers, tmp_path):
    theirs, ours, hub, folder = pair
    trained = peer_models.train_a_step(ours, hub, IDS)
    state = trained.state_dict()
    out = tmp_path / "out"
    write_folder(str(out), hub.config, state.__getitem__, hub.files, HubFolder(file_bytes=20_000))
    assert len(list(out.glob("*.safetensors"))) > 1
    back = peer_models.reload(transformers.AutoModelForCausalLM, out)
    with torch.no_grad():
        assert (back(IDS).logits - trained(IDS).logits).abs().max() <= BOUND
        assert (back(IDS).logits - theirs(IDS).logits).abs().max() > 100 * BOUND
    # All files but the weights are copied byte for byte.
    for name in ("config.json", "tokenizer.json", *hub.files.beside):
        assert (out / name).read_bytes() == (folder / name).read_bytes(), name
    again = open_folder(str(out))
    assert all(torch.equal(again.tensors[name].read(), state[name]) for name in state)


def test_settings_that_were_written_are_read_as_they_were(pair):
    *_, hub, _ = pair
    family = find_family(hub.config, json.loads(hub.files.beside["config.json"]))
    written = family.write(hub.config) | {"model_type": family.model_type}
    assert strip_config(read_config(written, "config.json")[1]) == strip_config(hub.config)


@pytest.mark.soak
@torch.no_grad()
def test_differences_from_transformers_by_family(transformers, tmp_path, write_result):
    """Measure the largest difference of logits of every model, imported and exported again."""
    found = {}
    for name in NAMES:
        folder = tmp_path / name
        theirs = peer_models.make(transformers, name, folder)
        brought.write("llama3", folder)
        hub = open_folder(str(folder))
        ours = Decoder(hub.config)
        ours.load_state_dict(hub.read_state())
        expected = theirs(IDS).logits
        out = tmp_path / f"{name}-back"
        write_folder(str(out), hub.config, ours.state_dict().__getitem__, hub.files)
        back = transformers.AutoModelForCausalLM.from_pretrained(out, attn_implementation="eager")
        found[name] = {
            "model_type": theirs.config.model_type,
            "spread": expected.std().item(),
            "imported": (expected - ours(IDS).logits).abs().max().item(),
            "exported": (expected - back(IDS).logits).abs().max().item(),
        }
    write_result("families.json", {"transformers": transformers.__version__, "models": found})
    assert max(model["imported"] for model in found.values()) <= BOUND
    assert max(model["exported"] for model in found.values()) <= BOUND


SMALL = {"layers": 2, "channels": 32, "heads": 4, "vocabulary": 320, "positions": 32}
OWN = {
    "llama": {},
    "mistral": {"attention": {"window": {"size": 9}}},
    "qwen2": {"biases": {"qkv": True}},
    "qwen3": {"attention": {"qk_norm": "head"}},
    "olmo2": {"attention": {"qk_norm": "projection"}, "block": {"kind": "OutputNorm"}},
    "gpt2": {
        "position_embedding": {"kind": "LearnedPositions"},
        "norm": {"kind": "LayerNorm"},
        "feedforward": {"kind": "GELU"},
        "biases": {"qkv": True, "output": True, "feedforward": True},
    },
}


@pytest.mark.parametrize("name", OWN)
def test_a_trainrig_model_finds_its_family(name, transformers, tmp_path):
    config = DecoderConfig.model_validate(SMALL | OWN[name] | {"initial_std": 0.3})
    model = Decoder(config)
    initialise(model, 3)
    files = TokenizerFiles(brought.brought("gpt2").tokenizer)
    family = write_folder(str(tmp_path), config, model.state_dict().__getitem__, files)
    assert family.model_type == name
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path)
    with torch.no_grad():
        ids = IDS % 300
        assert (theirs(ids).logits - model(ids).logits).abs().max() <= BOUND
    assert transformers.AutoTokenizer.from_pretrained(tmp_path).eos_token == "<|endoftext|>"


def test_a_model_that_transformers_has_not_cannot_be_exported():
    config = DecoderConfig.model_validate(SMALL | {"position_embedding": {"kind": "Alibi"}})
    with pytest.raises(DataError, match="no supported architecture"):
        find_family(config, {})


REFUSED = {
    "auto_map": ({"auto_map": {"AutoModel": "x.Y"}}, "needs custom code"),
    "quantised": ({"quantization_config": {"quant_method": "gptq"}}, r"quantised \(gptq\)"),
    "unknown": ({"model_type": "mamba"}, "model_type 'mamba' .*supported: llama, mistral"),
    "missing part": (
        {"model_type": "qwen3_next"},
        "'qwen3_next' needs Gated DeltaNet layers, which trainrig lacks; supported: llama",
    ),
    "other code": ({"auto_map": {"AutoConfig": "x.DeepseekConfig"}}, "needs custom code"),
    "images": (
        {"model_type": "gemma3", "text_config": {}},
        "'gemma3' reads more than text; save its language model alone .*gemma3_text",
    ),
    "classifier": ({"architectures": ["LlamaForTokenClassification"]}, "TokenClassification"),
    "rope": ({"rope_parameters": {"rope_type": "longrope"}}, "'longrope' cannot be imported"),
    "factor": ({"rope_parameters": {"rope_type": "linear"}}, "type 'linear' lack the key 'factor'"),
    "two types": ({"rope_scaling": {"type": "linear"}}, "types of rotary .*: default and linear"),
    "theta": ({"rope_theta": 5.0}, "rope_theta is 5.0, but 10000.0 in rope_parameters"),
    "activation": ({"hidden_act": "relu"}, "hidden_act is 'relu', which trainrig does not support"),
    "heads": ({"num_key_value_heads": 3}, r"heads \(4\) must be a multiple of kv_heads \(3\)"),
    "no size": ({"hidden_size": None}, "no key 'hidden_size'"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_config_that_we_would_compute_otherwise_is_refused(case):
    changes, message = REFUSED[case]
    given = {
        "model_type": "llama", "hidden_size": 32, "intermediate_size": 48, "vocab_size": 331,
        "num_hidden_layers": 2, "num_attention_heads": 4,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e4},
    }  # fmt: skip
    assert read_config(given, "x/config.json")[0] is FAMILIES[0]
    with pytest.raises(DataError, match=message) as refused:
        read_config(given | changes, "x/config.json")
    assert str(refused.value).startswith("x/config.json: ") and "\n" not in str(refused.value)


def test_custom_code_that_transformers_has_adopted_is_not_needed(transformers):
    """Hugging Face's DeepSeek and Phi models still name the code of their first release."""
    given = transformers.DeepseekV3Config(**peer_models.choose_settings("moonlight")).to_dict()
    classes = {"AutoConfig": "configuration_deepseek.DeepseekV3Config",
               "AutoModelForCausalLM": "modeling_deepseek.DeepseekV3ForCausalLM",
               "AutoTokenizer": ["tokenization_moonlight.TikTokenTokenizer", None]}  # fmt: skip
    family, config = read_config(given | {"auto_map": classes}, "config.json")
    assert family.model_type == "deepseek_v3"
    assert config == read_config(given, "config.json")[1]


FOREIGN_CODE = {
    "longer name": ("moonlight", {"AutoModel": "modeling.DeepseekV3ModelWithMemory"}),
    "one of two": (
        "moonlight",
        {"AutoConfig": "x.DeepseekV3Config", "AutoModelForCausalLM": "x.DeepseekV4ForCausalLM"},
    ),
    "unknown kind": ("moonlight", {"AutoBackbone": "x.Backbone"}),
    "other family": ("moonlight", {"AutoModelForCausalLM": "x.DeepseekV2ForCausalLM"}),
    "not a name": ("moonlight", {"AutoModelForCausalLM": ["x.DeepseekV3ForCausalLM"]}),
    # Llama's classes were never custom code, so code with their names computes something else.
    "not adopted": ("llama2", {"AutoModelForCausalLM": "modeling_longer.LlamaForCausalLM"}),
}


@pytest.mark.parametrize("case", FOREIGN_CODE)
def test_custom_code_with_other_or_copied_names_is_refused(case, transformers):
    name, classes = FOREIGN_CODE[case]
    kind, _ = peer_models.FAMILIES[name]
    given = getattr(transformers, f"{kind}Config")(**peer_models.choose_settings(name)).to_dict()
    with pytest.raises(DataError, match=r"^config.json: needs custom code") as refused:
        read_config(given | {"auto_map": classes}, "config.json")
    assert "\n" not in str(refused.value)


def test_an_export_names_no_custom_code_and_keeps_the_balance_bias_in_float32(
    transformers, tmp_path
):
    peer_models.make(transformers, "moonlight", tmp_path / "theirs")
    brought.write("llama3", tmp_path / "theirs")
    path = tmp_path / "theirs" / "config.json"
    given = json.loads(path.read_text())
    path.write_text(json.dumps(given | {"auto_map": {"AutoConfig": "x.DeepseekV3Config"}}))
    hub = open_folder(str(tmp_path / "theirs"))
    state = hub.read_state()
    bias = "layers.1.feedforward.balance_bias"
    state[bias] += 7  # bfloat16 is coarse here
    out = tmp_path / "out"
    for _ in range(2):  # the second time, what is written is found to be the same
        write_folder(str(out), hub.config, state.__getitem__, hub.files,
                     HubFolder(dtype="bfloat16"), keep=True)  # fmt: skip
    assert "auto_map" not in json.loads((out / "config.json").read_text())
    again = open_folder(str(out)).read_state()
    assert torch.equal(again[bias], state[bias])
    assert all((v.dtype == torch.float32) == k.endswith("balance_bias") for k, v in again.items())
    back = transformers.AutoModelForCausalLM.from_pretrained(out, dtype="auto")
    assert back.dtype == torch.bfloat16
    assert torch.equal(back.model.layers[1].mlp.gate.e_score_correction_bias, state[bias])


def test_older_and_newer_tables_of_an_export_scale_latent_attention_alike(transformers):
    """Readers other than Transformers 5 know only `rope_scaling`."""
    given = transformers.DeepseekV3Config(**peer_models.choose_settings("deepseek_v3")).to_dict()
    family, config = read_config(given, "config.json")
    written = family.write(config)
    assert written["rope_scaling"]["mscale_all_dim"] == 0.7
    old = {key: value for key, value in written.items() if key != "rope_parameters"}
    assert strip_config(family.read(HubConfig(old, "config.json"))) == strip_config(config)


def test_weights_of_chosen_experts_are_not_normalised_if_the_key_is_null(transformers):
    for name in ("deepseek_v3", "glm4_moe"):
        kind, _ = peer_models.FAMILIES[name]
        whole = getattr(transformers, f"{kind}Config")(**peer_models.choose_settings(name))
        given = whole.to_dict() | {"norm_topk_prob": None}
        assert not read_config(given, "config.json")[1].feedforward.normalise


REFUSED_VALUES = {
    "deepseek_v3": [
        ({"rope_interleave": False}, "rope_interleave is False, which trainrig does not support"),
        ({"num_key_value_heads": 2}, "invalid sizes: kv_heads .2. differs from heads .4."),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor is 0.5, but qk_rope_head_dim"),
        ({"first_k_dense_replace": 3}, "dense_layers .3. leaves no experts in the 3 layers"),
        ({"n_shared_experts": 0}, "n_shared_experts is 0; it must be a number above 0"),
        ({"scoring_func": "softmax"}, "scoring_func is 'softmax', which trainrig does not"),
        ({"topk_method": "greedy"}, "topk_method is 'greedy', which trainrig does not"),
        ({"moe_layer_freq": 2}, "moe_layer_freq is 2, which trainrig does not support"),
    ],
    "deepseek_v2": [
        ({"topk_method": "noaux_tc"}, "topk_method is 'noaux_tc', which trainrig does not"),
        ({"norm_topk_prob": True}, "norm_topk_prob is True, which trainrig does not support"),
        ({"mlp_bias": True}, "mlp_bias is True, which trainrig does not support"),
        ({"scoring_func": "sigmoid"}, "scoring_func is 'sigmoid', which trainrig does not"),
    ],
    "qwen2_moe": [
        ({"shared_expert_intermediate_size": 50}, "50. is not a multiple of moe_intermediate"),
        ({"mlp_only_layers": [1]}, r"mlp_only_layers is \[1\]; .* are the first ones"),
        ({"decoder_sparse_step": 2}, "decoder_sparse_step is 2, which trainrig does not support"),
    ],
    "gpt_oss": [
        ({"quantization_config": {"quant_method": "fp8"}}, r"quantised \(fp8\)"),
        ({"swiglu_limit": 0}, "invalid limit: .*greater than 0"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor is 0.5, but gpt-oss rotates"),
    ],
    "glm4_moe": [
        ({"scoring_func": "softmax"}, "scoring_func is 'softmax', which trainrig does not"),
        ({"topk_group": 5}, "groups.active .5. must be at most groups.count"),
    ],
}


@pytest.mark.parametrize(
    ("name", "change", "said"),
    [(name, *case) for name, cases in REFUSED_VALUES.items() for case in cases],
)
def test_a_mixture_that_we_would_compute_otherwise_is_refused(name, change, said, transformers):
    kind, _ = peer_models.FAMILIES[name]
    given = getattr(transformers, f"{kind}Config")(**peer_models.choose_settings(name)).to_dict()
    with pytest.raises(DataError, match=f"^config.json: .*{said}") as refused:
        read_config(given | change, "config.json")
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("attention_factor", [None, 0.7, 1.0])
@pytest.mark.parametrize(
    ("mscale", "mscale_all_dim"), [(None, None), (1.0, None), (None, 0.8), (1.0, 1.0), (0.7, 1.3)]
)
@pytest.mark.parametrize("factor", [1.0, 4.0, None])
def test_yarn_is_scaled_as_transformers_scales_it(
    factor, mscale, mscale_all_dim, attention_factor, transformers
):
    """Prefer an explicit factor to DeepSeek's multiples, as Transformers does."""
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    given = {"attention_factor": attention_factor, "mscale": mscale}
    given |= {"mscale_all_dim": mscale_all_dim}
    table = (
        peer_models.YARN | {"factor": factor} | {k: v for k, v in given.items() if v is not None}
    )
    theirs = transformers.LlamaConfig(**peer_models.SMALL, rope_parameters=table)
    rates, expected = ROPE_INIT_FUNCTIONS["yarn"](theirs, torch.device("cpu"))
    rope = read_rope(HubConfig(theirs.to_dict() | {"rope_parameters": table}, "config.json"))
    found, scale = compute_rotation_rates(rope, 8, torch.device("cpu"))
    torch.testing.assert_close(found, rates)
    assert scale == pytest.approx(expected, rel=1e-12)


def test_dropped_dropouts_of_an_imported_model_are_reported(tmp_path, capsys, transformers):
    """GPT-2 has three dropouts of 0.1; a Llama without any is imported without a message."""
    from trainrig.posttrain.huggingface.huggingface_verbs import import_folder

    for name, said in (("gpt2", True), ("llama2", False)):
        peer_models.make(transformers, name, tmp_path / name)
        brought.write("llama3", tmp_path / name)
        path = tmp_path / name / "config.json"
        shares = {"attn_pdrop": 0.1, "embd_pdrop": 0.2, "attention_dropout": 0.0}
        given = json.loads(path.read_text()) | (shares if said else {"attention_dropout": 0.0})
        path.write_text(json.dumps(given))
        import_folder(str(tmp_path / name), str(tmp_path / f"{name}-run"))
        found = capsys.readouterr().err
        assert ("attn_pdrop = 0.1, embd_pdrop = 0.2" in found) == said
        assert ("drop" in found) == said
