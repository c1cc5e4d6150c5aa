import pytest
from support.kernel_stand_ins import stand_in


@pytest.fixture
def kernels(monkeypatch):
    """Return trainrig's kernel module, run by stand-ins for Triton and FlashAttention-2."""
    with stand_in(monkeypatch) as kernel:
        yield kernel
