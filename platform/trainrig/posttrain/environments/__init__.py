"""Environments of several turns, one file a kind, one union."""

from typing import Annotated

from pydantic import Field

from trainrig.posttrain.environments.calculator import Calculator
from trainrig.posttrain.environments.python_environment import PythonEnvironment

EnvironmentSettings = Annotated[Calculator | PythonEnvironment, Field(discriminator="kind")]
"""The environment of a run file, told apart by `kind`."""

__all__ = ["Calculator", "EnvironmentSettings", "PythonEnvironment"]
