import json
from typing import Any

import pytest
from typer.testing import CliRunner

from trainrig.cli import app
from trainrig.corpus.signals.text_signals import measure
from trainrig.errors import ConfigError
from trainrig.runs.culprits import find_culprits, find_url, list_broken_rules
from trainrig.train.run.metrics import read_series

SPAM = "buy buy buy now\n" * 40
PROSE = (
    "The sea was calm that morning, and the old man had gone out to look at the boats. He said "
    "that the weather would hold for the rest of the week, because the wind came from the north. "
    "Nobody believed him, but they all went with him to the harbour in the end.\n"
) * 2


def test_a_document_is_listed_with_the_rules_it_breaks() -> None:
    spam, prose = list_broken_rules(measure([SPAM, PROSE], ["", ""]))
    assert any("duplicate" in rule or "GopherRepetition" in rule for rule in spam)
    assert len(spam) > len(prose) and len(set(spam)) == len(spam)


def run_and_read_output(*arguments: str) -> Any:
    done = CliRunner().invoke(app, ["trace", *arguments, "--json"])
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def test_an_update_after_skipped_data_is_traced_to_what_it_learned_from(skipping_run: str) -> None:
    assert [line["train/data_step"] for line in read_series(skipping_run)] == [0, 1, 4, 5, 6, 7]
    third = run_and_read_output(skipping_run, "--step", "3")
    assert (third["data_step"], third["log"]) == (4, "agrees")
    planned = run_and_read_output(f"{skipping_run}/run.toml", "--step", "3")
    assert planned["sequences"] == third["sequences"] and planned["log"] == "not asked"
    skipped = run_and_read_output(skipping_run, "--data-step", "2")
    assert (skipped["step"], skipped["data_step"]) == (None, 2)
    assert skipped["sequences"] != third["sequences"]


def test_the_documents_of_a_step_are_named_with_their_rules(skipping_run: str) -> None:
    found = find_culprits(skipping_run, None, 2)
    traced = run_and_read_output(skipping_run, "--data-step", "2")
    named = {d["url"] for sequence in traced["sequences"] for d in sequence["documents"]}
    assert {culprit.url for culprit in found} == named
    assert [len(culprit.rules) for culprit in found] == sorted(
        (len(e.rules) for e in found), reverse=True
    )
    assert all(
        culprit.text and culprit.signals["words"] > 0 and culprit.sequences for culprit in found
    )
    rows = run_and_read_output(skipping_run, "--data-step", "2", "--rules")
    assert [row["url"] for row in rows] == [culprit.url for culprit in found]


def test_a_page_is_traced_to_the_steps_and_checkpoints_that_saw_it(skipping_run: str) -> None:
    seen_at: dict[str, list[int]] = {}
    for step in range(1, 7):
        for url in {culprit.url for culprit in find_culprits(skipping_run, step, None)}:
            seen_at.setdefault(url, []).append(step)
    late = next(url for url, steps in seen_at.items() if steps[0] >= 3)
    for url in (late, next(iter(seen_at))):
        seen = find_url(skipping_run, url)
        assert list(seen.steps) == seen_at[url]
        assert seen.checkpoints == tuple(s for s in (2, 4, 6) if s >= seen_at[url][0])
    assert run_and_read_output(skipping_run, "--url", late)["steps"] == seen_at[late]


def test_untraceable_steps_are_rejected(skipping_run: str) -> None:
    with pytest.raises(ConfigError, match="has this URL"):
        find_url(skipping_run, "https://nowhere.example/")
    with pytest.raises(ConfigError, match="needs a run folder"):
        find_url(f"{skipping_run}/run.toml", "https://books.example/1")
    for options in ([], ["--step", "1", "--data-step", "1"], ["--url", "u", "--step", "1"]):
        done = CliRunner().invoke(app, ["trace", skipping_run, *options])
        assert "one of --step, --data-step and --url" in str(done.exception)
    done = CliRunner().invoke(app, ["trace", skipping_run, "--data-step", "-1"])
    assert "numbered from 0" in str(done.exception)
