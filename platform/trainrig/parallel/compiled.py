"""Compiling each layer: fewer passes over memory, for a slow first step.

By `torch.compile` (Ansel et al. 2024, doi 10.1145/3620665.3640366), one graph that all layers of a
model share. What it computes is close to what the plain layers do, not the same bits; between
workers and restarts it is the same bits, because nothing is timed to choose between kernels and
every graph is a function of the shapes alone.
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
from trainrig.hardware import has_triton

if TYPE_CHECKING:
    from torch import nn

# torch's own choice, in its order.
CPP_COMPILERS = ("g++", "clang++")


class Compile(Settings):
    """How layers are compiled.

    The first step then takes 10 s or more, and so does the first after a restart on a machine whose
    `cache` is empty: of no use to runs of a few hundred steps.
    """

    # Compiler: inductor, or aot_eager, which runs the same graphs by torch's own kernels, to find
    # out whose fault an error is.
    backend: Literal["inductor", "aot_eager"] = "inductor"
    # Whether one graph serves rows of every length: for fine-tuning, whose micro-batches differ in
    # length; otherwise each shape has a graph of its own.
    dynamic: bool = False
    shapes: int = Field(default=16, ge=1)  # most shapes to compile graphs for
    # Folder of compiled code, so that a restart finds it; None: torch's own
    # (TORCHINDUCTOR_CACHE_DIR, or below the temporary folder).
    cache: Annotated[str | None, CACHE] = None

    @property
    def in_words(self) -> str:
        """What of it decides which kernels there are."""
        return f"{self.backend}, {'any length' if self.dynamic else 'by shape'}"


def check_compiler(settings: Compile | Literal[False] | None) -> None:
    """Raise ConfigError if this machine lacks what compiling needs, before a worker finds out."""
    if not settings or settings.backend != "inductor":
        return
    named = os.environ.get("CXX")
    wanted = (named,) if named else CPP_COMPILERS
    if not any(shutil.which(each) for each in wanted):
        raise ConfigError(
            f"training.compile: no C++ compiler on this machine (looked for {' and '.join(wanted)})"
            "; install one, name it in CXX, or leave the table out"
        )
    header = Path(sysconfig.get_path("include")) / "Python.h"
    if not header.exists():
        raise ConfigError(
            f"training.compile: {header} is not there, and compiled code needs it; install the "
            "development files of this Python, or leave the table out"
        )


def can_compile() -> bool:
    """Whether this machine has what compiling layers for its GPU needs."""
    try:
        check_compiler(Compile())
    except ConfigError:
        return False
    return has_triton()


def compile_layers(
    layers: "Sequence[nn.Module]", settings: Compile | Literal[False] | None
) -> None:
    """Compile each of `layers` when it is first called, in place, names unchanged.

    To be called after `recompute`, so that what is computed again is compiled too, and before
    `shard`, whose gathering of weights stays outside of the graphs.
    """
    if not settings:
        return
    # Here, as they take seconds, for which whoever compiles nothing should not have to wait.
    import torch
    import torch._dynamo
    import torch._inductor

    if settings.cache:
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = settings.cache
    # No kernel is chosen by timing it: ranks, whose times differ, would choose differently.
    torch._inductor.config.deterministic = True
    torch._dynamo.config.recompile_limit = settings.shapes
    for layer in layers:
        # Whole or not at all (`fullgraph`): left alone, torch would run plain layers for shapes
        # beyond the limit, and which come up first on a rank depends on how many ranks there are.
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
            f"training.compile: rows of more than {shapes} shapes came up; set dynamic = true for "
            "one graph for all of them, or raise training.compile.shapes"
        ) from None
