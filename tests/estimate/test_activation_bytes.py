"""Bytes of attention masks, compared with the masks that autograd keeps."""

from typing import Any

import pytest
import torch

from trainrig.errors import ConfigError
from trainrig.estimate.activation_bytes import NO_MASKS, RowMasks
from trainrig.estimate.cost_estimate import DeviceChoice
from trainrig.estimate.model_parallel_memory import estimate_worker_memory
from trainrig.estimate.training_check import estimate_pretraining
from trainrig.models.architecture.decoder_config import DecoderConfig
from trainrig.models.architecture.encoder_configs import EncoderConfig, EncoderDecoderConfig
from trainrig.models.decoder import initialise
from trainrig.models.encoder import build_model
from trainrig.objectives.objective_kinds import UL2, CausalLM, PrefixLM, SpanCorruption
from trainrig.parallel.recompute import Full, choose_kept, recompute
from trainrig.train.run_file.training_settings import Training

SIZES: dict[str, Any] = {"layers": 3, "channels": 32, "heads": 4, "vocabulary": 32}
ALWAYS = {"size": 40, "pattern": ("local",)}
SOMETIMES = {"size": 40, "pattern": ("local", "global")}
DOCUMENTS = RowMasks(documents=True, on_cpu=True)
PREFIXES = RowMasks(marks=True, on_cpu=True)


def count_kept(config: DecoderConfig, length: int, training: Training, prefixes: bool) -> int:
    """Return the bytes of all T × T tensors that are alive after a forward pass of two rows."""
    model = build_model(config)
    initialise(model, 0)
    model = model.to(torch.bfloat16 if training.precision.bytes == 2 else torch.float32)
    recompute(model.layers, choose_kept(len(model.layers), training.recompute))
    found: dict[int, int] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.shape[-2:] == (length, length):
            storage = tensor.untyped_storage()
            found[storage.data_ptr()] = storage.nbytes()
        return tensor

    given = {"positions_BT": torch.arange(length).remainder(30).expand(2, -1)}
    if prefixes:
        given["prefixes_BT"] = torch.arange(length).expand(2, -1) < 9
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        model(torch.ones(2, length, dtype=torch.int64), **given)
    return sum(found.values())


@pytest.mark.parametrize("length", [100, 200, 300])
@pytest.mark.parametrize("compute", ["float32", "bfloat16"])
@pytest.mark.parametrize("kind", ["documents", "prefixes", "caps", "windows", "some", "encoder"])
def test_estimated_masks_equal_the_kept_ones(kind, compute, length):
    attention = {
        "caps": {"logit_cap": 5.0},
        "windows": {"window": ALWAYS},
        "some": {"window": SOMETIMES},
    }
    build = EncoderConfig if kind == "encoder" else DecoderConfig
    config = build(**SIZES, positions=length, attention=attention.get(kind, {}))
    training = Training(steps=1, precision={"compute": compute})
    masks = PREFIXES if kind == "prefixes" else DOCUMENTS
    found = count_kept(config, length, training, kind == "prefixes")
    assert masks.count_kept(config, training, 2, length) == found
    # Whether the mask is kept, computed by hand.
    taken = kind == "prefixes" or length <= {"float32": 128, "bfloat16": 256}[compute]
    size = training.precision.bytes
    assert found == (2 * length**2 * size if taken and kind not in ("caps", "windows") else 0)


def test_masks_are_kept_where_layers_recompute():
    config = DecoderConfig(**SIZES, positions=100)
    training = Training(steps=1, recompute=Full())
    assert DOCUMENTS.count_kept(config, training, 2, 100) == 2 * 100**2 * 5


def test_check_refuses_a_kernel_of_attention_that_its_device_or_model_rules_out(make_run, tmp_path):
    def check(device: str, kernel: str, **attention: Any) -> None:
        run = make_run(
            tmp_path / f"{device}-{kernel}",
            tokens=str(tmp_path / "none"),
            model=SIZES | {"positions": 64, "attention": attention},
            training={"steps": 1, "attention": {"kernel": kernel}},
        )
        run.training.check_parameters(run.model)
        estimate_pretraining(run, DeviceChoice(device))

    check("h100", "flash")
    check("cpu-core", "plain")
    with pytest.raises(ConfigError, match=r"'flash'.*needs a GPU.*CPU"):
        check("cpu-core", "flash")
    with pytest.raises(ConfigError, match=r"'flash'.*not support attention\.sinks.*'auto'"):
        check("h100", "flash", sinks=True)
    ring = Training(
        steps=1,
        deterministic=False,
        parallel={"kind": "FSDP", "context": {"kind": "RingAttention", "ranks": 2}},
        attention={"kernel": "flex"},
    )
    with pytest.raises(ConfigError, match="RingAttention"):
        ring.check_attention(DecoderConfig(**SIZES, positions=64))
    pair = Training(steps=1, attention={"kernel": "plain"})
    with pytest.raises(ConfigError, match="encoder and decoder read"):
        pair.check_attention(EncoderDecoderConfig(**SIZES, positions=64))


def test_a_gpu_reads_rows_of_documents_in_narrow_numbers_by_a_kernel_and_makes_no_mask():
    config = DecoderConfig(**SIZES, positions=4096)
    masks = RowMasks.of(CausalLM(), by_document=True, on_cpu=False)
    for kernel in ("auto", "flex", "triton", "plain"):
        execution = {"precision": {"compute": "bfloat16"}, "attention": {"kernel": kernel}}
        width = config.model_copy(update={"head_channels": 16})
        assert masks.count_kept(width, Training(steps=1, **execution), 1, 4096) == 0


def test_a_gpu_reads_rows_of_documents_in_float32_under_a_mask_however_long():
    config = DecoderConfig(**SIZES, positions=4096)
    training = Training(steps=1)
    assert DOCUMENTS.count_kept(config, training, 1, 4096) == 0
    masks = RowMasks.of(CausalLM(), by_document=True, on_cpu=False)
    assert masks.count_kept(config, training, 1, 4096) == 4 * 4096**2
    assert RowMasks.of(CausalLM(), False, False) == NO_MASKS
    assert RowMasks.of(PrefixLM(), False, True) == PREFIXES


@pytest.mark.parametrize(
    ("compute", "head_channels", "apart"),
    [("bfloat16", 256, True), ("bfloat16", 264, False), ("float32", 128, False)],
)
def test_a_gpu_separates_documents_in_narrow_dtypes_with_usual_heads(compute, head_channels, apart):
    model = DecoderConfig(channels=256, heads=2, head_channels=head_channels, vocabulary=64,
                          layers=2, positions=512)  # fmt: skip
    training = Training.model_validate({"steps": 1, "precision": {"compute": compute}})
    kept = RowMasks(documents=True).count_kept(model, training, 4, 512)
    assert (kept == 0) == apart
    assert RowMasks(documents=True, marks=True).count_kept(model, training, 4, 512) > 0


@pytest.mark.parametrize("objective", [UL2, SpanCorruption])
def test_a_text_that_is_joined_with_its_spans_is_a_prefix(objective):
    assert RowMasks.of(objective(joined=True), False, True) == PREFIXES
    assert RowMasks.of(objective(), False, True).marks is False


def test_rows_shared_by_workers_have_two_chunks_of_their_masks():
    """Two of 4 chunks of 1,024 positions belong to each worker of 2.

    One of the two chunks of the first worker attends to 1 chunk and the other to all 4: 5 squares
    of 16. A ring keeps no masks, nor does a kernel that separates documents.
    """
    config = DecoderConfig(**SIZES, positions=4096)

    def bytes_of(kind: str, compute: str = "float32", masks: RowMasks = NO_MASKS) -> float:
        parallel = {"kind": "FSDP", "context": {"ranks": 2, "kind": kind}}
        settings = {"steps": 1, "parallel": parallel, "precision": {"compute": compute}}
        return masks.count_kept(config, Training.model_validate(settings), 1, 4096)

    assert bytes_of("Gathered") == 4 * 5 * 1024**2
    assert bytes_of("RingAttention") == 0
    assert bytes_of("Gathered", "bfloat16") == 0
    assert bytes_of("Gathered", "bfloat16", RowMasks(on_cpu=True)) == 2 * 5 * 1024**2


@pytest.mark.parametrize("parallel", [{}, {"tensor": {"ranks": 2}}])
def test_a_worker_holds_masks_in_addition_to_activations(parallel):
    config = DecoderConfig(**SIZES, positions=512)
    training = Training(steps=1, parallel={"kind": "FSDP", **parallel}, deterministic=not parallel)
    on_gpu = RowMasks(documents=True)
    without, with_them = (
        estimate_worker_memory(config, training, 2, 8, 4, 512, masks)
        for masks in (NO_MASKS, on_gpu)
    )
    assert with_them.activations - without.activations == 4 * 512**2 * 4
