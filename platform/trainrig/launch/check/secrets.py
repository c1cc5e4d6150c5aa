"""Search for secrets in a cluster file, which is often shared and kept in repositories."""

import re
from collections.abc import Iterator
from typing import Any

from trainrig.config.run_file_text import Location
from trainrig.launch.check.document import Found
from trainrig.launch.redaction import NAMES, SHORTEST

# Forms of well-known secrets: the id of an AWS key, a private key, a GitHub, Hugging Face or Google
# key, a JSON web token.
FORMS = re.compile(
    r"\b(AKIA|ASIA)[A-Z0-9]{16}\b|-----BEGIN [A-Z ]*PRIVATE KEY|\bgh[pousr]_[A-Za-z0-9]{36}"
    r"|\bhf_[A-Za-z0-9]{30}|\bAIza[\w-]{35}|\beyJ[\w-]{10,}\.eyJ[\w-]{10,}\."
)
# NAME=value within a command or an option; `$NAME` and `$(…)` are resolved where they run.
ASSIGNED = re.compile(r"(?<!\w)(?=([A-Za-z]\w*)=[\"']?([^\s\"'$][^\s\"']*))")
INSTEAD = "keep it in a file named in file_mounts, in a Secret, or in the machine's IAM profile"


def find_secrets(data: Any, location: Location = ()) -> Iterator[Found]:
    """Yield the location of every text in `data` that contains a secret, without the secret."""
    if isinstance(data, dict):
        yield from _find_variable_secret(data, location)
        for key, value in data.items():
            yield from find_secrets(value, (*location, key))
    elif isinstance(data, list):
        for index, value in enumerate(data):
            yield from find_secrets(value, (*location, index))
    elif isinstance(data, str):
        names = [name for name, value in ASSIGNED.findall(data) if _is_secret(name, value)]
        if names:
            yield location, f"gives the value of {names[0]} in the file; {INSTEAD}"
        elif FORMS.search(data):
            yield location, f"looks like a secret; {INSTEAD}"


def _find_variable_secret(data: dict[str, Any], location: Location) -> Iterator[Found]:
    """Find a secret in `{name: TOKEN, value: …}`, an environment variable in Kubernetes."""
    name = data.get("name")
    value = data.get("value")
    if isinstance(name, str) and isinstance(value, str) and _is_secret(name, value):
        yield (*location, "value"), f"gives the value of {name} in the file; {INSTEAD}"


def _is_secret(name: str, value: str) -> bool:
    path = value.startswith(("/", "~", "./"))  # the path of a file with the secret is allowed
    return bool(NAMES.search(name)) and len(value) >= SHORTEST and not path
