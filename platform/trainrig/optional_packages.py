"""The command that installs the packages of an extra, for messages.

The name `trainrig` on PyPI is not this project's, so `pip install 'trainrig[wandb]'` would fetch
another package or none.
"""

import re
from importlib import metadata
from pathlib import Path

_REPOSITORY = Path(__file__).parents[2]


def describe_install(extra: str) -> str:
    """Return the pip command that installs `extra`.

    In a clone of the repository, the command installs the extra from there. Elsewhere, it names the
    extra's packages, as the metadata of the installed wheel lists them.
    """
    if (_REPOSITORY / "pyproject.toml").is_file():
        where = "." if Path.cwd() == _REPOSITORY else _REPOSITORY
        return f"pip install -e '{where}[{extra}]'"
    return "pip install " + " ".join(f"'{name}'" for name in list_requirements(extra))


def list_requirements(extra: str) -> list[str]:
    """Return the requirements of `extra`, such as `wandb>=0.20`, from the installed metadata."""
    marker = re.compile(rf"""\s*;\s*extra\s*==\s*['"]{re.escape(extra)}['"]\s*$""")
    found = metadata.requires("trainrig") or []
    return [marker.sub("", requirement) for requirement in found if marker.search(requirement)]
