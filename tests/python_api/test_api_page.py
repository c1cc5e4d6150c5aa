import ast
import inspect
import re
from pathlib import Path

import trainrig
from trainrig.python_api.api_page import PAGE, build_api_page

ROOT = Path(__file__).parents[2]


def test_the_page_is_current_and_has_every_name() -> None:
    page = build_api_page()
    assert (ROOT / PAGE).read_text(encoding="utf-8") == page, "run `make docs`"
    described = re.findall(r"^### trainrig\.(\w+)$", page, re.MULTILINE)
    assert sorted(described) == sorted(set(trainrig.__all__) - {"__version__", "data"})
    steps = re.findall(r"^### trainrig\.data\.(\w+)$", page, re.MULTILINE)
    assert sorted(steps) == sorted(trainrig.data.__all__)


def test_every_function_has_an_example_that_parses() -> None:
    page = build_api_page()
    for section in re.split(r"^### ", page, flags=re.MULTILINE)[1:]:
        name = section.partition("\n")[0].removeprefix("trainrig.")
        if name.rpartition(".")[2][0].islower():
            example = re.findall(r"```python\n(.*?)```", section, re.DOTALL)[1]
            assert f"trainrig.{name}(" in example
            ast.parse(example)


def test_signatures_are_those_that_python_sees() -> None:
    page = build_api_page()
    for name in ("curate", "fit", "load"):
        head = f"### trainrig.{name}\n\n```python\ntrainrig.{name}("
        block = page.partition(head)[2].partition("\n```")[0]
        found = ast.parse(f"def f({block}: ...").body[0]
        assert isinstance(found, ast.FunctionDef)
        arguments = found.args
        names = [a.arg for a in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]
        seen = inspect.signature(getattr(trainrig, name)).parameters.values()
        assert names == [p.name for p in seen if p.kind is not p.VAR_KEYWORD]
