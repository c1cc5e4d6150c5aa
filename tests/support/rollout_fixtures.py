"""A tiny model and prompts of letters, whose correct answer is the letter e."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from trainrig.rl.reinforcement_run_file import ReinforcementLearning


@pytest.fixture(scope="session")
def problems(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Write prompts with answers, some of which are unusable."""
    path = tmp_path_factory.mktemp("problems") / "problems.jsonl"
    rows = [{"question": f"is {n} {'a ' * (n % 4)}", "answer": "e"} for n in range(7)]
    rows.insert(2, {"question": "no answer"})
    rows.insert(5, {"question": "long " * 50, "answer": "e"})
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


@pytest.fixture(scope="session")
def make_run(fresh: str, problems: str) -> Callable[..., ReinforcementLearning]:
    """Return `make_run(output, …)`, which makes a run file of a few steps."""

    def make(output: Path | str, **changes: Any) -> ReinforcementLearning:
        given = {
            "checkpoint": fresh,
            "output": str(output),
            "prompts": {"paths": (problems,), "template": "{{ question }}"},
            "rollouts": {
                "prompts": 4,
                "samples": 4,
                "micro_batch": 8,
                "prompt_tokens": 32,
                "maximum_tokens": 5,
                **changes.pop("rollouts", {}),
            },
            "rewards": (
                {"kind": "ExactAnswer"},
                {"kind": "PatternShape", "pattern": "e", "whole": False, "weight": 0.5},
            ),
            "training": {
                "steps": 3,
                "optimizer": {"kind": "AdamW", "lr": 1e-2},
                **changes.pop("training", {}),
            },
            **changes,
        }
        return ReinforcementLearning.model_validate(given)

    return make
