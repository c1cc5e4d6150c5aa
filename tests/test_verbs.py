"""What verbs import: whoever curates, and each worker of a pass, waits for it."""

import subprocess
import sys

import pytest

from trainrig.verbs import VERBS

# Of the others, those that train have it in their workers, and in their driver when it runs.
WITH_TORCH = ("evaluate", "sweep")


@pytest.mark.parametrize("verb", VERBS)
def test_a_verb_brings_nothing_that_it_does_without(verb):
    code = f"""
import sys
import trainrig.cli, trainrig.terminal
from trainrig.verbs import VERBS
VERBS[{verb!r}].load_function()
print(*{{"torch", "matplotlib", "ray", "transformers"}} & set(sys.modules))
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == (["torch"] if verb in WITH_TORCH else [])
