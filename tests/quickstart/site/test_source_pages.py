import importlib
import os
import sys

from trainrig.quickstart.site import source_pages
from trainrig.quickstart.site.article import ArticleTable, Code, Heading, Paragraph
from trainrig.quickstart.site.source_pages import (
    Described,
    SourceFile,
    find_package_folders,
    list_package_sources,
    list_standard_sources,
    read_source,
)

PROSE = " ".join(f"Sentence number {n} says something else about the matter." for n in range(30))
MODULE = f'''"""A module.

{PROSE}
"""

class Shelf:
    """Keeps the books in the order of their arrival."""

    def __init__(self, width: int, *, oak: bool = True):
        pass

    def add(self, book, place: int = 0, gently: bool = True, note: str | None = None) -> int:
        """Puts a book on the shelf."""

    def _private(self):
        """Nobody sees this."""

def total(*values):
    """Add up all of the values. Further remarks do not matter."""

def _hidden():
    """Nobody sees this either."""
'''


def write_source(folder, source, name="library/shelf.py"):
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(source)
    return SourceFile(str(path), "library.shelf", "library")


def test_a_module_becomes_a_page_of_its_public_parts(tmp_path):
    article = read_source(write_source(tmp_path, MODULE)).article
    assert (article.path, article.section) == ("library/shelf.html", "library")
    assert article.blocks == (
        Paragraph("A module."),
        Paragraph(PROSE),
        Heading(2, "class Shelf"),
        Paragraph("Keeps the books in the order of their arrival."),
        Heading(3, "add"),
        Code("add(self, book, place: int=0, gently: bool=True, note: str | None=None) -> int"),
        Paragraph("Puts a book on the shelf."),
        ArticleTable(
            ("Parameter", "Type", "Default"),
            (
                ("place", "int", "0"),
                ("gently", "bool", "True"),
                ("note", "str | None", "None"),
            ),
        ),
        Heading(2, "total"),
        Code("total(*values)"),
        Paragraph("Add up all of the values. Further remarks do not matter."),
    )


def test_public_classes_and_functions_are_described_by_their_first_sentence(tmp_path):
    assert read_source(write_source(tmp_path, MODULE)).described == (
        Described(
            "library.shelf.Shelf",
            "library.shelf",
            "Shelf(width: int, *, oak: bool=True)",
            "Keeps the books in the order of their arrival.",
        ),
        Described(
            "library.shelf.total",
            "library.shelf",
            "total(*values)",
            "Add up all of the values.",
        ),
    )


def test_nothing_is_imported(tmp_path, monkeypatch):
    marks = tmp_path / "imported"
    folder = tmp_path / "site-packages"
    write_source(folder, MODULE + f"\nopen({str(marks)!r}, 'w').write('x')\n")
    monkeypatch.syspath_prepend(str(folder))
    (source,) = list_package_sources([str(folder)], seed=0)
    assert read_source(source).article is not None
    assert not marks.exists()
    importlib.import_module("library.shelf")  # an import would have left its mark
    assert marks.exists()


def test_a_file_unsuitable_as_a_page_has_no_article(tmp_path):
    def read(source):
        return read_source(write_source(tmp_path, source)).article

    assert read(f'"""{PROSE}"""\ndef (:') is None
    assert read("x = 1\n" * 500) is None
    assert read('"""' + "- a point of a list, no prose\n" * 100 + '"""') is None
    assert read_source(SourceFile(str(tmp_path / "none.py"), "none", "none")).article is None


def test_invalid_escapes_in_other_peoples_strings_are_passed_over_in_silence(tmp_path, recwarn):
    assert read_source(write_source(tmp_path, f'{MODULE}\nPATTERN = "\\d"')).article is not None
    assert not recwarn.list


def test_a_page_ends_before_it_gets_huge_and_not_with_a_heading(tmp_path):
    classes = "".join(f'\nclass C{n}:\n    """{PROSE}"""\n' for n in range(30))
    article = read_source(write_source(tmp_path, MODULE + classes)).article
    size = sum(map(source_pages._count_characters, article.blocks))
    assert size <= source_pages._PAGE_CHARACTERS
    assert not isinstance(article.blocks[-1], Heading)


def test_only_the_beginning_of_a_long_source_is_read(tmp_path):
    functions = "".join(f'\n\ndef f{n}():\n    """{PROSE}"""\n' for n in range(100))
    source = MODULE + functions + "\n\nthis is no Python\n"
    assert len(source) > source_pages._PARSED
    reading = read_source(write_source(tmp_path, source))
    assert reading.article == read_source(write_source(tmp_path, MODULE + functions)).article


def test_tests_vendored_copies_and_private_modules_are_left_out(tmp_path):
    for name in (
        "a/good.py",
        "a/__init__.py",
        "a/tests/more.py",
        "a/test_it.py",
        "a/_vendor/copy.py",
        "a/_private.py",
        "a/wire_pb2.py",
        "not-a-name.py",
    ):
        write_source(tmp_path, MODULE * 3, name)
    assert sorted(s.module for s in list_package_sources([str(tmp_path)], 0)) == ["a", "a.good"]


def test_packages_take_turns_in_an_order_set_by_the_seed(tmp_path):
    for package in "abc":
        for module in "xyz":
            write_source(tmp_path, MODULE * 3, f"{package}/{module}.py")
    orders = {
        tuple(s.module for s in list_package_sources([str(tmp_path)], seed)) for seed in range(5)
    }
    assert len(orders) > 1
    for order in orders:
        assert [{name[0] for name in order[at : at + 3]} for at in (0, 3, 6)] == [set("abc")] * 3


def test_package_folders_are_those_of_the_path(tmp_path, monkeypatch):
    (tmp_path / "site-packages").mkdir()
    gone = os.path.join(str(tmp_path), "gone", "site-packages")  # noqa: PTH118
    monkeypatch.setattr(sys, "path", ["", str(tmp_path), str(tmp_path / "site-packages"), gone])
    assert find_package_folders() == [str(tmp_path / "site-packages")]


def test_the_standard_library_is_one_package_without_site_packages():
    sources = list_standard_sources(0)
    assert {source.package for source in sources} == {"python"}
    modules = {source.module for source in sources}
    assert "json.decoder" in modules
    assert not any(module.startswith(("site-packages", "pip.", "idlelib")) for module in modules)
