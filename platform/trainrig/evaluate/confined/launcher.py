"""The script that becomes the judge and forks the program: `python -P -s -S launcher.py SPEC`.

It reads the program and its tests from standard input, as JSON. It writes the verdict to a pipe
that only this process and its parent have. Both processes confine themselves before they run
anything.
"""

from __future__ import annotations

import json
import os
import signal
import sys

TYPE_CHECKING = False  # `typing` would take a tenth of the start
if TYPE_CHECKING:
    from typing import Any, NoReturn


def main() -> None:
    """Judge the program on standard input; the first argument is the specification as JSON."""
    sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))  # noqa: PTH100, PTH120
    import judge  # type: ignore[import-not-found]
    import kernel  # type: ignore[import-not-found]
    import program  # type: ignore[import-not-found]

    spec = json.loads(sys.argv[1])
    limits = (spec["readable"], spec["memory"], spec["seconds"])
    requests_read, requests_write = os.pipe()
    answers_read, answers_write = os.pipe()
    child, shared = kernel.fork_alone()
    if child == 0:
        _keep_files(requests_read, answers_write)
        program.serve(requests_read, answers_write, lambda: kernel.confine(*limits))
    os.close(requests_read)
    os.close(answers_write)
    try:
        kernel.confine(*limits, more_calls=(kernel.WAIT4,))
    except (kernel.CannotConfine, OSError) as error:
        _end(spec, "refused", str(error), shared)
    end = judge.JudgeEnd(answers_read, requests_write)
    if refusal := end.await_start():
        _end(spec, "refused", refusal, shared)
    with open(0, encoding="utf-8") as given:
        source, tests = json.load(given)
    said = judge.judge(end, source, tests)
    verdict = "failed" if said else "passed"
    if end.ended:
        _, status = os.waitpid(child, 0)
        if os.WIFSIGNALED(status) and os.WTERMSIG(status) in (signal.SIGKILL, signal.SIGXCPU):
            verdict = "timed out"
    _end(spec, verdict, said, shared)


def _keep_files(first: int, last: int) -> None:
    """Close all files except `first`, `last` and the output; standard input becomes empty."""
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    first, last = sorted((first, last))
    os.closerange(3, first)
    os.closerange(first + 1, last)
    os.closerange(last + 1, 2**20)


def _end(spec: dict[str, Any], verdict: str, said: str, shared: str) -> NoReturn:
    """Write the verdict and exit.

    `shared` is the reason why the program shares namespaces with this process, "" if it does not.
    """
    result = {"verdict": verdict, "said": said[-spec["said"] :], "shared": shared}
    os.write(spec["verdict"], json.dumps(result).encode())
    os._exit(0)


if __name__ == "__main__":
    main()
