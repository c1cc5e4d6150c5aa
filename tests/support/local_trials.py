"""Sweeps whose trials are trained in the process of the test, without Ray."""

import pytest

from trainrig.scaling.sweep import sweep as sweep_module
from trainrig.scaling.sweep.sweep import SweepDriver
from trainrig.scaling.sweep.trial import SingleRankTrainer, join_single_rank_group, train_trial


def train_in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the training on Ray Tune by one trial after another in this process."""

    def train(driver, work, progress, names, settings):  # type: ignore[no-untyped-def]
        with join_single_rank_group():
            for name in names:
                trial = work.find_trial({"name": name})
                train_trial(driver._run, trial, driver._data, SingleRankTrainer())

    monkeypatch.setattr(SweepDriver, "_on_tune", train)
    monkeypatch.setattr(sweep_module, "connect_for_trials", lambda run: None)
