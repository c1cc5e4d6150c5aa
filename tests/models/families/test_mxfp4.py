"""gpt-oss with experts in MXFP4, as it is published, against Transformers' own unpacking."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file
from support import brought, peer_models

from trainrig.errors import DataError
from trainrig.models.decoder import Decoder
from trainrig.models.huggingface import open_folder, write_folder

IDS = torch.randint(331, (2, 20), generator=torch.Generator().manual_seed(1))
PACKED = ("gate_up_proj", "down_proj")


@pytest.fixture
def packed(transformers, tmp_path):
    """Return Transformers' model with unpacked weights, and the folder with packed ones."""
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors

    folder = tmp_path / "packed"
    settings = peer_models.choose_settings("gpt_oss") | {"intermediate_size": 64}
    config = transformers.GptOssConfig(bos_token_id=None, eos_token_id=1, **settings)
    config._attn_implementation = "eager"
    theirs = transformers.GptOssForCausalLM(config).eval()
    theirs.save_pretrained(folder)
    brought.write("llama3", folder)
    tensors = load_file(folder / "model.safetensors")
    draw = torch.Generator().manual_seed(5)
    for name in [name for name in tensors if name.endswith(PACKED)]:
        experts, inputs, outputs = tensors.pop(name).shape
        size = (experts, outputs, inputs // 32, 16)
        blocks = torch.randint(256, size, generator=draw).to(torch.uint8)
        scales = torch.randint(114, 123, size[:-1], generator=draw).to(torch.uint8)
        tensors |= {f"{name}_blocks": blocks, f"{name}_scales": scales}
        theirs.get_parameter(name).data = convert_moe_packed_tensors(blocks, scales).float()
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    path = folder / "config.json"
    method = {"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]}
    path.write_text(json.dumps(json.loads(path.read_text()) | {"quantization_config": method}))
    return theirs, folder


@torch.no_grad()
def test_packed_experts_are_unpacked_as_by_transformers_and_exported_plain(
    packed, transformers, tmp_path
):
    theirs, folder = packed
    hub = open_folder(str(folder))
    ours = Decoder(hub.config)
    state = hub.read_state()
    ours.load_state_dict(state)
    expert = state["layers.1.feedforward.experts.down"]
    assert expert.dtype == torch.bfloat16
    assert torch.equal(expert.float(), theirs.model.layers[1].mlp.experts.down_proj.mT)
    assert (theirs(IDS).logits - ours(IDS).logits).abs().max() <= 1e-5
    out = tmp_path / "plain"
    write_folder(str(out), hub.config, ours.state_dict().__getitem__, hub.files)
    assert "quantization_config" not in json.loads((out / "config.json").read_text())
    back = transformers.AutoModelForCausalLM.from_pretrained(out, attn_implementation="eager")
    assert (theirs(IDS).logits - back(IDS).logits).abs().max() <= 1e-5
    again = open_folder(str(out))
    assert all(torch.equal(again.tensors[name].read(), value) for name, value in
               ours.state_dict().items())  # fmt: skip


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"quant_method": "gptq"}, r"quantised \(gptq\); use the unquantised model"),
        ({}, r"quantised \(unknown\)"),
    ],
)
def test_other_quantisation_is_refused_by_name(change, said, packed):
    _, folder = packed
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"quantization_config": change}))
    with pytest.raises(DataError, match=said):
        open_folder(str(folder))


def test_blocks_of_another_size_are_refused(packed):
    _, folder = packed
    tensors = load_file(folder / "model.safetensors")
    name = "model.layers.0.mlp.experts.down_proj"
    experts, outputs, groups, size = tensors[f"{name}_blocks"].shape
    tensors[f"{name}_blocks"] = tensors[f"{name}_blocks"].view(experts, outputs, 2 * groups, -1)
    tensors[f"{name}_scales"] = tensors[f"{name}_scales"].repeat_interleave(2, dim=2)
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(DataError, match=f"a scale for each block of {size} bytes"):
        open_folder(str(folder))


def test_a_shape_that_needs_more_bytes_than_are_stored_is_refused(packed):
    _, folder = packed
    path = folder / "model.safetensors"
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    header["model.layers.0.mlp.experts.down_proj_scales"]["shape"][0] += 1
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data[8 + length :])
    with pytest.raises(DataError, match=r"model.safetensors: damaged .*bytes for a tensor of"):
        open_folder(str(folder))


@pytest.mark.parametrize("kind", ["missing", "short", "type"])
def test_damaged_scales_are_refused(kind, packed):
    _, folder = packed
    tensors = load_file(folder / "model.safetensors")
    name = "model.layers.0.mlp.experts.down_proj_scales"
    scales = tensors.pop(name)
    if kind == "short":
        tensors[name] = scales[:, 1:].contiguous()
    if kind == "type":
        tensors[name] = scales.float()
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    said = "type F32 instead of U8" if kind == "type" else "down_proj_blocks has the shape .*scales"
    with pytest.raises(DataError, match=said) as refused:
        open_folder(str(folder)).read_state()
    assert "\n" not in str(refused.value)
