import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from support.curated_archive import build_curation, read_rows

from trainrig import config
from trainrig.corpus.curate import curate
from trainrig.corpus.curation_settings import Curation
from trainrig.corpus.read import RawPage
from trainrig.corpus.read.warc_and_arc import write_warc
from trainrig.corpus.row_schema import PERMISSIONS
from trainrig.errors import ConfigError, OutputTaken

CC = "https://creativecommons.org"
PAGES = {  # path: HTML beyond the text, headers, the rule that drops the page
    "by": (f'<a rel="license" href="{CC}/licenses/by/4.0/">x</a>', {}, None),
    "cc0": (f'<a rel="license" href="{CC}/publicdomain/zero/1.0/">x</a>', {}, None),
    "nc": (f'<a rel="license" href="{CC}/licenses/by-nc/4.0/">x</a>', {}, "License.not_allowed"),
    "talk": (f'<a href="{CC}/licenses/by/4.0/">x</a>', {}, "License.not_allowed"),
    "noai": (
        f'<meta name="robots" content="noai"><a rel="license" href="{CC}/licenses/by/4.0/">x</a>',
        {},
        "OptOut.noai",
    ),
    "tdm": (
        f'<a rel="license" href="{CC}/licenses/by-sa/4.0/">x</a>',
        {"tdm-reservation": "1", "tdm-policy": "https://a.example/p?to=ann@a.example"},
        "OptOut.tdm_reservation",
    ),
    "image": (
        f'<a rel="license" href="{CC}/licenses/by/4.0/">x</a>',
        {"x-robots-tag": "noimageai, noarchive"},
        None,
    ),
}


def write_pages(path: Path) -> None:
    pages = [
        RawPage(
            f"http://a.example/{name}",
            "text/html",
            f"<title>{name}</title><p>{f'The page {name} tells of a lock and its gates. ' * 9}</p>"
            f"{html}".encode(),
            "2026-01-01T00:00:00Z",
            "utf-8",
            headers=headers,
        )
        for name, (html, headers, _) in PAGES.items()
    ]
    write_warc(str(path), pages)


def build_run(folder: Path, **changes: Any) -> Curation:
    source = {
        "extractor": {"kind": "MainContent", "permissions": True},
        "filters": [{"kind": "License"}, {"kind": "OptOut"}],
        **changes,
    }
    return build_curation(folder, source)


@pytest.mark.slow
def test_pages_are_dropped_by_licence_and_refusal(tmp_path: Path) -> None:
    write_pages(tmp_path / "pages.warc.gz")
    counts = curate(build_run(tmp_path)).counts
    rows = read_rows(tmp_path)
    assert {name: row["dropped_by"] for name, row in rows.items()} == {
        name: reason for name, (_, _, reason) in PAGES.items()
    }
    expected = Counter(reason for _, _, reason in PAGES.values() if reason)
    assert counts["dropped_by"] == expected
    assert rows["image"]["noimageai"] == rows["image"]["noarchive"] == 1
    assert rows["talk"]["licenses_mentioned"] == "by-4.0"
    assert rows["tdm"]["tdm_policy"] == "https://a.example/p?to=<EMAIL>"
    # other rules are applied to the stored columns
    looser = {"kind": "OptOut", "refusals": ["noarchive"]}
    curate(build_run(tmp_path, filters=[looser]))
    reasons = {name: row["dropped_by"] for name, row in read_rows(tmp_path).items()}
    assert {name for name, reason in reasons.items() if reason} == {"image"}


@pytest.mark.slow
def test_without_the_setting_there_is_no_column_and_setting_it_is_refused(tmp_path: Path) -> None:
    write_pages(tmp_path / "pages.warc.gz")
    without = {"extractor": {"kind": "MainContent"}, "filters": []}
    curate(build_run(tmp_path, **without))
    assert not set(PERMISSIONS.names) & set(read_rows(tmp_path)["by"])
    with pytest.raises(OutputTaken, match=r"extractor\.permissions: absent there"):
        curate(build_run(tmp_path))


@pytest.mark.slow
def test_sources_without_permissions_have_empty_columns(tmp_path: Path) -> None:
    write_pages(tmp_path / "pages.warc.gz")
    (tmp_path / "rows.jsonl").write_text(json.dumps({"text": "A text of a file of rows."}))
    run = build_run(tmp_path).model_dump(mode="json")
    rows = {"name": "web-rows", "paths": [str(tmp_path / "rows.jsonl")], "filters": []}
    run["sources"].append(rows)
    run["sources"][0]["filters"] = []
    curate(config.build(Curation, run, "r"))
    found = read_rows(tmp_path)
    assert len(found) == len(PAGES) + 1
    assert {found[""][name] for name in PERMISSIONS.names} == {None}
    assert found["by"]["license"] == "by"


@pytest.mark.parametrize(("column", "kind"), [("license", "License"), ("language", "Language")])
def test_numbers_as_bounds_of_text_are_refused(tmp_path: Path, column: str, kind: str) -> None:
    for bound in ({"least": 1}, {"keep_highest": 0.5}):
        with pytest.raises(ConfigError, match=f"'{column}' by a number, .* kind '{kind}'"):
            build_run(tmp_path, filters=[{"kind": "Score", "signal": column, **bound}])
    build_run(tmp_path, filters=[{"kind": "Score", "signal": "noai", "most": 0}])


@pytest.mark.parametrize("kind", ["License", "OptOut"])
def test_rules_without_their_columns_are_refused_in_one_line(tmp_path: Path, kind: str) -> None:
    without = {"extractor": {"kind": "MainContent"}, "filters": [{"kind": kind}]}
    with pytest.raises(ConfigError, match="set permissions = true in its extractor"):
        build_run(tmp_path, **without)
    with pytest.raises(ConfigError, match="is none of by, by-nc"):
        build_run(tmp_path, filters=[{"kind": "License", "allowed": ["gpl"]}])
