"""Imports of verbs, for which each command and each worker of a pass waits."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from trainrig.verbs import VERBS

# Other verbs that train import it in their workers, and in their driver when it runs.
WITH_TORCH = ("evaluate", "sweep")


# One process imports what all verbs share, and a fork of it imports each verb's own part.
LOAD_EACH = """
import os, sys
import trainrig.cli, trainrig.terminal
from trainrig.verbs import VERBS
for verb in VERBS:
    if not (child := os.fork()):
        try:
            VERBS[verb].load_function()
            print(verb, *{"torch", "matplotlib", "ray", "transformers"} & set(sys.modules))
            sys.stdout.flush()
        except BaseException:
            sys.excepthook(*sys.exc_info())
        os._exit(0)
    os.waitpid(child, 0)
"""


@pytest.fixture(scope="module")
def brought() -> dict[str, list[str]]:
    """Return the slow libraries that each verb's function imports; a verb that fails is missing."""
    done = subprocess.run(
        [sys.executable, "-c", LOAD_EACH], capture_output=True, text=True, check=True, timeout=120
    )
    assert not done.stderr, done.stderr
    return {verb: slow for verb, *slow in map(str.split, done.stdout.splitlines())}


@pytest.mark.slow
@pytest.mark.parametrize("verb", VERBS)
def test_a_verb_brings_nothing_that_it_does_without(verb, brought):
    assert brought[verb] == (["torch"] if verb in WITH_TORCH else [])


def test_the_driver_of_training_leaves_torch_to_its_ranks():
    code = "import sys, trainrig.train.elastic.trainer, trainrig.train.pretrain\n"
    code += "print(*{'torch', 'pandas', 'ray'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


TOY = '''"""A toy: counts the words of a file."""

from typing import Annotated, ClassVar, Literal

from trainrig import manifest, storage
from trainrig.config import NOT_IDENTITY, OUTPUT, ProgressUnit, ResourceRequest, RunFile


class WordCount(RunFile):
    """`trainrig words`: how many words a file has."""

    verb: ClassVar[str] = "words"
    progress: ClassVar[ProgressUnit] = "splits"
    estimate: ClassVar[str] = "toy:estimate"

    stage: Literal["words"] = "words"
    text: Annotated[str, NOT_IDENTITY]  # file to read
    output: Annotated[str, OUTPUT]  # folder to write
    workers: Annotated[int, NOT_IDENTITY] = 1  # worker processes

    def request_resources(self, there_are_gpus):
        return ResourceRequest.on_cores(self.workers)


def estimate(run, machine):
    return {"bytes": len(storage.read(run.text))}


def count(run, progress=None):
    stage = manifest.claim(run.output, run, {"text": "1"})
    if stage.finished:
        return stage.finished
    words = len(storage.read(run.text).split())
    progress(1, 1)
    return stage.finish({"words": words}, {})
'''
LINE = """
from trainrig import verbs
verbs.VERBS["words"] = verbs.Verb("toy:count", "toy:WordCount", "data", "Count words.")
"""


@pytest.mark.slow
def test_a_verb_is_added_by_one_file_and_one_line(tmp_path: Path) -> None:
    (tmp_path / "toy.py").write_text(TOY)
    (tmp_path / "text.txt").write_text("two words")
    run_file = tmp_path / "words.toml"
    run_file.write_text('stage = "words"\ntext = "text.txt"\noutput = "out"\n')

    def trainrig(*arguments: str) -> subprocess.CompletedProcess[str]:
        code = f"{LINE}\nfrom trainrig import cli\ncli.main({list(arguments)!r})"
        return subprocess.run(
            [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=120
        )

    assert re.search(r"words +Count words\.", trainrig("--help").stdout)
    assert "# bytes: 9" in trainrig("check", "words.toml").stdout
    assert '"file to read' in trainrig("schema", "words").stdout.lower()
    done = trainrig("words", "words.toml", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["words"] == 2
    assert "the output is finished" in trainrig("words", "words.toml").stderr
