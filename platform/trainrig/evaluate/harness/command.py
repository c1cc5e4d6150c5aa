"""The command line of lm-evaluation-harness, run in this process with trainrig's model."""

import sys
from collections.abc import Sequence
from unittest import mock

from trainrig.errors import ConfigError


def run_harness(arguments: Sequence[str]) -> None:
    """Run `lm-eval ARGUMENTS`. Raises ConfigError if the harness is not installed."""
    try:
        from lm_eval.__main__ import cli_evaluate
    except ImportError as error:
        raise ConfigError(
            f"lm-eval: {error}; install lm-evaluation-harness with `pip install "
            "'trainrig[lm-eval]'`"
        ) from None
    from trainrig.evaluate.harness import model  # noqa: F401 - registers the model by name

    with mock.patch.object(sys, "argv", ["lm-eval", *arguments]):
        cli_evaluate()
