"""Compilation of each layer with `torch.compile`: faster steps after a slow first one.

`torch.compile` (Ansel et al. 2024, doi 10.1145/3620665.3640366) makes one graph that all layers of
a model share. Its results are close to those of plain layers but not bit-identical. Between workers
and restarts they are bit-identical, because no kernel is chosen by timing and every graph depends
on the shapes alone.
"""

import functools
import os
import shutil
import sysconfig
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field

from trainrig.config import CACHE, Settings
from trainrig.errors import ConfigError
from trainrig.hardware import is_triton_installed

if TYPE_CHECKING:
    from torch import nn


# The compilers that torch looks for, in its order.
CPP_COMPILERS = ("g++", "clang++")


class Compile(Settings):
    """Settings for compiling layers.

    Compilation adds 10 s or more to the first step, and again after a restart on a machine with an
    empty `cache`. It does not pay off in runs of a few hundred steps.
    """

    # Compiler backend: `inductor`, or `aot_eager`, which runs the same graphs with torch's own
    # kernels, to find out which part causes an error.
    backend: Literal["inductor", "aot_eager"] = "inductor"
    # Whether one graph serves rows of every length. Use it for fine-tuning, where the lengths of
    # micro-batches differ; otherwise each shape gets its own graph.
    dynamic: bool = False
    shapes: int = Field(default=16, ge=1)  # maximum number of shapes to compile graphs for
    # Folder for compiled code, which a restart reuses. None: torch's default
    # (TORCHINDUCTOR_CACHE_DIR, or a folder below the temporary folder).
    cache: Annotated[str | None, CACHE] = None

    @property
    def in_words(self) -> str:
        """Text of the settings that decide which kernels are generated."""
        return f"{self.backend}, {'any length' if self.dynamic else 'by shape'}"


def check_compiler(settings: Compile | Literal[False] | None) -> None:
    """Raise ConfigError if this machine lacks the C++ compiler or headers that inductor needs."""
    if not settings or settings.backend != "inductor":
        return
    named = os.environ.get("CXX")
    wanted = (named,) if named else CPP_COMPILERS
    if not any(shutil.which(compiler) for compiler in wanted):
        raise ConfigError(
            "training.compile: this machine has no C++ compiler (looked for "
            f"{' and '.join(wanted)}); install one, set CXX to its name, or remove the table"
        )
    header = Path(sysconfig.get_path("include")) / "Python.h"
    if not header.exists():
        raise ConfigError(
            f"training.compile: compiled code needs {header}, which does not exist; install the "
            "development files of this Python, or remove the table"
        )


def can_compile() -> bool:
    """Return whether this machine can compile layers for its GPU."""
    try:
        check_compiler(Compile())
    except ConfigError:
        return False
    return is_triton_installed()


def compile_layers(
    layers: "Sequence[nn.Module]", settings: Compile | Literal[False] | None
) -> None:
    """Compile each of `layers` at its first call, in place and with unchanged names.

    Call this after `recompute`, so that recomputation is compiled too, and before `shard`, whose
    gathering of weights stays outside the graphs.
    """
    if not settings:
        return
    # Imported here because these modules take seconds to import, which a run without compilation
    # should not pay for.
    import torch
    import torch._dynamo
    import torch._inductor

    if settings.cache:
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = settings.cache
    # Choosing kernels by timing is off: ranks measure different times and would choose differently.
    torch._inductor.config.deterministic = True
    torch._dynamo.config.recompile_limit = settings.shapes
    for layer in layers:
        # `fullgraph` makes torch fail beyond the limit of shapes. By default it would run such
        # shapes uncompiled, and which shapes a rank meets first depends on the number of ranks.
        graph = torch.compile(
            layer.forward, backend=settings.backend, dynamic=settings.dynamic, fullgraph=True
        )
        layer.forward = functools.partial(_run, graph, settings.shapes)


def _run(graph: Callable[..., Any], shapes: int, *args: Any, **kwargs: Any) -> Any:
    from torch._dynamo.exc import FailOnRecompileLimitHit

    try:
        return graph(*args, **kwargs)
    except FailOnRecompileLimitHit:
        raise ConfigError(
            f"training.compile: more than {shapes} shapes of rows occur; set dynamic = true for "
            "one graph for all shapes, or raise training.compile.shapes"
        ) from None
