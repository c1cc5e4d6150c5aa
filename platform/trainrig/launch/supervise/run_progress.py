"""Progress of a run, read from its output in storage."""

import json
from dataclasses import dataclass
from typing import Any

from trainrig import storage
from trainrig.processes.append_log import Tail
from trainrig.train.run import metrics
from trainrig.train.run.run_folder import RunFolder
from trainrig.verbs import VERBS


def trains(verb: str) -> bool:
    """Return whether runs of `verb` have steps; False for an unknown verb."""
    return verb in VERBS and VERBS[verb].load_model().trains


@dataclass(frozen=True)
class Saved:
    """State from which a run can resume."""

    step: int | None  # the newest valid checkpoint; None: there is none, or the verb has no steps
    tokens: int | None  # trained on up to that step


class RunProgress:
    """Reader of the progress in the output of a run of `verb`."""

    def __init__(self, verb: str, output: str) -> None:
        self._output = output
        self.trains = trains(verb)
        self._lines = Tail(storage.join(output, metrics.METRICS))
        self.step = 0  # updates made; 0 if the verb has no steps
        self.tokens = 0  # tokens trained on

    def look(self) -> None:
        """Read the metrics that the run has written since the last call."""
        if not self.trains:
            return
        for line in self._lines.read_new_lines():
            try:
                update = json.loads(line)
            except ValueError:
                continue
            if "train/loss" in update and update["step"] >= self.step:
                self.step = update["step"]
                self.tokens = int(update["train/tokens"])

    def measure_progress(self) -> int:
        """Return a number that grows with progress: updates, or finished files of the output."""
        if not self.trains:
            return len(storage.list_files(self._output))
        self.look()
        return max(self.step, self._find_newest_checkpoint() or 0)

    def find_saved(self) -> Saved:
        """Return the state from which the run would resume now. Slow: imports checkpoint code."""
        step = self._find_newest_checkpoint()
        if step is None:
            return Saved(None, None)
        at = next(
            (line for line in metrics.read_series(self._output) if line["step"] == step), None
        )
        return Saved(step, int(at["train/tokens"]) if at else None)

    def build_figures(self) -> dict[str, Any]:
        """Return the progress fields of a heartbeat."""
        return {"step": self.step, "tokens": self.tokens} if self.trains else {}

    def _find_newest_checkpoint(self) -> int | None:
        if not self.trains or not storage.find_first(RunFolder(self._output).checkpoints):
            return None
        from trainrig.train.checkpoint import find_newest_valid

        newest, _ = find_newest_valid(RunFolder(self._output), thorough=False)
        return newest.step if newest else None
