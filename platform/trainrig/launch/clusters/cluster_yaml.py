"""Reader of cluster files that keeps line numbers.

YAML is read as Ray and Kubernetes read it, by PyYAML's composer, which keeps positions. The reader
is stricter than Ray and Kubernetes. A duplicate key is a problem, where they silently take the
last. So are an anchor inside itself, and a file whose aliases expand to far more than was written.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import yaml

from trainrig.config.run_file_text import Location

# Values of one file, with aliases counted each time; the shipped files have about 500.
MOST_VALUES = 50_000
DEEPEST = 60  # levels; KubeRay's pods have about 12
MERGE = "tag:yaml.org,2002:merge"
PLAIN = ("tag:yaml.org,2002:map", "tag:yaml.org,2002:seq")
CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")

Found = tuple[Location, str]
"""Location as a path of keys, and a message with the mistake and what would work."""


@dataclass(frozen=True, order=True)
class Problem:
    """A mistake in a cluster file."""

    path: str
    line: int  # counted from 1
    where: str  # the path of the key; empty for the whole file
    what: str

    def __str__(self) -> str:
        where = f"{self.where}: " if self.where else ""
        said = f"{self.path}:{self.line}: {where}{self.what}"
        # keys may hold line breaks and control characters of terminals
        return CONTROL.sub("?", said)


@dataclass(frozen=True)
class YamlDocument:
    """One YAML document: its data, and the line of each location."""

    path: str
    data: Any
    lines: dict[Location, int] = field(repr=False)

    def find_line(self, location: Location) -> int:
        """Return the line of the key or entry at `location`, or of its nearest parent."""
        while location and location not in self.lines:
            location = location[:-1]
        return self.lines.get(location, 1)

    def locate_problem(self, found: Found) -> Problem:
        """Turn a finding into a problem with its line."""
        location, what = found
        return Problem(self.path, self.find_line(location), _format_location(location), what)


def _format_location(location: Location) -> str:
    """Format `("labels", "a.b/c")` as `labels["a.b/c"]`, as keys of Kubernetes contain dots."""
    parts = []
    for part in location:
        if isinstance(part, int):
            parts.append(f"[{part}]")
        elif "." in part or " " in part:
            parts.append(f'["{part}"]')
        else:
            parts.append(f".{part}")
    return "".join(parts).lstrip(".")


def read_documents(text: str, path: str) -> tuple[list[YamlDocument], list[Problem]]:
    """Read all documents of `text`, and its problems as YAML; without documents only problems."""
    try:
        nodes = [node for node in yaml.compose_all(text, yaml.SafeLoader) if node is not None]
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        what = f"not YAML: {error.problem or error.context}"
        return [], [Problem(path, mark.line + 1 if mark else 1, "", what)]
    except yaml.YAMLError as error:  # the text has characters that YAML does not allow
        return [], [Problem(path, 1, "", f"not YAML: {str(error).splitlines()[0]}")]
    if not nodes:
        return [], [Problem(path, 1, "", "empty file; a cluster file is a mapping of keys")]
    documents = []
    problems = []
    for node in nodes:
        reader = _Reader(path)
        try:
            data = reader.read_value(node, ())
        except _TooMuch as error:
            return [], [Problem(path, error.line, "", str(error))]
        documents.append(YamlDocument(path, data, reader.lines))
        problems += reader.problems
    return documents, problems


class _TooMuch(Exception):
    def __init__(self, node: yaml.Node, what: str) -> None:
        super().__init__(what)
        self.line = node.start_mark.line + 1


class _Reader:
    """Reader of a node's values, and of the lines on which they are."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.lines: dict[Location, int] = {}
        self.problems: list[Problem] = []
        self._scalars = yaml.constructor.SafeConstructor()
        self._values = 0

    def read_value(self, node: yaml.Node, location: Location) -> Any:
        self._values += 1
        if self._values > MOST_VALUES:
            raise _TooMuch(node, f"expands to more than {MOST_VALUES:,} values; use fewer aliases")
        if len(location) > DEEPEST:
            raise _TooMuch(node, f"more than {DEEPEST} levels deep, or an anchor inside itself")
        self.lines.setdefault(location, node.start_mark.line + 1)
        if not isinstance(node, yaml.ScalarNode) and node.tag not in PLAIN:
            self._add_problem(node, location, f"{node.tag}: only plain values are allowed")
        if isinstance(node, yaml.MappingNode):
            return self._read_mapping(node, location)
        if isinstance(node, yaml.SequenceNode):
            return [self.read_value(item, (*location, at)) for at, item in enumerate(node.value)]
        try:
            return self._scalars.construct_object(node)
        except (yaml.YAMLError, ValueError) as error:
            reason = getattr(error, "problem", None) or str(error)
            self._add_problem(node, location, f"{node.value!r} cannot be read: {reason}")
            return node.value

    def _read_mapping(self, node: yaml.MappingNode, location: Location) -> dict[str, Any]:
        found: dict[str, Any] = {}
        merged: dict[str, Any] = {}
        own: dict[str, int] = {}  # line of each key of this mapping
        for key_node, value_node in node.value:
            if key_node.tag == MERGE:
                for below in self._read_merged(value_node, location):
                    merged = below | merged  # the first named of two wins
                continue
            key = self._read_key(key_node, location)
            line = key_node.start_mark.line + 1
            if key in own:
                what = (
                    f"`{key}` occurs twice (first in line {own[key]}), and one value is lost; "
                    "keep one"
                )
                self._add_problem(key_node, (*location, key), what)
            own[key] = line
            self.lines[(*location, key)] = line
            found[key] = self.read_value(value_node, (*location, key))
        return merged | found

    def _read_merged(self, node: yaml.Node, location: Location) -> Iterator[dict[str, Any]]:
        sources = node.value if isinstance(node, yaml.SequenceNode) else [node]
        for source in sources:
            value = self.read_value(source, location)
            if isinstance(value, dict):
                yield value
            else:
                self._add_problem(source, location, "`<<` takes a mapping (an alias of one)")

    def _read_key(self, node: yaml.Node, location: Location) -> str:
        if not isinstance(node, yaml.ScalarNode):
            self._add_problem(node, location, "a key is not a string; write plain keys")
            return "?"
        if node.tag != "tag:yaml.org,2002:str":
            read = self._scalars.construct_object(node)
            self._add_problem(node, location, f"the key {node.value} is read as {read!r}; quote it")
        return str(node.value)

    def _add_problem(self, node: yaml.Node, location: Location, what: str) -> None:
        line = node.start_mark.line + 1
        self.problems.append(Problem(self.path, line, _format_location(location), what))


def ensure_table(value: Any) -> dict[str, Any]:
    """Return `value` if it is a mapping, else an empty one; the schema check reports that."""
    return value if isinstance(value, dict) else {}


def ensure_list(value: Any) -> list[Any]:
    """Return `value` if it is a list, else an empty one; the schema check reports that."""
    return value if isinstance(value, list) else []


def at(data: Any, *keys: str | int) -> Any:
    """Return the value at a path of keys; None if there is none."""
    for key in keys:
        if isinstance(data, dict):
            data = data.get(str(key))
        elif isinstance(data, list) and isinstance(key, int) and key < len(data):
            data = data[key]
        else:
            return None
    return data
