import shutil
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from trainrig import manifest
from trainrig.attribution.forgetting import copied_pages
from trainrig.attribution.forgetting.copied_pages import KEPT, add_copies
from trainrig.attribution.forgetting.requested_pages import PageRequest, explain_copies
from trainrig.corpus.curate import Curation, curate
from trainrig.corpus.curation_settings import CurationSource
from trainrig.errors import ConfigError
from trainrig.tokens.rows.masked_documents import MaskedDocument

WORDS = "the sea was calm that morning and an old man had gone out to look at his boats again"


def write_page(folder: Path, name: str, text: str) -> None:
    folder.mkdir(exist_ok=True)
    (folder / f"{name}.txt").write_text(text)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Curate three copies of one page and three other pages, and return the folder."""
    base = tmp_path_factory.mktemp("copies")
    words = WORDS.split()
    texts = {
        name: " ".join(words[(number * step + number) % len(words)] for number in range(120))
        for name, step in (("a", 1), ("b", 3), ("c", 5), ("d", 7))
    }
    for name, text in texts.items():
        write_page(base / "pages", name, text)
    write_page(base / "pages", "a-again", f"{texts['a']} ending")
    write_page(base / "pages", "a-exact", texts["a"])
    source = CurationSource(
        name="pages",
        paths=(str(base / "pages"),),
        reading={"base_url": "https://x.example/"},
        filters=(),
    )
    output = str(base / "curated")
    curate(
        Curation(output=output, workers=0, sources=(source,), near_duplicates={"kind": "MinHash"})
    )
    return output


def list_pages(corpus: str, folder: str) -> dict[str, str]:
    """Return the id of each page of a folder of the corpus, by its name."""
    return {
        row["url"].rpartition("/")[2].partition(".")[0]: row["id"]
        for path in Path(corpus, folder).glob("*.parquet")
        for row in pq.read_table(path, columns=["url", "id"]).to_pylist()
    }


def test_the_kept_one_of_a_cluster_is_added_for_each_of_its_copies(corpus: str) -> None:
    kept = list_pages(corpus, "kept")
    dropped = list_pages(corpus, "dropped")
    inputs = [manifest.read_manifest(corpus).content]
    (first,) = {"a", "a-again", "a-exact"} & set(kept)
    copies = {"a", "a-again", "a-exact"} - {first}
    assert set(dropped) == copies and set(kept) == {first, "b", "c", "d"}
    for name in copies:
        url = frozenset([f"https://x.example/{name}.txt"])
        found = add_copies(PageRequest(url, frozenset()), corpus, inputs)
        assert found.ids == {kept[first]}
        assert found.copies == {min(url): {kept[first]}}
        by_id = frozenset([dropped[name]])
        found = add_copies(PageRequest(frozenset(), by_id), corpus, inputs)
        assert found.ids == by_id | {kept[first]}
        assert found.copies == {dropped[name]: {kept[first]}}
    alone = PageRequest(frozenset(["https://x.example/b.txt"]), frozenset())
    assert add_copies(alone, f"{corpus}/", inputs) == alone
    # A kept page has copies too, but was not dropped.
    of_first = PageRequest(frozenset(), frozenset([kept[first]]))
    assert add_copies(of_first, corpus, inputs) == of_first


def test_a_url_that_was_read_several_times_has_all_its_kept_copies(
    corpus: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = "https://x.example/often"
    rows = {
        KEPT: [("k1", "https://x.example/1", "c1"), ("k2", "https://x.example/2", "c2")],
        "dropped": [("d1", url, "c1"), ("d2", url, "c2")],
    }
    monkeypatch.setattr(copied_pages, "_iterate_rows", lambda _, folder, __: iter(rows[folder]))
    inputs = [manifest.read_manifest(corpus).content]
    found = add_copies(PageRequest(frozenset([url]), frozenset()), corpus, inputs)
    assert found.copies == {url: {"k1", "k2"}} and found.ids == {"k1", "k2"}
    pages = [MaskedDocument(source="s", number=0, id="k2", url="https://x.example/2")]
    (copied,) = explain_copies(found, pages)
    assert copied.copy_of == "https://x.example/2"


def test_a_url_that_was_read_again_is_no_copy_of_itself() -> None:
    url = "https://x.example/twice"
    request = PageRequest(frozenset([url]), frozenset(["k"]), {url: frozenset(["k"])})
    pages = [MaskedDocument(source="s", number=0, id="k", url=url)]
    assert explain_copies(request, pages) == ()
    (copied,) = explain_copies(request, [])
    assert copied.copy_of == "" and "masks already" in copied.reason


def write_changed(corpus: str, target: Path, **config: Any) -> str:
    """Write a copy of a corpus whose manifest has other settings, and return its folder."""
    copied = shutil.copytree(corpus, target)
    made = manifest.read_manifest(corpus)
    changed = made.model_copy(update={"config": {**made.config, **config}})
    (copied / manifest.MANIFEST).write_text(changed.model_dump_json())
    return str(copied)


def test_a_corpus_without_the_clusters_of_a_page_is_refused(corpus: str, tmp_path: Path) -> None:
    request = PageRequest(frozenset(["https://x.example/b.txt", "https://x/none"]), frozenset())
    inputs = [manifest.read_manifest(corpus).content]
    silent = write_changed(corpus, tmp_path / "silent", near_duplicates=None)
    with pytest.raises(ConfigError, match="has no near_duplicates, so no clusters of copies"):
        add_copies(request, silent, inputs)
    assert add_copies(request, corpus, inputs) == request
    forgotten = write_changed(corpus, tmp_path / "forgotten", keep_dropped="none")
    with pytest.raises(ConfigError, match=r'no page https://x/none, .* keep_dropped = "none"'):
        add_copies(request, forgotten, inputs)
    known = PageRequest(request.urls - {"https://x/none"}, frozenset())
    assert add_copies(known, forgotten, inputs) == known


def test_a_corpus_that_the_tokens_were_not_made_of_is_refused(corpus: str) -> None:
    with pytest.raises(ConfigError, match="the tokens of the run were not made of this folder"):
        add_copies(PageRequest(frozenset(["x"]), frozenset()), corpus, ["f" * 64])
