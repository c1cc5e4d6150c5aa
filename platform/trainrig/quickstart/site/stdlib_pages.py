"""Pages of every Python installation: the standard library by pydoc, and the language reference.

pydoc imports what it documents. So it runs in disposable processes, each with an empty home and
working folder, no console, no display, no browser and no site-packages. A module that raises, hangs
or kills the interpreter loses only its own page.

The chapters of the language reference are those that `help()` shows.
"""

import ast
import contextlib
import json
import os
import subprocess
import sys
import sysconfig
import tempfile
import warnings
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from trainrig.processes.child_process import hold_group
from trainrig.quickstart.site import pydoc_child
from trainrig.quickstart.site.article import Article, Markup, count_prose_words, read_docstring

# Modules of one process. Constant at any number of workers, because a module's page may depend on
# the modules imported before it.
_BATCH = 40

# Modules that print, write files or open windows when imported, or that are not documentation.
_LEFT_OUT = frozenset(
    [
        "antigravity",
        "ensurepip",
        "idlelib",
        "lib2to3",
        "pydoc_data",
        "site-packages",
        "dist-packages",
        "test",
        "tests",
        "this",
        "turtledemo",
        "__main__",
        "__pycache__",
        "sitecustomize",
        "usercustomize",
        "xxlimited",
        "xxlimited_35",
    ]
)
# No user or installed packages (nor their start-up files), no script folder on the path, no
# bytecode files, UTF-8, no warnings.
_FLAGS = ("-s", "-S", "-P", "-B", "-X", "utf8", "-W", "ignore")
# Largest page in characters of HTML; tkinter's has 1.5 million, mostly inherited methods.
_LARGEST = 150_000


@dataclass(frozen=True)
class Skipped:
    """A module that gave no page, with a short code for the reason."""

    name: str
    reason: str


def list_standard_modules() -> list[str]:
    """Return the public modules of the standard library that suit a manual, sorted."""
    names = set(sys.stdlib_module_names)
    for package in sorted(sys.stdlib_module_names):
        folder = Path(sysconfig.get_path("stdlib")) / package
        for file in sorted(folder.rglob("*.py")):
            parts = (package, *file.relative_to(folder).with_suffix("").parts)
            names.add(".".join(parts[:-1] if parts[-1] == "__init__" else parts))
    return sorted(name for name in names if not _is_left_out(name))


def _is_left_out(module: str) -> bool:
    if module.startswith("encodings."):  # 120 tables with the same page.
        return True
    return any(part.startswith("_") or part in _LEFT_OUT for part in module.split("."))


def render(
    modules: Sequence[str], workers: int, folders: Sequence[str] = (), seconds: float = 20.0
) -> list[Article | Skipped]:
    """Return a page for each module, or the reason for none, in the given order.

    `folders` are searched for modules before the standard library. A module may take `seconds`.
    """
    batches = [modules[start : start + _BATCH] for start in range(0, len(modules), _BATCH)]
    with ThreadPoolExecutor(workers) as threads:
        done = threads.map(lambda batch: list(_render_batch(batch, folders, seconds)), batches)
        return [page for batch in done for page in batch]


def _render_batch(
    modules: Sequence[str], folders: Sequence[str], seconds: float
) -> Iterator[Article | Skipped]:
    left = list(modules)
    while left:
        done = list(_parse_outcomes(*_run(left, folders, seconds)))
        # Without this, a process that dies before its first module would be restarted forever.
        done = done or [Skipped(left[0], "interpreter_did_not_start")]
        yield from done
        left = left[len(done) :]


def _run(modules: Sequence[str], folders: Sequence[str], seconds: float) -> tuple[list[str], bool]:
    """Run one disposable process; return its result lines, and whether the time limit ended it."""
    with tempfile.TemporaryDirectory(prefix="pydoc-", ignore_cleanup_errors=True) as folder:
        home, job, results = (Path(folder) / name for name in ("home", "job.json", "results.jsonl"))
        home.mkdir()
        job.write_text(
            json.dumps({"modules": modules, "folders": folders, "seconds": seconds}), "utf-8"
        )
        # The group also ends processes that the modules started and left running.
        with (
            hold_group(
                [sys.executable, *_FLAGS, pydoc_child.__file__, str(job), str(results)],
                cwd=home,
                env={"HOME": str(home), "TMPDIR": str(home), "PATH": os.defpath, "TZ": "UTC"}
                | {"LANG": "C.UTF-8", "PYTHONHASHSEED": "0", "TERM": "dumb"},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            ) as child,
            # The child ends itself if a module is late, unless the module prevents that.
            contextlib.suppress(subprocess.TimeoutExpired),
        ):
            child.wait(timeout=seconds * len(modules) + 10)
        if not results.exists():
            return [], False
        late = results.with_name("results.jsonl.late")
        # A last line without a newline was incomplete when the process died.
        return results.read_text("utf-8").split("\n")[
            :-1
        ], late.exists() and late.stat().st_size > 0


def _parse_outcomes(lines: Iterable[str], late: bool) -> Iterator[Article | Skipped]:
    begun: str | None = None
    for line in lines:
        entry = json.loads(line)
        if "begun" in entry:
            begun = entry["begun"]
        else:
            begun = None
            yield _parse_outcome(entry)
    if begun is not None:
        yield Skipped(begun, "too_slow" if late else "killed_the_interpreter")


def _parse_outcome(entry: dict[str, str]) -> Article | Skipped:
    name = entry["module"]
    if "error" in entry:
        return Skipped(name, f"raised_{entry['error']}")
    if len(entry["html"]) > _LARGEST:
        return Skipped(name, "too_large")
    path = f"python/library/{name}.html"
    return Article(path, entry["title"], "Python library", (Markup(entry["html"]),))


_FEWEST_WORDS = 120  # Minimum words of prose, as for other pages.


def make_topic_pages() -> list[Article]:
    """Return a page for each topic with enough prose, sorted; empty if not installed."""
    file = Path(sysconfig.get_path("stdlib")) / "pydoc_data" / "topics.py"
    if not file.exists():
        return []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tree = ast.parse(file.read_bytes())
    pages = []
    for name, text in sorted(_find_texts(tree).items()):
        path = f"python/reference/{name.lower()}.html"
        page = Article(path, f"Language reference: {name}", "Reference", read_docstring(text))
        if count_prose_words(page) >= _FEWEST_WORDS:
            pages.append(page)
    return pages


def _find_texts(tree: ast.Module) -> dict[str, str]:
    for node in tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "topics":
            found = ast.literal_eval(node.value)
            return {str(name): str(text) for name, text in found.items()}
    return {}
