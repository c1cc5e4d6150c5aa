"""Compiles functions by numba at their first call, and caches them on disk.

Functions that a function calls, and constants that it uses, are compiled into it, but numba's cache
checks only the contents of the function's own file. So the cache is in a folder named by a digest
of that file and of all trainrig files that it imports, directly or indirectly. After a change to
any of them the function is compiled again. The digest does not depend on where the package is
installed: each job submitted to a cluster has its own folder, and would otherwise compile for a
minute.

numba itself is imported at the first call, because that takes a second, which commands that only
read a run file should not spend.
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

_making = threading.RLock()  # serialises changes of a setting that is global to numba
_ROOT = Path(__file__).parents[1]
_IMPORT = re.compile(r"^from (trainrig[\w.]*) import (?:\(([^)]*)\)|(.*))", re.MULTILINE)


def compile_nogil(function: _Function) -> _Function:
    """Compile `function` to machine code that releases the GIL; integers wrap as numpy's do."""
    return cast(_Function, Compiled(function))


def compile_kernel(function: _Function) -> _Function:
    """Compile a function that creates no array, as `compile_nogil` does.

    numba counts no references in such a function, so it compiles in less time and runs faster. All
    compiled functions that it calls must be of the same kind.
    """
    return cast(_Function, Compiled(function, allocates=False))


class Compiled:
    """A function that numba compiles when it or a compiled caller is first called."""

    def __init__(self, function: Callable[..., object], allocates: bool = True) -> None:
        self._function = function
        self._allocates = allocates
        functools.update_wrapper(self, function)

    def __call__(self, *args: object) -> object:
        """Call the compiled function."""
        return self.dispatcher(*args)

    @functools.cached_property
    def dispatcher(self) -> Any:
        """The numba dispatcher of the function, for calls from Python."""
        return self._dispatch(self._function)

    @functools.cached_property
    def inner(self) -> Any:
        """The numba dispatcher for calls from compiled functions.

        It lacks the code that converts Python's objects, which is slow to compile.
        """
        function = self._function
        copy = FunctionType(
            function.__code__,
            function.__globals__,
            function.__name__,
            function.__defaults__,
            function.__closure__,
        )
        copy.__qualname__ = f"{function.__qualname__}.inner"  # names its file in the cache
        copy.__module__ = function.__module__
        return self._dispatch(copy, no_cpython_wrapper=True, no_cfunc_wrapper=True)

    def _dispatch(self, function: Callable[..., object], **options: bool) -> Any:
        numba = _load_numba()
        settings: Any = numba.config  # the stubs lack the names of its settings
        with _making:
            before = settings.CACHE_LOCATOR_CLASSES
            settings.CACHE_LOCATOR_CLASSES = f"{__name__}.{Locator.__name__}"
            try:
                # `_nrt` is numba's runtime, which counts the references to arrays.
                return numba.njit(cache=True, nogil=True, _nrt=self._allocates, **options)(function)
            finally:
                settings.CACHE_LOCATOR_CLASSES = before

    def __reduce__(self) -> str:
        return self._function.__qualname__  # pickled by name, as functions are


@functools.cache
def _load_numba() -> Any:
    """Load numba and register the type of compiled functions that call each other."""
    import numba
    from numba.extending import models, register_model, typeof_impl

    class Inner(numba.types.Dispatcher):
        """The type of a compiled function in a compiled caller.

        numba itself would compile a function anew for each constant that a caller passes.
        """

        def get_call_type(self, context: Any, args: Any, kws: Any) -> Any:
            widen: Any = numba.types.unliteral
            plain = tuple(widen(arg) for arg in args)
            named = {name: widen(arg) for name, arg in kws.items()}
            return super().get_call_type(context, plain, named)

    register_model(Inner)(models.OpaqueModel)

    @typeof_impl.register(Compiled)
    def _(function: Compiled, _: Any) -> Any:
        return Inner(function.inner)

    return numba


class Locator:
    """Tells numba where to cache one function, by the interface of `numba.core.caching`."""

    def __init__(self, file: Path, line: int) -> None:
        """Locate the function that begins in `file` at `line`."""
        self._digest = _compute_digest(file)
        self._line = line
        self._py_file = str(file)  # numba reads it for warnings about uncacheable functions

    @classmethod
    def from_function(cls, py_func: FunctionType, py_file: str) -> "Locator":
        """Return the locator of one function."""
        return cls(Path(py_file), py_func.__code__.co_firstlineno)

    def ensure_cache_path(self) -> None:
        """Create the folder; numba calls this before it writes a function."""
        Path(self.get_cache_path()).mkdir(parents=True, exist_ok=True)

    def get_cache_path(self) -> str:
        """Return the folder of all cached functions of the file."""
        return str(_find_folder() / self._digest)

    def get_source_stamp(self) -> str:
        """Return the stamp whose change makes numba compile again."""
        return self._digest

    def get_disambiguator(self) -> str:
        """Return what distinguishes functions of the same name in one file: the line."""
        return str(self._line)


@functools.cache
def _find_folder() -> Path:
    """Return the folder of the cache: the user's, the package's or a temporary one."""
    settings: Any = _load_numba().config
    if settings.CACHE_DIR:
        return Path(settings.CACHE_DIR)
    home = Path(os.environ.get("HOME", ""), ".cache")
    cache = Path(os.environ.get("XDG_CACHE_HOME") or home)
    beside = _ROOT / "__pycache__" / "compiled"
    # Without HOME the path is relative and not used.
    for place in (cache / "trainrig" / "compiled", beside) if cache.is_absolute() else (beside,):
        try:
            place.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=place):
                return place
        except OSError:  # not ours, or a read-only file system
            continue
    return Path(tempfile.mkdtemp(prefix="trainrig-compiled-"))  # used by this process only


@functools.cache
def _compute_digest(file: Path) -> str:
    """Compute a digest of `file` and the trainrig files that it imports, with their names.

    Names count because compiled code contains the name of its module.
    """
    found = {file}
    waiting = [file]
    for path in waiting:  # the list grows during the loop
        new = _find_imports(path) - found
        found |= new
        waiting += sorted(new)
    contents = (
        hashlib.sha256(
            f"{path.relative_to(_ROOT.parent)}\n{_read_source(path)}".encode()
        ).hexdigest()
        for path in sorted(found)
    )
    return hashlib.sha256("".join(contents).encode()).hexdigest()[:16]


@functools.cache
def _find_imports(file: Path) -> frozenset[Path]:
    """Return the trainrig files that `file` imports."""
    found = set[Path]()
    for module, bracketed, plain in _IMPORT.findall(_read_source(file)):
        folder = _ROOT.parent.joinpath(*module.split("."))
        names = re.findall(r"^\s*(\w+)", (bracketed or plain).replace(",", "\n"), re.MULTILINE)
        # For a package: its __init__.py, and those imported names that are modules.
        places = [folder.with_suffix(".py"), folder / "__init__.py"]
        places += [folder / f"{name}.py" for name in names]
        found.update(place for place in places if place.is_file())
    return frozenset(found)


@functools.cache
def _read_source(file: Path) -> str:
    return file.read_text(encoding="utf-8")
