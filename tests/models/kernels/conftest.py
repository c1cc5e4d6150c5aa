import pytest
from tests.models.kernels.kernel_stand_ins import stand_in


@pytest.fixture
def kernels(monkeypatch):
    """Our kernel's module, computed by a stand-in for Triton, beside one for FlashAttention-2."""
    with stand_in(monkeypatch) as kernel:
        yield kernel
