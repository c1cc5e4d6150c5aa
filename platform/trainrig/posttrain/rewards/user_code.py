"""User-written Python in a separate process, which may raise, hang or exit, and rewards by it.

The code is trusted like the run file and is not sandboxed. It is never loaded from a checkpoint.
"""

import importlib.util
import json
import os
import selectors
import subprocess
import sys
import time
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from trainrig import storage
from trainrig.config import Settings
from trainrig.config.field_marks import SHIPPED
from trainrig.errors import ConfigError
from trainrig.manifest import digest
from trainrig.posttrain.rewards.reward_contract import Completion, Fault, RewardPart, Score
from trainrig.processes.child_process import end_process

START_SECONDS = 120.0  # time limit of loading: the user's imports may include torch
READ = 64 * 2**10  # bytes of an answer that one call of os.read takes


class UserCodeSettings(Settings):
    """Settings that locate the user's Python: a file, or a module of an installed package."""

    # One Python file, whose imports must be installed; `submit` ships it to the cluster.
    file: Annotated[str | None, SHIPPED] = None
    # Module, such as `package.rewards`, which must be installed on every machine.
    module: str | None = None
    # Time limit of one call, in seconds. After that the process is killed and the call is a fault.
    seconds: float = Field(default=10.0, gt=0, allow_inf_nan=False)

    @model_validator(mode="after")
    def _one_place(self) -> Self:
        if (self.file is None) == (self.module is None):
            raise ValueError("file, module: give exactly one of the two")
        return self

    @property
    def where(self) -> str:
        """The file or module, for messages."""
        return self.file or self.module or ""

    def hash_source(self) -> str:
        """Return the SHA-256 of the file, or of all Python files of the module's package.

        Raises ConfigError if there is no such file or package.
        """
        if self.file is not None:
            if not storage.exists(self.file):
                raise ConfigError(f"{self.file}: no such file; name a file with Python code")
            return storage.compute_content_key(self.file)
        assert self.module is not None
        top = self.module.partition(".")[0]
        found = importlib.util.find_spec(top)
        if found is None or found.origin is None:
            raise ConfigError(
                f"module '{self.module}': the package '{top}' is not installed; install it, "
                "or use `file`"
            )
        first = Path(found.origin)
        files = sorted(first.parent.rglob("*.py")) if first.name == "__init__.py" else [first]
        texts = [[str(path.relative_to(first.parent)), path.read_text()] for path in files]
        return digest(texts)


class UserCodeFault(Exception):
    """Failure of a call to the user's code: it raised, or did not return in time."""

    def __init__(self, kind: Literal["raised", "timed_out"], detail: str) -> None:
        super().__init__(detail)
        self.kind = kind
        self.detail = detail


class UserCode:
    """Handle of one user-written function or class that runs in a separate process."""

    def __init__(self, settings: UserCodeSettings, name: str) -> None:
        """Store the settings; the process starts at the first call of `check` or `ask`."""
        self._settings = settings
        self._name = name
        self._process: subprocess.Popen[bytes] | None = None
        self._rest = b""
        self.starts = 0  # processes started so far; a new one has no state of the earlier

    @property
    def running(self) -> bool:
        """True while the process is running."""
        return self._process is not None

    def check(self) -> Self:
        """Return this object after loading the user's code.

        Raises ConfigError if the code cannot be loaded.
        """
        try:
            self._start()
        except UserCodeFault as fault:
            raise ConfigError(f"{self._settings.where}: {fault}") from None
        return self

    def ask(self, do: str, *arguments: Any, episode: int = 0) -> Any:
        """Return the result of the request `do`, such as "call" or "step", with `arguments`.

        Raises UserCodeFault if the code raises, exits, or takes longer than `seconds`.
        """
        if self._process is None:
            self._start()
        return self._ask(do, arguments, episode, self._settings.seconds)

    def close(self) -> None:
        """Stop the process, if one is running."""
        if self._process is not None:
            end_process(self._process)
            self._process = None

    def _start(self) -> None:
        self.close()
        worker = str(resources.files("trainrig.posttrain.rewards").joinpath("user_code_worker.py"))
        self._process = subprocess.Popen(
            [sys.executable, "-P", worker], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        weakref.finalize(self, end_process, self._process)
        self._rest = b""
        self.starts += 1
        given = self._settings
        source = None
        if given.file is not None:
            source = storage.read(given.file).decode()
        self._ask("load", (self._name, given.where, source), 0, START_SECONDS)

    def _ask(self, do: str, arguments: tuple[Any, ...], episode: int, seconds: float) -> Any:
        assert self._process is not None and self._process.stdin is not None
        request = {"do": do, "arguments": arguments, "episode": episode}
        try:
            self._process.stdin.write(json.dumps(request, default=str).encode() + b"\n")
            self._process.stdin.flush()
            line = self._read_line(seconds)
        except BrokenPipeError:
            line = b""
        if line is None:
            self.close()
            raise UserCodeFault("timed_out", f"no answer within {seconds:g} s")
        if not line:
            code = self._process.wait()
            self.close()
            raise UserCodeFault("raised", f"the process of the code ended with exit code {code}")
        answer = json.loads(line)
        if "error" in answer:
            raise UserCodeFault("raised", answer["error"])
        return answer["result"]

    def _read_line(self, seconds: float) -> bytes | None:
        """Return the next line, b"" if the process has ended, or None if the time is up."""
        assert self._process is not None and self._process.stdout is not None
        until = time.monotonic() + seconds
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            while b"\n" not in self._rest:
                if not selector.select(max(0.0, until - time.monotonic())):
                    return None
                new = os.read(self._process.stdout.fileno(), READ)
                if not new:
                    return b""
                self._rest += new
        line, _, self._rest = self._rest.partition(b"\n")
        return line


class PythonFunction(UserCodeSettings, RewardPart):
    """Reward that is the number returned by your function `reward(prompt, completion, row)`.

    `prompt` and `completion` are strings; `row` is a dict of the prompt's row. The function runs in
    a separate process and is called once for each completion.
    """

    kind: Literal["PythonFunction"] = "PythonFunction"
    name: str = "function"  # name of this reward in metrics
    function: str = "reward"  # name of the function in `file` or `module`
    needs: tuple[str, ...] = ()  # columns that every row of the prompt files must have

    @property
    def columns(self) -> tuple[str, ...]:
        """Columns that the function needs."""
        return self.needs

    def hash_inputs(self) -> Mapping[str, str]:
        """Return the hash of the function's source."""
        return {"source": self.hash_source()}

    def open(self) -> "FunctionScorer":
        """Return the scorer that calls the function.

        Raises ConfigError if the function cannot be loaded.
        """
        return FunctionScorer(self.name, UserCode(self, self.function).check())


@dataclass(frozen=True)
class FunctionScorer:
    """Scorer that calls a user's function once for each completion."""

    name: str
    code: UserCode

    def score(self, completions: Sequence[Completion]) -> list[Score]:
        """Return the function's result for each completion.

        The score is a Fault if the function raises, takes too long, or returns no number.
        """
        return [self._score(completion) for completion in completions]

    def _score(self, completion: Completion) -> Score:
        try:
            given = self.code.ask("call", completion.prompt, completion.text, dict(completion.row))
        except UserCodeFault as fault:
            return Fault(fault.kind, fault.detail)
        if not isinstance(given, int | float):  # bool passes: True is 1.0
            return Fault("raised", f"the function returned {given!r:.60}, which is not a number")
        return float(given)
