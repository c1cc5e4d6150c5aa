"""Fixtures of runs supervised by this process, with records on disk or in a bucket."""

import pytest

from trainrig.launch.supervise.run_record import Home


@pytest.fixture(params=["disk", "bucket"])
def home(request, tmp_path):
    """Return a home for records, on disk or in a bucket."""
    path = str(tmp_path / "home")
    return Home.choose(path if request.param == "disk" else request.getfixturevalue("s3"))


@pytest.fixture
def local(tmp_path):
    return Home.choose(str(tmp_path / "home"))


@pytest.fixture
def supervise(tmp_path):
    from support.launch.attended import Attended

    return lambda home, code, **limits: Attended(home, tmp_path, code, **limits)
