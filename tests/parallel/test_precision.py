import json
from pathlib import Path

import pytest
import torch
from torch.distributed.fsdp import MixedPrecisionPolicy

from trainrig.parallel.precision import Precision, make_policy, set_products, supports_bfloat16
from trainrig.train.run.run_folder import RunFolder

BFLOAT16 = {"compute": "bfloat16"}


def build_job(make_job, folder, steps, **training):
    return make_job(folder, training={"steps": steps, **training})


def test_bfloat16_casts_weights_and_activations_but_adds_gradients_up_in_float32():
    casts = make_policy(Precision(compute="bfloat16"))
    assert (casts.param_dtype, casts.reduce_dtype) == (torch.bfloat16, torch.float32)


@pytest.mark.parametrize(("gpu", "compute"), [(True, "bfloat16"), (False, "float32")])
def test_auto_is_what_the_device_is_made_for_and_anything_else_stays(gpu, compute):
    assert Precision().resolve(gpu) == Precision(compute=compute)
    assert Precision(compute="tf32").resolve(gpu) == Precision(compute="tf32")
    assert not supports_bfloat16(torch.device("cpu"))


def test_auto_counts_as_float32_where_no_device_is_known():
    assert (Precision().bytes, Precision().peak) == (4, "float32")
    assert make_policy(Precision()) == MixedPrecisionPolicy()


@pytest.mark.parametrize("compute", ["float32", "tf32"])
def test_otherwise_nothing_is_cast(compute):
    assert make_policy(Precision(compute=compute)) == MixedPrecisionPolicy()


@pytest.mark.parametrize(
    ("compute", "products"), [("float32", "highest"), ("tf32", "high"), ("bfloat16", "highest")]
)
def test_products_are_rounded_only_where_it_was_asked_for(compute, products):
    before = torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision("high" if products == "highest" else "highest")
        set_products(Precision(compute=compute))
        assert torch.get_float32_matmul_precision() == products
    finally:
        torch.set_float32_matmul_precision(before)


@pytest.mark.slow
def test_bfloat16_keeps_the_losses_of_float32_within_half_a_percent(ranks, make_job, tmp_path):
    # A learning rate that does not amplify each rounding, unlike the usual one of these tests.
    usual = {"optimizer": {"kind": "AdamW", "lr": 1e-3}, "schedule": {"kind": "Cosine"}}
    (exact,) = ranks(1, "steps", job=build_job(make_job, tmp_path, 50, **usual), count=50)
    job = build_job(make_job, tmp_path, 50, precision=BFLOAT16, **usual)
    (rounded,) = ranks(1, "steps", job=job, count=50)
    assert rounded["losses"] == pytest.approx(exact["losses"], rel=5e-3)
    assert all(a != b for a, b in zip(exact["losses"], rounded["losses"], strict=True))


@pytest.mark.slow
def test_bfloat16_gives_the_same_bits_at_any_number_of_ranks(ranks, make_job, tmp_path):
    job = build_job(make_job, tmp_path, 6, precision=BFLOAT16)
    found = [answer for world in (1, 2, 3) for answer in ranks(world, "steps", job=job, count=6)]
    assert len(found) == 6
    assert len({(answer["digest"], *answer["losses"]) for answer in found}) == 1


@pytest.mark.slow
def test_bfloat16_runs_train_and_save_float32_weights(ranks, make_job, tmp_path):
    job = build_job(make_job, tmp_path, 3, precision=BFLOAT16)
    (left,) = ranks(1, "steps", job=job, count=2)
    assert left["dtypes"] == {"torch.float32"}
    ranks(1, "train", job=job, attempt=RunFolder(job.folder).take_attempt(0))
    (tensors,) = Path(job.folder).glob("checkpoints/step_00000003/attempt-0001/*.safetensors")
    with tensors.open("rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
    saved = {name: about["dtype"] for name, about in header.items() if name != "__metadata__"}
    assert any(name.startswith("optimizer.state.") for name in saved)
    assert set(saved.values()) == {"F32"}
