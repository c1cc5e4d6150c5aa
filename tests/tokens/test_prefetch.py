import threading
import time

import pytest

from trainrig.tokens.prefetch import Prefetch


def alive() -> list[str]:
    return [t.name for t in threading.enumerate() if t.name.startswith("batches from step")]


@pytest.mark.parametrize("ahead", [0, 1, 3])
def test_steps_come_in_order_and_after_a_jump_too(ahead):
    with Prefetch(lambda step: step * step, ahead) as prefetch:
        asked = [0, 1, 2, 3, 7, 8, 2, 3, 3]
        assert [prefetch.at(step) for step in asked] == [step * step for step in asked]
    assert not alive()


def test_no_more_is_prepared_than_was_allowed():
    made = []
    enough = threading.Event()

    def prepare(step: int) -> int:
        made.append(step)
        if step == 3:
            enough.set()
        return step

    with Prefetch(prepare, ahead=2) as prefetch:
        prefetch.at(0)
        assert enough.wait(10)  # 1 and 2 are queued, 3 is being read
        deadline = time.monotonic() + 0.05
        while time.monotonic() < deadline:
            assert made == [0, 1, 2, 3]
    assert not alive()


def test_the_prefetch_works_in_the_background():
    ready = threading.Event()

    def prepare(step: int) -> int:
        if step == 1:
            ready.set()
        return step

    with Prefetch(prepare, ahead=1) as prefetch:
        prefetch.at(0)
        assert ready.wait(10)  # step 1 was never requested


@pytest.mark.parametrize("ahead", [0, 2])
def test_an_error_is_raised_when_its_step_is_requested(ahead):
    def prepare(step: int) -> int:
        if step == 2:
            raise OSError("the disk is gone")
        return step

    with Prefetch(prepare, ahead) as prefetch:
        assert [prefetch.at(0), prefetch.at(1)] == [0, 1]
        for _ in range(2):  # twice
            with pytest.raises(OSError, match="the disk is gone"):
                prefetch.at(2)
        assert prefetch.at(3) == 3  # skips a step, as a run may
    assert not alive()


def test_a_failing_step_that_is_not_requested_has_no_effect():
    def prepare(step: int) -> int:
        if step >= 2:
            raise OSError("beyond the end of the data")
        return step

    with Prefetch(prepare, ahead=3) as prefetch:
        assert [prefetch.at(0), prefetch.at(1)] == [0, 1]
    assert not alive()


def test_leaving_by_an_error_ends_the_thread():
    with pytest.raises(RuntimeError, match="ours"), Prefetch(lambda step: step, 2) as prefetch:
        prefetch.at(0)
        raise RuntimeError("ours")
    assert not alive()
