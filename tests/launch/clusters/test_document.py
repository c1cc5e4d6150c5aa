"""YAML with the line of every key: equal to PyYAML's values, or refused."""

from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from trainrig.launch.clusters.cluster_yaml import read_documents

CLUSTER = Path(__file__).parents[3] / "cluster"
KEYS = st.text("abcd", min_size=1, max_size=3)
PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=12,
)


@given(st.dictionaries(KEYS, PLAIN, min_size=1))
def test_documents_equal_pyyamls(data: dict[str, object]) -> None:
    documents, problems = read_documents(yaml.safe_dump(data), "a.yaml")
    assert problems == []
    assert documents[0].data == data


@pytest.mark.parametrize("path", sorted(CLUSTER.rglob("*.yaml")), ids=lambda path: path.stem)
def test_a_shipped_file_equals_pyyamls_result(path: Path) -> None:
    documents, problems = read_documents(path.read_text(), str(path))
    assert problems == []
    assert [document.data for document in documents] == list(yaml.safe_load_all(path.read_text()))


def test_each_key_and_entry_has_its_line() -> None:
    documents, _ = read_documents("a: 1\nb:\n  - x\n  - c: 2\n", "a.yaml")
    (document,) = documents
    assert [document.find_line(at) for at in ((), ("a",), ("b", 1), ("b", 1, "c"))] == [1, 1, 4, 4]
    assert document.find_line(("b", 0, "not", "there")) == 3


def test_an_alias_has_the_line_of_its_anchor() -> None:
    documents, _ = read_documents("a: &x\n  k: 1\nb: *x\nc:\n  <<: *x\n  k: 2\n", "a.yaml")
    (document,) = documents
    assert document.data == {"a": {"k": 1}, "b": {"k": 1}, "c": {"k": 2}}
    assert [document.find_line(at) for at in (("b",), ("b", "k"), ("c", "k"))] == [3, 2, 6]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a: 1\nb: 2\na: 3\n", "a.yaml:3: a: `a` occurs twice (first in line 1)"),
        ("a:\n  - b: 1\n    b: 2\n", "a.yaml:3: a[0].b: `b` occurs twice (first in line 2)"),
        ("a: 1\n\tb: 2\n", "a.yaml:2: not YAML: "),
        ("a: *nowhere\n", "a.yaml:1: not YAML: found undefined alias"),
        ("a: [1, 2\n", "a.yaml:2: not YAML: "),
        ("no: 1\n", "a.yaml:1: the key no is read as False; quote it"),
        ("? [a, b]\n: 1\n", "a.yaml:1: a key is not a string"),
        ("a: !!python/object:os.system {}\n", "a.yaml:1: a: "),
        ("a: 2026-13-45\n", "a.yaml:1: a: '2026-13-45' cannot be read"),
        ("", "a.yaml:1: empty file"),
        ("# nothing\n", "a.yaml:1: empty file"),
        ("a: \x00\n", "a.yaml:1: not YAML: "),
        ("a: &x [*x]\n", "more than 60 levels deep, or an anchor inside itself"),
        ("a: 1\nb:\n  <<: 3\n", "a.yaml:3: b: `<<` takes a mapping"),
    ],
)
def test_errors_have_their_line(text: str, said: str) -> None:
    _, problems = read_documents(text, "a.yaml")
    assert [str(problem) for problem in problems if said in str(problem)], problems


def test_a_file_of_nested_aliases_is_refused_at_once() -> None:
    """Read the billion laughs: each line contains the line before ten times."""
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 12)]
    documents, problems = read_documents("\n".join(lines), "a.yaml")
    assert documents == []
    assert "expands to more than 50,000 values" in str(problems[0])


@given(st.text(max_size=60))
def test_any_text_at_all_is_read_or_refused(text: str) -> None:
    documents, problems = read_documents(text, "a.yaml")
    assert documents or problems
