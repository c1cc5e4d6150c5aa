"""Random models of every family, made and saved by Transformers."""

import json
from pathlib import Path
from typing import Any

import torch

from support import brought
from trainrig.models.encoder import build_model
from trainrig.models.huggingface import HubModel, open_folder

# The settings that define each family, at a small size. `SMALL` has the sizes.
SMALL: dict[str, Any] = {
    "vocab_size": 331, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8,
    "max_position_embeddings": 64, "initializer_range": 0.2, "tie_word_embeddings": False,
}  # fmt: skip
LLAMA_3_1 = {
    "rope_type": "llama3", "rope_theta": 5e5, "factor": 8.0, "low_freq_factor": 1.0,
    "high_freq_factor": 4.0, "original_max_position_embeddings": 16,
}  # fmt: skip
YARN = {
    "rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0,
    "original_max_position_embeddings": 16,
}  # fmt: skip
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama2": ("Llama", {"num_key_value_heads": 4}),
    "llama3.1": ("Llama", {"rope_parameters": LLAMA_3_1}),
    "llama-linear": (
        "Llama", {"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0}},
    ),
    "smollm": ("Llama", {"tie_word_embeddings": True, "attention_bias": True, "mlp_bias": True}),
    "mistral": ("Mistral", {"sliding_window": 7}),
    "qwen2": ("Qwen2", {"rope_parameters": YARN}),
    "qwen2-window": (
        "Qwen2", {"use_sliding_window": True, "sliding_window": 6, "max_window_layers": 1},
    ),
    "qwen3": ("Qwen3", {"head_dim": 16, "tie_word_embeddings": True}),
    "mixtral": (
        "Mixtral", {"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 9},
    ),
    "qwen3_moe": (
        "Qwen3Moe",
        {
            "num_experts": 5, "num_experts_per_tok": 2, "moe_intermediate_size": 24,
            "norm_topk_prob": True,
        },
    ),
    "olmo2": ("Olmo2", {}),
    "gemma2": (
        "Gemma2",
        {
            "tie_word_embeddings": True, "sliding_window": 5, "query_pre_attn_scalar": 12,
            "attn_logit_softcapping": 5.0, "final_logit_softcapping": 9.0,
        },
    ),
    "gemma3": (
        "Gemma3Text",
        {
            "tie_word_embeddings": True, "sliding_window": 5, "query_pre_attn_scalar": 8,
            "layer_types": ["sliding_attention", "sliding_attention", "full_attention"],
        },
    ),
    "gpt2": (
        "GPT2",
        {
            "n_embd": 32, "n_layer": 3, "n_head": 4, "n_positions": 64, "tie_word_embeddings": True,
        },
    ),
    "gpt_neox": ("GPTNeoX", {"hidden_act": "gelu"}),
    "pythia": ("GPTNeoX", {"rotary_pct": 0.5, "rotary_emb_base": 5e3, "attention_bias": False}),
    "neox-serial": (
        "GPTNeoX",
        {
            "use_parallel_residual": False, "hidden_act": "gelu_new", "tie_word_embeddings": True,
            "rope_parameters": {"rope_type": "default", "rope_theta": 2e4},
        },
    ),
    "starcoder2": ("Starcoder2", {"sliding_window": 7}),
    "starcoder2-plain": ("Starcoder2", {"use_bias": False, "tie_word_embeddings": True}),
    "stablelm": ("StableLm", {"use_qkv_bias": True}),
    "stablelm-parallel": (
        "StableLm", {"use_parallel_residual": True, "partial_rotary_factor": 0.5},
    ),
    "granite": (
        "Granite",
        {
            "attention_multiplier": 0.2, "embedding_multiplier": 3.0, "logits_scaling": 1.7,
            "residual_multiplier": 0.6, "tie_word_embeddings": True,
        },
    ),
    "granitemoe": (
        "GraniteMoe",
        {
            "num_local_experts": 5, "num_experts_per_tok": 2, "attention_multiplier": 0.2,
            "embedding_multiplier": 3.0, "logits_scaling": 7.0, "residual_multiplier": 0.6,
        },
    ),
    "gemma": ("Gemma", {"tie_word_embeddings": True, "head_dim": 12}),
    "seed_oss": ("SeedOss", {"head_dim": 12, "attention_dropout": 0.0, "residual_dropout": 0.0}),
    "ministral": (
        "Ministral",
        {
            "sliding_window": 5, "head_dim": 12,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        },
    ),
    "phi3": ("Phi3", {"sliding_window": 9}),
    "phi4": (
        "Phi3",
        {
            "tie_word_embeddings": True,
            "rope_parameters": {
                "rope_type": "default", "rope_theta": 2e4, "partial_rotary_factor": 0.75,
            },
        },
    ),
    "olmo3": (
        "Olmo3",
        {
            "sliding_window": 6, "rope_scaling": {key: YARN[key] for key in YARN},
            "layer_types": ["sliding_attention", "sliding_attention", "full_attention"],
        },
    ),
    "olmoe": ("Olmoe", {"num_experts": 5, "num_experts_per_tok": 2, "num_local_experts": 5}),
    "glm": ("Glm", {"head_dim": 12}),
    "glm4": ("Glm4", {"partial_rotary_factor": 0.25, "head_dim": 16, "attention_bias": False}),
    "smollm3": ("SmolLM3", {"num_hidden_layers": 5, "tie_word_embeddings": True}),
    "smollm3-window": (
        "SmolLM3",
        {"no_rope_layers": [1, 0, 1], "use_sliding_window": True, "sliding_window": 5},
    ),
    "cohere": ("Cohere", {"logit_scale": 0.3, "tie_word_embeddings": True}),
    "cohere2": (
        "Cohere2",
        {
            "sliding_window": 6, "logit_scale": 0.3, "tie_word_embeddings": True,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        },
    ),
    "exaone4": (
        "Exaone4",
        {
            "sliding_window": 6, "head_dim": 12,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        },
    ),
    "exaone4-small": (
        "Exaone4", {"sliding_window": None, "layer_types": ["full_attention"] * 3},
    ),
    "phi": ("Phi", {}),
    "gpt_oss": (
        "GptOss",
        {
            "num_local_experts": 5, "num_experts_per_tok": 2, "sliding_window": 6,
            "swiglu_limit": 1.5, "rope_parameters": {**YARN, "truncate": False},
        },
    ),
    "gpt_oss-plain": (
        "GptOss",
        {
            "num_local_experts": 4, "num_experts_per_tok": 3, "sliding_window": 7,
            "attention_bias": False, "tie_word_embeddings": True,
            "layer_types": ["full_attention", "sliding_attention", "full_attention"],
            "rope_parameters": {"rope_type": "default", "rope_theta": 2e4},
        },
    ),
    "deepseek_v3": (
        "DeepseekV3",
        {
            "num_key_value_heads": 4,
            "kv_lora_rank": 12, "q_lora_rank": 20, "qk_rope_head_dim": 4, "qk_nope_head_dim": 6,
            "v_head_dim": 8, "moe_intermediate_size": 24, "n_routed_experts": 8, "n_group": 4,
            "topk_group": 2, "num_experts_per_tok": 3, "first_k_dense_replace": 1,
            "rope_parameters": {**YARN, "mscale": 1.0, "mscale_all_dim": 0.7},
        },
    ),
    "moonlight": (
        "DeepseekV3",
        {
            "num_key_value_heads": 4,
            "kv_lora_rank": 12, "q_lora_rank": None, "qk_rope_head_dim": 4, "qk_nope_head_dim": 8,
            "v_head_dim": 6, "moe_intermediate_size": 24, "n_routed_experts": 6, "n_group": 1,
            "topk_group": 1, "num_experts_per_tok": 3, "first_k_dense_replace": 1,
            "n_shared_experts": 2, "attention_bias": True, "rms_norm_eps": 1e-5,
        },
    ),
    "deepseek_v2": (
        "DeepseekV2",
        {
            "kv_lora_rank": 12, "q_lora_rank": 20, "qk_rope_head_dim": 4, "qk_nope_head_dim": 8,
            "v_head_dim": 8, "moe_intermediate_size": 24, "n_routed_experts": 6, "n_group": 3,
            "topk_group": 2, "topk_method": "group_limited_greedy", "num_experts_per_tok": 3,
            "first_k_dense_replace": 1, "routed_scaling_factor": 1.7,
        },
    ),
    "deepseek_v2-lite": (
        "DeepseekV2",
        {
            "kv_lora_rank": 12, "q_lora_rank": None, "qk_rope_head_dim": 4, "qk_nope_head_dim": 8,
            "v_head_dim": 6, "moe_intermediate_size": 24, "n_routed_experts": 6,
            "num_experts_per_tok": 2, "rope_parameters": {**YARN, "mscale": 0.7},
        },
    ),
    "qwen2_moe": (
        "Qwen2Moe",
        {
            "num_experts": 5, "num_experts_per_tok": 2, "moe_intermediate_size": 24,
            "shared_expert_intermediate_size": 48,
        },
    ),
    "qwen2_moe-window": (
        "Qwen2Moe",
        {
            "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24,
            "shared_expert_intermediate_size": 24, "norm_topk_prob": True, "mlp_only_layers": [0],
            "use_sliding_window": True, "sliding_window": 6, "qkv_bias": False,
        },
    ),
    "glm4_moe": (
        "Glm4Moe",
        {
            "head_dim": 12, "moe_intermediate_size": 24, "n_routed_experts": 8, "n_group": 4,
            "topk_group": 2, "num_experts_per_tok": 3, "routed_scaling_factor": 1.3,
            "use_qk_norm": True, "attention_bias": True, "rope_parameters": {
                "rope_type": "default", "rope_theta": 2e4, "partial_rotary_factor": 0.5,
            },
        },
    ),
    "glm4_moe-plain": (
        "Glm4Moe",
        {
            "moe_intermediate_size": 24, "n_routed_experts": 5, "num_experts_per_tok": 2,
            "norm_topk_prob": False, "n_shared_experts": 2, "tie_word_embeddings": True,
        },
    ),
    "ernie4_5": ("Ernie4_5", {"use_bias": True, "tie_word_embeddings": True}),
    "ernie4_5-wide": ("Ernie4_5", {"head_dim": 12, "rope_parameters": LLAMA_3_1}),
}  # fmt: skip
# Keys of `SMALL` that a family doesn't have.
WITHOUT: dict[str, tuple[str, ...]] = {
    "GPTNeoX": ("num_key_value_heads", "head_dim"),
    "StableLm": ("head_dim",),
    "Phi3": ("head_dim",),
    "Olmoe": ("head_dim",),
    "Cohere2": ("head_dim",),
    "DeepseekV2": ("head_dim", "num_key_value_heads"),
    "DeepseekV3": ("head_dim",),
}
ARCHITECTURES = {"GPT2": "GPT2LMHeadModel", "Gemma3Text": "Gemma3ForCausalLM"}


def choose_settings(name: str, vocabulary: int = 331) -> dict[str, Any]:
    """Return the arguments of Transformers' class of settings for the model `name`."""
    kind, settings = FAMILIES[name]
    left_out = SMALL if kind == "GPT2" else WITHOUT.get(kind, ())
    small = {key: value for key, value in SMALL.items() if key not in left_out}
    return small | settings | {"vocab_size": vocabulary, "pad_token_id": None}


def make(transformers: Any, name: str, folder: Path, vocabulary: int = 331) -> Any:
    """Return a random model of the family, saved to `folder`."""
    kind, _ = FAMILIES[name]
    settings = choose_settings(name, vocabulary)
    config_class = getattr(transformers, f"{kind}Config")
    config = config_class(bos_token_id=None, eos_token_id=1, **settings)
    config._attn_implementation = "eager"
    torch.manual_seed(7)
    model = getattr(transformers, ARCHITECTURES.get(kind, f"{kind}ForCausalLM"))(config).eval()
    with torch.no_grad():  # norms and biases start as ones and zeros, which would hide mistakes
        for name, tensor in model.state_dict().items():
            if tensor.dim() == 1 or name.endswith("bias"):
                tensor.add_(torch.randn_like(tensor) * 0.1)
    model.save_pretrained(folder)
    config_json = json.loads((folder / "config.json").read_text())
    assert config_json["architectures"]
    return model


def make_encoder(
    transformers: Any, kind: str, ending: str, settings: dict[str, Any], folder: Path
) -> tuple[Any, Any, HubModel]:
    """Return a random `kind`For`ending`, saved to `folder`, and trainrig's model of the folder."""
    config = getattr(transformers, f"{kind}Config")(**settings)
    config._attn_implementation = "eager"
    torch.manual_seed(7)
    theirs = getattr(transformers, f"{kind}For{ending}")(config).eval()
    with torch.no_grad():  # norms and biases start as ones and zeros, which would hide mistakes
        for parameter in theirs.parameters():
            if parameter.dim() == 1:
                parameter.add_(torch.randn_like(parameter) * 0.1)
    theirs.save_pretrained(folder)
    brought.write("llama3", folder)
    if kind == "Roberta":
        vocabulary = json.loads((folder / "tokenizer.json").read_text())["model"]["vocab"]
        second = next(token for token, number in vocabulary.items() if number == 1)
        (folder / "roles.json").write_text(json.dumps({"pad": second}))
    return theirs, *open_ours(folder)


def open_ours(folder: Path) -> tuple[Any, HubModel]:
    """Return trainrig's model of a Hugging Face folder, and the folder."""
    hub = open_folder(str(folder))
    ours = build_model(hub.config)
    ours.load_state_dict(hub.read_state())
    return ours.eval(), hub


def reload(model_class: Any, folder: Path) -> Any:
    """Return Transformers' model of `folder`, which must hold its tensors and no other."""
    back, report = model_class.from_pretrained(
        folder, attn_implementation="eager", output_loading_info=True
    )
    assert not any(report[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    return back


def train_a_step(ours: Any, hub: HubModel, *inputs: torch.Tensor) -> Any:
    """Return a copy of the model after one step of SGD."""
    trained = build_model(hub.config)
    trained.load_state_dict(ours.state_dict())
    optimizer = torch.optim.SGD(trained.parameters(), lr=0.01)
    trained(*inputs).logits.float().logsumexp(-1).sum().backward()
    optimizer.step()
    return trained
