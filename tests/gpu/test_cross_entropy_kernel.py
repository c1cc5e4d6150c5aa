"""The loss of rows of logits in one kernel, compared with plain torch."""

import pytest
import torch

from trainrig.objectives import chunked_head
from trainrig.objectives.chunked_head import Extras, LogitTransform

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU; run by `make gpu`"),
]

ROWS = 37
SETTINGS = [
    (LogitTransform(1.0, None), Extras(), False),
    (LogitTransform(1.5, 30.0), Extras(), True),
    (LogitTransform(0.5, None), Extras(z=1e-2, uniform=0.1), False),
    (LogitTransform(1.0, 2.0), Extras(z=0.3, uniform=0.2), True),
]


def compute_in_kernel(logits, targets, counts, bend, extras):
    """Return the gradients that replace a copy of `logits`, and the three numbers of each row."""
    left = logits.clone()
    parts = torch.zeros(3, len(logits) + 2, device=logits.device)[:, 1:-1]
    losses = chunked_head._CrossEntropy(targets, bend, extras)
    losses.replace_by_gradients(left, slice(0, len(logits)), counts, parts)
    return left, parts


@pytest.mark.parametrize("entries", [31, 8192, 50_257])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("bend", "extras", "counted"), SETTINGS)
def test_values_and_gradients_equal_plain_torch(entries, dtype, bend, extras, counted, monkeypatch):
    generator = torch.Generator("cuda").manual_seed(0)
    logits = torch.randn(ROWS, entries, generator=generator, device="cuda").mul(3).to(dtype)
    targets = torch.randint(entries, (ROWS,), generator=generator, device="cuda")
    counts = torch.rand(ROWS, generator=generator, device="cuda") if counted else None
    ours = compute_in_kernel(logits, targets, counts, bend, extras)
    monkeypatch.setattr(chunked_head, "runs_kernels", lambda device: False)
    plain = compute_in_kernel(logits, targets, counts, bend, extras)
    narrow = dtype == torch.bfloat16
    torch.testing.assert_close(ours[0], plain[0], rtol=1e-2 if narrow else 2e-4, atol=1e-6)
    torch.testing.assert_close(ours[1], plain[1], rtol=2e-5, atol=2e-5)


def test_a_row_gives_the_same_bits_alone_and_again():
    generator = torch.Generator("cuda").manual_seed(1)
    logits = torch.randn(ROWS, 50_257, generator=generator, device="cuda", dtype=torch.bfloat16)
    targets = torch.randint(50_257, (ROWS,), generator=generator, device="cuda")
    together = compute_in_kernel(logits, targets, None, LogitTransform(1.0, None), Extras())
    for row in (0, 5, ROWS - 1):
        mine = slice(row, row + 1)
        alone = compute_in_kernel(
            logits[mine], targets[mine], None, LogitTransform(1.0, None), Extras()
        )
        assert torch.equal(alone[0], together[0][mine])
        assert torch.equal(alone[1], together[1][:, mine])


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_logits_that_are_not_finite_give_nats_that_are_not(value):
    logits = torch.zeros(2, 100, device="cuda")
    logits[0, 3] = value
    targets = torch.zeros(2, dtype=torch.int64, device="cuda")
    parts = compute_in_kernel(logits, targets, None, LogitTransform(1.0, None), Extras())[1]
    assert not parts[0, 0].isfinite() and parts[0, 1].isfinite()
