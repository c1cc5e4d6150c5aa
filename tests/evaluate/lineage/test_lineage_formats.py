"""The formats of lineage, checked by the rules of their documents on a small made-up family.

The reference readers (mlcroissant, prov) are no dependencies; docs/evidence/attribution.md says
when their output was compared.
"""

import hashlib
import io
import itertools
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainrig import manifest
from trainrig.errors import ConfigError, DataError
from trainrig.evaluate.data_lineage import LineageNode, _Catalogue, count_licences
from trainrig.evaluate.lineage.croissant_metadata import (
    CONFORMS_TO,
    REQUIRED,
    build_croissant,
    read_properties,
)
from trainrig.evaluate.lineage.family_page import (
    ACROSS,
    HEIGHT,
    WIDTH,
    arrange_family,
    describe_stage,
    render_family_page,
)
from trainrig.evaluate.lineage.provenance_record import build_provenance


def write_stage(
    folder: Path, stage: str, files: dict[str, bytes], config: dict[str, Any]
) -> manifest.Manifest:
    """Write a finished folder of a stage, with these files."""
    sums = {}
    for name, data in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        sums[name] = manifest.FileSum(bytes=len(data), sha256=hashlib.sha256(data).hexdigest())
    made = manifest.Manifest(
        stage=stage,
        fingerprint="f",
        config=config,
        inputs={},
        environment={"trainrig": "0.2.0"},
        counts={},
        seconds=1.0,
        files=sums,
    )
    (folder / manifest.MANIFEST).write_text(made.model_dump_json())
    return made


def write_table(rows: list[dict[str, Any]]) -> bytes:
    stream = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows), stream)
    return stream.getvalue()


CONFIG = {"sources": [{"name": "web", "reading": {"fields": {"metadata": ["license"]}}}]}


@pytest.fixture
def documents(tmp_path: Path) -> Path:
    """Write curated documents, two of which state their licence, and return their folder."""
    rows = [
        {"id": str(number), "url": "https://a.example", "metadata": json.dumps(metadata)}
        for number, metadata in enumerate(
            [{"license": "MIT"}, {"license": "CC-BY-4.0"}, {"title": "x"}, {"license": "MIT"}]
        )
    ]
    files = {"kept/web-0.parquet": write_table(rows), "report.html": b"<p>", "dropped/a.bin": b"1"}
    write_stage(tmp_path / "documents", "curate", files, CONFIG)
    return tmp_path / "documents"


@pytest.fixture
def family(documents: Path) -> LineageNode:
    """Return a tuned model of a pretrained one, both of the same documents."""
    made = manifest.read_manifest(str(documents))
    lost = LineageNode("web", "c" * 64, None)
    curated = LineageNode(
        "documents",
        made.content,
        str(documents),
        "curate",
        "0.2.0",
        counts={"documents_kept": 4, "licences": count_licences(str(documents), made)},
        settings={"filters": {"web": ["Length"]}, "decontamination": None},
        versions={"trainrig": "0.2.0", "numpy": "2.0"},
        inputs=(lost,),
    )
    base = LineageNode(
        "checkpoint",
        "b" * 64,
        "/runs/base/checkpoints/step_1/attempt-0001",
        "pretrain",
        "0.2.0",
        settings={"objective": {"kind": "CausalLM"}},
        inputs=(curated,),
    )
    return LineageNode(
        "checkpoint",
        "a" * 64,
        "/runs/<tuned>/checkpoints/step_1/attempt-0001",
        "posttrain",
        "0.2.0",
        settings={"objective": {"kind": "DPO"}, "lora": {"rank": 4}},
        inputs=(base, curated),
    )


def test_licences_are_counted_where_documents_state_them(documents: Path) -> None:
    made = manifest.read_manifest(str(documents))
    expected = {"CC-BY-4.0": 1, "MIT": 2, "not stated": 1}
    assert count_licences(str(documents), made) == expected
    silent = made.model_copy(update={"config": {"sources": [{"name": "web"}]}})
    assert count_licences(str(documents), silent) == {}
    assert count_licences(str(documents), made.model_copy(update={"stage": "tokenize"})) == {}


@pytest.mark.parametrize(
    "damage", [lambda path: path.unlink(), lambda path: path.write_bytes(b"x")]
)
def test_documents_whose_licences_cannot_be_read_raise_a_data_error(
    documents: Path, damage: Callable[[Path], Any]
) -> None:
    damage(documents / "kept/web-0.parquet")
    with pytest.raises(DataError, match=r"web-0\.parquet: cannot be read .*; restore it"):
        count_licences(str(documents), manifest.read_manifest(str(documents)))


def test_a_folder_that_is_an_input_twice_is_read_once(documents: Path) -> None:
    made = manifest.read_manifest(str(documents))
    catalogue = _Catalogue([])
    first = catalogue.count_licences(str(documents), made)
    calls: list[int] = []
    catalogue.verify_once(str(documents), lambda: calls.append(1))
    (documents / "kept/web-0.parquet").unlink()
    assert catalogue.count_licences(str(documents), made) == first
    catalogue.verify_once(str(documents), lambda: calls.append(2))
    assert calls == [1]


def test_croissant_lists_each_file_with_its_sum(family: LineageNode, documents: Path) -> None:
    document = json.loads(json.dumps(build_croissant(family, {})))
    assert document["conformsTo"] == CONFORMS_TO and document["@type"] == "sc:Dataset"
    files = document["distribution"]
    assert {file["name"] for file in files} == set(manifest.read_manifest(str(documents)).files)
    for file in files:
        data = Path(file["contentUrl"]).read_bytes()
        assert file["sha256"] == hashlib.sha256(data).hexdigest()
        assert file["contentSize"] == f"{len(data)} B" and file["encodingFormat"]
    ids = [file["@id"] for file in files]
    assert len(set(ids)) == len(ids) == 3  # the documents are an input twice
    (records,) = document["recordSet"]
    for field in records["field"]:
        assert field["source"]["fileObject"]["@id"] in ids
        assert field["@id"].startswith(f"{records['@id']}/")
    assert document["license"] == ["CC-BY-4.0", "MIT"]
    assert "documents_kept: 4" in document["description"]
    assert "not found: web (cccccccccccc)" in document["description"]


def test_croissant_has_the_properties_that_the_publisher_gives(family: LineageNode) -> None:
    given = ["license=CC0-1.0", "creator=A Lab", "url=https://x.example/?a=b", "name=mine"]
    document = build_croissant(family, read_properties([*given, "datePublished=2026-01-02"]))
    assert not set(REQUIRED) - set(document)
    assert document["creator"] == {"@type": "sc:Organization", "name": "A Lab"}
    assert (document["license"], document["url"]) == ("CC0-1.0", "https://x.example/?a=b")
    for wrong in ("colour=red", "license", "license="):
        with pytest.raises(ConfigError, match="write NAME=VALUE, with one of the names creator"):
            read_properties([wrong])


def test_prov_relates_only_what_it_declares(family: LineageNode) -> None:
    document = json.loads(json.dumps(build_provenance(family)))
    declared = {name for kind in ("entity", "activity", "agent") for name in document[kind]}
    assert len(document["entity"]) == 4 and len(document["activity"]) == 3
    relations = [
        value
        for kind in ("wasGeneratedBy", "used", "wasDerivedFrom", "wasAssociatedWith")
        for relation in document[kind].values()
        for name, value in relation.items()
        if name != "prov:role"
    ]
    assert relations and set(relations) <= declared
    arrows = {
        (relation["prov:generatedEntity"][9], relation["prov:usedEntity"][9])
        for relation in document["wasDerivedFrom"].values()
    }
    documents = family.inputs[1].fingerprint[0]
    assert arrows == {("a", "b"), ("a", documents), ("b", documents), (documents, "c")}
    curation = document["activity"][f"trainrig:run-{family.inputs[1].fingerprint}"]
    assert curation["trainrig:filters"] == '{"web": ["Length"]}'
    assert curation["trainrig:version_numpy"] == "2.0"
    assert None not in curation.values()


def test_inputs_stand_right_of_all_that_was_made_from_them(family: LineageNode) -> None:
    picture = arrange_family(family)
    boxes = {box.node.fingerprint: box for box in picture.boxes}
    assert len(boxes) == len(picture.boxes) == 4
    for box in picture.boxes:
        for below in box.node.inputs:
            assert boxes[below.fingerprint].x > box.x
    places = sorted((box.x, box.y) for box in picture.boxes)
    assert all(a[0] != b[0] or b[1] - a[1] > HEIGHT for a, b in itertools.pairwise(places))
    assert all(box.y >= 0 and box.y + HEIGHT <= picture.height for box in picture.boxes)
    assert [boxes[name].kind for name in ("a" * 64, "c" * 64)] == ["model", "lost"]
    assert describe_stage(family) == "posttrain: DPO, adapter"
    continued = LineageNode(
        "c", "d", "/d", "pretrain", inputs=(LineageNode("continue_from", "e", None),)
    )
    assert describe_stage(continued) == "continued pretraining"


@st.composite
def families(draw: st.DrawFn) -> LineageNode:
    """Draw the family of a root whose inputs may share inputs, at any distance."""
    nodes: list[LineageNode] = []
    for number in range(draw(st.integers(1, 9))):
        inputs = draw(st.lists(st.sampled_from(nodes), max_size=3, unique_by=id)) if nodes else []
        nodes.append(LineageNode("r", f"{number}", "/f", "tokenize", inputs=tuple(inputs)))
    return LineageNode("r", "root", "/f", "pretrain", inputs=tuple(nodes[-3:]))


@given(families())
def test_lines_lead_to_the_inputs_and_run_behind_no_box(family: LineageNode) -> None:
    picture = arrange_family(family)
    lefts = {(box.x, box.y + HEIGHT // 2): box for box in picture.boxes}
    lines: dict[tuple[int, int], set[tuple[int, int]]] = {}
    for path in picture.paths:
        numbers = [int(number) for number in re.findall(r"\d+", path)]
        x, y = numbers[:2]
        end = (numbers[2], y) if "H" in path else (numbers[-2], numbers[-1])
        lines.setdefault((x, y), set()).add(end)
        if "H" in path:
            assert all(
                box.x != x or not box.y - 2 < y < box.y + HEIGHT + 2 for box in picture.boxes
            )
        else:
            assert end[0] - x == ACROSS
    for box in picture.boxes:
        reached = set()
        ways = list(lines.get((box.x + WIDTH, box.y + HEIGHT // 2), ()))
        for end in ways:
            if end in lefts:
                reached.add(lefts[end].node.fingerprint)
            else:
                ways += lines[end]
        assert reached == {below.fingerprint for below in box.node.inputs}


def test_the_page_escapes_names_and_names_what_was_not_found(family: LineageNode) -> None:
    page = render_family_page(family)
    assert "<tuned>" not in page and "&lt;tuned&gt;" in page
    assert "1 of 4 outputs and inputs are in no searched folder" in page
    assert len(re.findall(r'<rect x="', page)) == 4
    assert "licences: MIT 2, CC-BY-4.0 1, not stated 1" in page
