import pytest


@pytest.fixture(scope="module")
def transformers():
    """Return Transformers, set to be offline and quiet."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HF_HUB_OFFLINE", "1")
        module = pytest.importorskip("transformers")
        module.logging.set_verbosity_error()
        module.logging.disable_progress_bar()
        yield module
