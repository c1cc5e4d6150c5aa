"""Time shares of a step, by a host's clock and by events in an accelerator's queue."""

from types import SimpleNamespace

import pytest
import torch

from trainrig.parallel import phase_clock
from trainrig.parallel.phase_clock import PhaseClock


@pytest.fixture
def host(monkeypatch):
    """Replace the host's clock by one that only `host.pass_seconds` advances."""
    found = SimpleNamespace(now=0.0)
    found.pass_seconds = lambda seconds: vars(found).update(now=found.now + seconds)
    monkeypatch.setattr(phase_clock, "time", SimpleNamespace(perf_counter=lambda: found.now))
    return found


@pytest.fixture
def device(monkeypatch):
    """Simulate an accelerator that reaches the events in its queue 0.25 s apart once waited for."""
    found = SimpleNamespace(marks=[], waits=[])

    class Event:
        def __init__(self, enable_timing):
            assert enable_timing

        def record(self):
            found.marks.append(self)

        def synchronize(self):
            found.waits.append(self)

        def elapsed_time(self, other):
            return 250.0 * (found.marks.index(other) - found.marks.index(self))

    monkeypatch.setattr(torch.cuda, "Event", Event)
    return found


def account_seconds(seconds):
    return {name: duration for name, duration in seconds.items() if duration}


def test_a_phase_within_another_counts_once(host):
    clock = PhaseClock(torch.device("cpu"))
    clock.begin(measured=False)
    with clock.time_phase("backward"):
        host.pass_seconds(2.0)
        with clock.time_waiting():
            host.pass_seconds(1.0)
        host.pass_seconds(4.0)
    assert account_seconds(clock.take()) == {"backward": 6.0, "communication": 1.0}
    assert account_seconds(clock.take()) == {}


def test_the_time_of_an_abandoned_step_counts_for_no_other_step(host):
    clock = PhaseClock(torch.device("cpu"))
    for _ in range(2):
        clock.begin(measured=False)
        with clock.time_phase("forward"):
            host.pass_seconds(1.0)
    assert account_seconds(clock.take()) == {"forward": 1.0}


def test_a_device_is_not_waited_for_until_the_phases_are_read(host, device):
    clock = PhaseClock(torch.device("cuda"))
    clock.begin(measured=True)
    for name in ("data", "forward", "backward", "forward", "optimizer"):
        with clock.time_phase(name), clock.time_waiting():
            host.pass_seconds(9.0)
    assert not device.waits
    taken = clock.take()
    assert account_seconds(taken) == {
        "data": 0.25,
        "forward": 0.5,
        "backward": 0.25,
        "optimizer": 0.25,
    }
    assert device.waits


def test_a_device_is_timed_in_measured_steps_alone(host, device):
    clock = PhaseClock(torch.device("cuda"))
    for measured in (False, True, False):
        clock.begin(measured)
        with clock.time_phase("forward"):
            pass
        assert clock.measured == measured
    assert account_seconds(clock.take()) == {} and len(device.marks) == 2 and not device.waits
