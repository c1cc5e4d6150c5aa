import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from trainrig.attribution import CorpusIndex, Occurrence, open_index
from trainrig.attribution.index_run_file import CorpusIndexing
from trainrig.attribution.index_stage import index_tokens
from trainrig.attribution.learned_steps import (
    LearningRun,
    find_plain_steps,
    open_family,
    search_batches,
)
from trainrig.cli import app
from trainrig.errors import ConfigError


@pytest.fixture(scope="module")
def index(tokens: str, tmp_path_factory: pytest.TempPathFactory) -> CorpusIndex:
    output = str(tmp_path_factory.mktemp("index") / "index")
    index_tokens(CorpusIndexing(tokens=(tokens,), output=output, workers=0))
    return open_index(output)


def list_trained_tokens(run: LearningRun) -> dict[int, set[tuple[str, int]]]:
    """Return the source and position of each target of each update, one sample after another."""
    batches = run.traced.batches
    length = batches.settings.base_length
    found: dict[int, set[tuple[str, int]]] = {}
    for data_step, step in run.updates.items():
        for micro in batches.at(data_step):
            for sample in micro.samples.tolist():
                where = batches.locate(sample)
                first = where.window * length + 1
                positions = {(where.source, place) for place in range(first, first + length)}
                found.setdefault(step, set()).update(positions)
    return found


def test_the_steps_are_those_that_had_a_token_as_a_target(
    skipping_run: str, index: CorpusIndex
) -> None:
    (run,) = open_family(skipping_run, index)
    assert run.updates == {0: 1, 1: 2, 4: 3, 5: 4, 6: 5, 7: 6}
    targets = list_trained_tokens(run)
    shards = index.open_shards(0)
    dice = np.random.default_rng(0)
    occurrences = []
    for source in shards.sources:
        for number in range(shards.count_documents(source)):
            length = shards.document(source, number).length
            begin = int(dice.integers(0, length))
            end = int(dice.integers(begin, length)) + 1
            occurrences.append(Occurrence(0, source, number, begin, end))
    expected = []
    for occurrence in occurrences:
        first = index.find_position(occurrence)
        own = {(occurrence.source, first + n) for n in range(occurrence.end - occurrence.begin)}
        expected.append(tuple(step for step, trained_on in targets.items() if own & trained_on))
    found = run.find_steps(index, occurrences)
    assert [learned.steps for learned in found] == expected
    assert len({learned.steps for learned in found}) > 5
    by_number = dict(enumerate(occurrences))
    searched = search_batches(run.traced.batches, index, by_number, run.updates)
    plain = find_plain_steps(run.traced.batches, index, by_number, run.updates)
    # A search finds rows with half of the ids, so not those with a few at a row's edge.
    assert searched and sum(map(len, searched.values())) > sum(map(len, plain.values())) / 2
    # Of a few words, half of a short text stands elsewhere in the document too.
    long = [number for number, o in by_number.items() if o.end - o.begin >= 24]
    assert long and all(searched.get(n, set()) <= plain.get(n, set()) for n in long)


def test_an_earlier_checkpoint_learned_from_fewer_steps(
    skipping_run: str, index: CorpusIndex
) -> None:
    (checkpoint,) = Path(skipping_run, "checkpoints/step_00000002").iterdir()
    (run,) = open_family(str(checkpoint), index)
    assert run.updates == {0: 1, 1: 2}


def test_a_text_of_a_learned_page_is_attributed_to_its_steps(
    skipping_run: str, index: CorpusIndex, tmp_path: Path
) -> None:
    shards = index.open_shards(0)
    ids = shards.read_window("books", 40, 20)
    page = tmp_path / "page.html"
    arguments = ["attribute", skipping_run, "--index", index.folder, "--minimum", "6", "--html"]
    text = index.encoder.decode([t for t in ids.tolist() if t != index.encoder.end_of_text])
    done = CliRunner().invoke(app, [*arguments, str(page), "--text", text, "--json"])
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert found["text"] == text and found["covered"] > 0
    documents = [document for span in found["spans"] for document in span["documents"]]
    assert any(learned["steps"] for document in documents for learned in document["steps"])
    assert {learned["run"] for d in documents for learned in d["steps"]} == {skipping_run}
    for span in found["spans"]:
        assert text[span["begin"] : span["end"]] == span["text"]
        assert span["count"] >= len(span["documents"]) >= 1
    html = page.read_text()
    assert 'href="#span-1"' in html and 'id="span-1"' in html and documents[0]["url"] in html
    shown = CliRunner().invoke(app, [*arguments, str(page), "--text", text])
    assert "learned by" in shown.stdout and documents[0]["url"] in shown.stdout


def test_an_index_of_other_tokens_is_refused(
    skipping_run: str, corrupted_tokens: str, make_tokens: Callable[..., str], tmp_path: Path
) -> None:
    for tokens, message in (
        (make_tokens(tmp_path / "others", held_out=0.5), "other shards than .* learned from"),
        (corrupted_tokens, "its tokenizer differs from"),
    ):
        output = str(tmp_path / f"index-{len(message)}")
        index_tokens(CorpusIndexing(tokens=(tokens,), output=output, workers=0))
        with pytest.raises(ConfigError, match=message):
            open_family(skipping_run, open_index(output))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--text", ""], "the text is empty"),
        ([], "exactly one of --text"),
        (["--text", "a", "--prompt", "b"], "exactly one of --text"),
        (["--prompt", "a"], "name the checkpoint"),
        (["--text-file", "nowhere.txt"], "no such file"),
    ],
)
def test_wrong_arguments_are_refused(
    index: CorpusIndex, arguments: list[str], message: str
) -> None:
    done = CliRunner().invoke(app, ["attribute", "--index", index.folder, *arguments])
    assert isinstance(done.exception, ConfigError) and message in str(done.exception)
