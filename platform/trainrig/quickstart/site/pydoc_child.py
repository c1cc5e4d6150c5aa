"""Script that imports modules and writes pydoc's HTML, in a disposable process.

python -s -S -P -B pydoc_child.py JOB.json RESULTS.jsonl

The job is `{"modules": […], "folders": […], "seconds": 20}`; `folders` are searched before the
standard library. Each module leaves two lines in RESULTS: `{"begun": name}` before it is imported
and, if the process survives, `{"module", "title", "html"}` or `{"module", "error"}` after. A module
that takes longer than `seconds` ends the process and leaves a traceback in RESULTS.late.
"""

import faulthandler
import importlib
import json
import os
import pydoc
import re
import sys
from typing import Any, TextIO

_ADDRESS = re.compile(r"(?: |&nbsp;)at(?: |&nbsp;)0x[0-9a-fA-F]+")
_FILE_LINK = re.compile(r'<a href="file:[^"]*">[^<]*</a>(?:<br>)?')

_HOME = os.environ.get("HOME", "/nowhere")


class _Pages(pydoc.HTMLDoc):
    """HTML pages of pydoc without data values, which differ between runs and machines."""

    def docother(self, object: Any, name: Any = None, *more: Any, **others: Any) -> str:
        return f"<strong>{self.escape(str(name))}</strong>"


def _render_page(name: str) -> dict[str, str]:
    try:
        module = importlib.import_module(name)
        markup = _Pages().document(module, name)
        # Default arguments show memory addresses and, in cgi, the whole environment.
        markup = _FILE_LINK.sub("", _ADDRESS.sub("", markup)).replace(_HOME, "/home/reader")
    # SystemExit too: a failing module must not affect the other modules.
    except BaseException as error:
        return {"module": name, "error": type(error).__name__}
    return {"module": name, "title": pydoc.describe(module), "html": markup}


def _write(results: TextIO, line: dict[str, Any]) -> None:
    results.write(json.dumps(line) + "\n")
    results.flush()


def main(job_path: str, results_path: str) -> None:
    """Render every module of the job, then end the process even if modules left threads running."""
    with open(job_path, encoding="utf-8") as file:  # noqa: PTH123 - pathlib is not yet imported
        job = json.load(file)
    sys.path[:0] = job["folders"]
    results = open(results_path, "a", encoding="utf-8")  # noqa: PTH123, SIM115
    late = open(results_path + ".late", "w", encoding="utf-8")  # noqa: PTH123, SIM115
    for name in job["modules"]:
        _write(results, {"begun": name})
        # Fires even while a module holds the interpreter lock, which would block a Python timer.
        faulthandler.dump_traceback_later(job["seconds"], exit=True, file=late)
        page = _render_page(name)
        faulthandler.cancel_dump_traceback_later()
        _write(results, page)
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
