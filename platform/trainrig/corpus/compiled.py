"""Functions compiled by numba when first called, and kept on disk for the processes after.

What a function calls, and each constant that it uses, is compiled into it, but numba watches the
contents of the function's own file alone. So what is kept lies in a folder that is named by the
contents of that file and of all files of trainrig that it imports, one through the other: after a
change to any of them, by hand or by an upgrade, it is compiled anew. Where the package lies does
not matter: each job that is submitted to a cluster has it in a folder of its own, and would compile
for a minute.

numba itself is imported with the first call: it takes a second, for which nobody should wait who
only reads a run file.
"""

import functools
import hashlib
import os
import re
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from types import FunctionType
from typing import Any, TypeVar, cast

_Function = TypeVar("_Function", bound=Callable[..., object])

_making = threading.RLock()  # the locator is named in a setting that all of numba shares
_ROOT = Path(__file__).parents[1]
_IMPORT = re.compile(r"^from (trainrig[\w.]*) import (?:\(([^)]*)\)|(.*))", re.MULTILINE)


def compile_nogil(function: _Function) -> _Function:
    """`function`, as machine code without Python's lock. Integers wrap round, as numpy's do."""
    return cast(_Function, Compiled(function))


class Compiled:
    """A function that numba is told of when it is first called, or used by one that is."""

    def __init__(self, function: Callable[..., object]) -> None:
        self._function = function
        functools.update_wrapper(self, function)

    def __call__(self, *args: object) -> object:
        """What the function gives."""
        return self.dispatcher(*args)

    @functools.cached_property
    def dispatcher(self) -> Any:
        """The function as numba knows it."""
        numba = _load_numba()
        settings: Any = numba.config  # its names are not in its stubs
        with _making:
            before = settings.CACHE_LOCATOR_CLASSES
            settings.CACHE_LOCATOR_CLASSES = f"{__name__}.{Locator.__name__}"
            try:
                return numba.njit(cache=True, nogil=True)(self._function)
            finally:
                settings.CACHE_LOCATOR_CLASSES = before

    def __reduce__(self) -> str:
        return self._function.__qualname__  # found again by its name, as functions are


@functools.cache
def _load_numba() -> Any:
    """The library, told what a function means that calls another of ours."""
    import numba
    from numba.extending import typeof_impl

    @typeof_impl.register(Compiled)
    def _(function: Compiled, _: Any) -> Any:
        return numba.types.Dispatcher(function.dispatcher)

    return numba


class Locator:
    """Tells numba where it keeps one function; named to it, as `numba.core.caching` wants."""

    def __init__(self, file: Path, line: int) -> None:
        """The function that begins in `file` at `line`."""
        self._digest, self._line = _compute_digest(file), line
        self._py_file = str(file)  # numba reads it to warn of what it cannot keep

    @classmethod
    def from_function(cls, py_func: FunctionType, py_file: str) -> "Locator":
        """The locator of one function."""
        return cls(Path(py_file), py_func.__code__.co_firstlineno)

    def ensure_cache_path(self) -> None:
        """Make the folder. Called before each function that is written."""
        Path(self.get_cache_path()).mkdir(parents=True, exist_ok=True)

    def get_cache_path(self) -> str:
        """The folder of all functions of the file."""
        return str(_find_folder() / self._digest)

    def get_source_stamp(self) -> str:
        """What, once it differs, makes numba compile anew."""
        return self._digest

    def get_disambiguator(self) -> str:
        """What tells functions of one name and file apart."""
        return str(self._line)


@functools.cache
def _find_folder() -> Path:
    """Where folders of compiled functions may be made: the user's cache, if it is writable."""
    settings: Any = _load_numba().config
    if settings.CACHE_DIR:
        return Path(settings.CACHE_DIR)
    home = Path(os.environ.get("HOME", ""), ".cache")
    cache = Path(os.environ.get("XDG_CACHE_HOME") or home)
    beside = _ROOT / "__pycache__" / "compiled"
    # Whoever has no home has a relative one.
    for place in (cache / "trainrig" / "compiled", beside) if cache.is_absolute() else (beside,):
        try:
            place.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=place):
                return place
        except OSError:  # another's, or a file system that is only read
            continue
    return Path(tempfile.mkdtemp(prefix="trainrig-compiled-"))  # for this process alone


@functools.cache
def _compute_digest(file: Path) -> str:
    """Of what `file` and the files of trainrig that it imports are called and hold: what was
    compiled names its module."""
    found, waiting = {file}, [file]
    for each in waiting:  # grows while it is walked
        new = _find_imports(each) - found
        found |= new
        waiting += sorted(new)
    contents = (
        hashlib.sha256(f"{each.relative_to(_ROOT)}\n{_read_source(each)}".encode()).hexdigest()
        for each in sorted(found)
    )
    return hashlib.sha256("".join(contents).encode()).hexdigest()[:16]


@functools.cache
def _find_imports(file: Path) -> frozenset[Path]:
    """The files of trainrig that `file` names in its imports."""
    found = set[Path]()
    for module, bracketed, plain in _IMPORT.findall(_read_source(file)):
        folder = _ROOT.parent.joinpath(*module.split("."))
        names = re.findall(r"^\s*(\w+)", (bracketed or plain).replace(",", "\n"), re.MULTILINE)
        # Of a package, its own file and those of its modules that are named.
        places = [folder.with_suffix(".py"), folder / "__init__.py"]
        places += [folder / f"{name}.py" for name in names]
        found.update(place for place in places if place.is_file())
    return frozenset(found)


@functools.cache
def _read_source(file: Path) -> str:
    return file.read_text(encoding="utf-8")
