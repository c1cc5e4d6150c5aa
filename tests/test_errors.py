import inspect
from pathlib import Path

import pytest

from trainrig import errors
from trainrig.errors import (
    ClusterError,
    ConfigError,
    DataError,
    InputError,
    OutputTaken,
    TrainrigError,
    Unfinished,
)


@pytest.mark.parametrize(
    ("kind", "exit_code"),
    [
        (ConfigError, 2),
        (DataError, 2),
        (OutputTaken, 2),
        (InputError, 2),
        (ClusterError, 1),
        (TrainrigError, 1),
        (Unfinished, 75),
    ],
)
def test_each_kind_of_failure_ends_the_process_with_its_code(
    kind: type[TrainrigError], exit_code: int
) -> None:
    assert kind("why").exit_code == exit_code
    assert str(kind("why")) == "why"


def test_user_errors_differ_from_cluster_errors() -> None:
    assert all(issubclass(kind, InputError) for kind in (ConfigError, DataError, OutputTaken))
    assert not issubclass(ClusterError, InputError)
    assert not issubclass(Unfinished, InputError)


def test_the_tree_at_the_top_of_the_file_names_every_kind() -> None:
    kinds = [name for name, _ in inspect.getmembers(errors, inspect.isclass)]
    tree = (inspect.getdoc(errors) or "").partition("Anything else")[0]
    assert Path(errors.__file__ or "").name == "errors.py"
    assert all(kind in tree for kind in kinds)
