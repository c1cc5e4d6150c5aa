"""The code's words are the words of its field: each thing has one name, and no two share one."""

import ast
import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "platform" / "trainrig"
EXTRAS = PACKAGE.with_name("trainrig_contrib")
SOURCES = sorted([*PACKAGE.rglob("*.py"), *EXTRAS.rglob("*.py")])
MOST_MODULES = 16  # modules in a folder, without its __init__
ONE_FILE_EACH = {"models/families"}  # a list of kinds, each in a file of its own

# Former metaphors for which the field has a word.
RETIRED = {
    "attendant": "supervisor",
    "attending": "supervising",
    "beat": "heartbeat",
    "beats": "heartbeats",
    "bell": "condition",
    "conductor": "train controller",
    "crew": "worker group",
    "crews": "worker groups",
    "cutting": "span removal",
    "door": "endpoint",
    "doors": "endpoints",
    "doubts": "fit warnings",
    "echo": "cluster message",
    "echoes": "cluster messages",
    "fate": "decision",
    "fates": "decisions",
    "guest": "remote document",
    "guests": "remote documents",
    "judging": "rule verdicts",
    "keeper": "worker agent",
    "keepers": "worker agents",
    "knock": "probe",
    "meeting": "rendezvous endpoint",
    "passage": "source stage",
    "passages": "source stages",
    "patience": "policy, or timeout",
    "predecessor": "previous supervisor",
    "predecessors": "previous supervisors",
    "reckon": "estimate",
    "reckoned": "estimated",
    "shelf": "split index",
    "shelves": "split indexes",
    "spares": "warm actors",
    "speaker": "generator",
    "staying": "surviving",
    "story": "results",
    "storyboard": "report page",
    "stretch": "partition",
    "stretches": "partitions",
    "takeover": "previous supervisor",
    "telling": "collected results",
    "victim": "target",
    "victims": "failed pages",
    "wish": "request",
    "wishes": "requests",
}
# (word, file): the reason why it stays.
ALLOWED: dict[tuple[str, str], str] = {
    ("shelf", "corpus/dedup/verified_pairs.py"): "a column of files that curations have left",
    ("patience", "train/evaluations.py"): "of early stopping, it is the field's own word",
}
# Each of these is the `kind` of two unions of run files, which users write. `Language` is the kind
# of a filter and a public operator, which measures what the filter bounds.
SHARED_KINDS = {"Grid", "Kaplan", "Language"}
CHART_PARTS = "report/plots.py"  # its classes are named after the parts of charts, such as `Axis`


def find_name(source: Path) -> str:
    return source.relative_to(PACKAGE if PACKAGE in source.parents else EXTRAS).as_posix()


def split_name(name: str) -> set[str]:
    """Return the words in the name of an identifier, an event, a metric or a file."""
    spaced = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name)
    return set(re.split(r"[^a-z]+", spaced.lower()))


def list_names(tree: ast.Module) -> Iterator[str]:
    """Yield the names that a module binds, and those of events, metrics and formats.

    The latter are the first argument and the keywords of `record`, and keys of dicts.
    """
    for node in ast.walk(tree):
        match node:
            case ast.ClassDef() | ast.FunctionDef() | ast.AsyncFunctionDef():
                yield node.name
            case ast.arg():
                yield node.arg
            case ast.Name(ctx=ast.Store()):
                yield node.id
            case ast.Attribute(ctx=ast.Store()):
                yield node.attr
            case ast.Call(func=ast.Attribute(attr="record"), args=[ast.Constant(str(event)), *_]):
                yield event
                yield from (keyword.arg for keyword in node.keywords if keyword.arg)
            case ast.Dict():
                keys = (key.value for key in node.keys if isinstance(key, ast.Constant))
                yield from (key for key in keys if isinstance(key, str) and key.isidentifier())


@pytest.mark.parametrize("source", SOURCES, ids=find_name)
def test_no_name_is_a_metaphor_that_the_field_has_a_word_for(source: Path) -> None:
    names = [
        *list_names(ast.parse(source.read_text(encoding="utf-8"))),
        *Path(find_name(source)).parts,
    ]
    found = {(word, name) for name in names for word in split_name(name) & RETIRED.keys()}
    found = {(word, name) for word, name in found if (word, find_name(source)) not in ALLOWED}
    assert not found, [f"{name}: {word} → {RETIRED[word]}" for word, name in sorted(found)]


def test_a_retired_word_is_found_wherever_it_is_a_name() -> None:
    program = """
class CrewOf:
    def keep(self, keeper_number):
        self.wish = 1
        shelf, *rest = folder.record("story_begun", guests=2), {"victim": 3}
"""
    found = {word for name in list_names(ast.parse(program)) for word in split_name(name)}
    assert {"crew", "keeper", "wish", "shelf", "story", "guests", "victim"} <= found


def test_every_allowed_word_exists() -> None:
    for word, file in ALLOWED:
        assert re.search(word, (PACKAGE / file).read_text(encoding="utf-8")), (word, file)


@pytest.mark.slow
def test_no_two_public_classes_share_a_name() -> None:
    places = defaultdict(list)
    for source in SOURCES:
        if find_name(source) == CHART_PARTS:
            continue
        for node in ast.parse(source.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].append(find_name(source))
    shared = {name: found for name, found in places.items() if len(found) > 1}
    assert set(shared) == SHARED_KINDS, shared


def test_a_module_that_makes_a_page_says_in_its_name_of_what() -> None:
    assert [find_name(source) for source in SOURCES if source.stem == "page"] == []


def test_no_folder_holds_more_modules_than_one_can_keep_in_mind() -> None:
    counts = Counter(source.parent for source in SOURCES if source.name != "__init__.py")
    full = {
        name: count
        for folder, count in counts.items()
        if count > MOST_MODULES and (name := find_name(folder)) not in ONE_FILE_EACH
    }
    assert not full
