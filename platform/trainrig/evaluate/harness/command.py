"""The harness's own command line, in this process, with our model known to it."""

import sys
from collections.abc import Sequence
from unittest import mock

from trainrig.errors import ConfigError


def run_harness(arguments: Sequence[str]) -> None:
    """Run `lm-eval ARGUMENTS`. Raises ConfigError where it is not installed."""
    try:
        from lm_eval.__main__ import cli_evaluate
    except ImportError as error:
        raise ConfigError(
            f"lm-eval: {error}; `pip install 'trainrig[lm-eval]'` brings lm-evaluation-harness"
        ) from None
    from trainrig.evaluate.harness import model  # noqa: F401 - makes the model known by its name

    with mock.patch.object(sys, "argv", ["lm-eval", *arguments]):
        cli_evaluate()
