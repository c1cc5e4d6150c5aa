"""Multi-turn environments: one module for each kind, and the union of their settings."""

from typing import Annotated

from pydantic import Field

from trainrig.posttrain.environments.calculator import Calculator
from trainrig.posttrain.environments.python_environment import PythonEnvironment

EnvironmentSettings = Annotated[Calculator | PythonEnvironment, Field(discriminator="kind")]
"""Settings of `[environment]` in a run file; `kind` selects the class."""

__all__ = ["Calculator", "EnvironmentSettings", "PythonEnvironment"]
