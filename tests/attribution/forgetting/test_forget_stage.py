import dataclasses
import json
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from support.replays import finish_run, train, write_masks
from typer.testing import CliRunner

from trainrig import manifest
from trainrig.attribution import Occurrence, open_index
from trainrig.attribution.forgetting import forget_plan
from trainrig.attribution.forgetting.forget_plan import (
    ForgetPlan,
    open_forgettable,
    plan_forgetting,
)
from trainrig.attribution.forgetting.forget_stage import (
    CERTIFICATE,
    FORGOTTEN,
    build_run,
    check_batches,
    check_rollbacks,
    is_hidden,
    prepare_replay,
    take_back,
)
from trainrig.attribution.forgetting.forget_verbs import describe_plan
from trainrig.attribution.forgetting.requested_pages import PageRequest, UnusedName, read_request
from trainrig.attribution.forgetting.tensor_sums import compute_tensor_sum
from trainrig.attribution.index_run_file import CorpusIndexing
from trainrig.attribution.index_stage import index_tokens
from trainrig.attribution.learned_steps import open_family
from trainrig.cli import app
from trainrig.errors import ConfigError, DataError, OutputTaken
from trainrig.runs.step_trace import find_shards
from trainrig.tokens.batches import IGNORE
from trainrig.tokens.shards.token_shards import HELD_OUT, TokenShards
from trainrig.train import pretrain
from trainrig.train.checkpoint import compute_content_key, find_newest_valid, list_committed
from trainrig.train.run.run_folder import RunFolder
from trainrig.train.run_file.run_files import Pretraining
from trainrig.train.run_file.training_settings import StopIf

STEPS = 12
TRAINING = {"steps": STEPS, "checkpoints": {"every": 2, "keep": 100}}


def find_learned_steps(run: str, plan: ForgetPlan, output: Path) -> tuple[int, ...]:
    """Return the updates of `run` that learned from the first page of `plan`."""
    tokens = find_shards(open_forgettable(run).settings)
    index_tokens(CorpusIndexing(tokens=(tokens,), output=str(output), workers=0))
    index = open_index(str(output))
    (page, *_) = plan.pages
    occurrence = Occurrence(0, page.document.source, page.document.number, 0, page.tokens)
    (learning,) = open_family(run, index)
    (found,) = learning.find_steps(index, [occurrence])
    return found.steps


@pytest.fixture(scope="module")
def old_run(
    make_run: Callable[..., Pretraining], ranks: Any, tmp_path_factory: pytest.TempPathFactory
) -> str:
    """Train a run to its end and return its folder."""
    folder = tmp_path_factory.mktemp("forget") / "old"
    finish_run(make_run(folder, training=TRAINING), ranks)
    return str(folder)


@pytest.fixture(scope="module")
def used_urls(old_run: str) -> list[str]:
    """Return the URLs of the pages that the run used, in the order of their first uses."""
    urls = [f"https://{source}.example/{n}" for source in ("books", "web") for n in range(40)]
    plan = plan_forgetting(old_run, PageRequest(frozenset(urls), frozenset()))
    pages = sorted(plan.pages, key=lambda page: page.first_data_step)
    assert len(pages) > 20 and pages[-3].first_data_step > 4
    return [page.document.url for page in pages]


@pytest.fixture(scope="module")
def late_urls(used_urls: list[str]) -> list[str]:
    """Return the URLs of the three pages that the run used last, of those that it used."""
    return used_urls[-3:]


@pytest.fixture
def plan(old_run: str, late_urls: list[str]) -> ForgetPlan:
    return plan_forgetting(old_run, PageRequest(frozenset(late_urls), frozenset()))


def test_a_run_of_rl_is_refused_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text('stage = "rl"\n')
    with pytest.raises(ConfigError, match="is a run of rl, whose prompts are not searched for"):
        open_forgettable(str(tmp_path))


@pytest.mark.slow
def test_a_dropped_page_is_taken_back_with_its_kept_copy(
    old_run: str, plan: ForgetPlan, late_urls: list[str]
) -> None:
    kept = {page.document.id: page.document.url for page in plan.pages}
    first = min(kept)
    copies = {"https://a/copy": frozenset([first]), "https://b/copy": frozenset(["none"])}
    request = PageRequest(
        frozenset([*copies, "https://c/other"]), frozenset([first, "none"]), copies
    )
    found = plan_forgetting(old_run, request)
    assert [page.document.id for page in found.pages] == [first]
    lines = list(describe_plan(found))
    assert lines[:2] == [
        f"https://a/copy: curation dropped it as a copy of {kept[first]}, which is taken back",
        "https://b/copy: nothing to take back; curation dropped it as a copy of none, which the "
        "run masks already or did not learn from",
    ]
    assert lines[2].startswith("https://c/other: nothing to take back; no training document")
    assert found.to_json()["unused"][0]["copy_of"] == kept[first]


@pytest.mark.slow
@pytest.mark.parametrize("world", [1, 2])
def test_a_replay_equals_a_run_with_the_pages_masked_from_its_beginning(
    plan, make_run, ranks, tmp_path, world
):
    assert plan.start and 0 < plan.start.step < plan.first_update
    masks = write_masks(plan.masked, tmp_path / "masked.json")
    run = make_run(tmp_path / "from-start", training=TRAINING, masked_documents=masks)
    from_start = pretrain.prepare(run)
    Path(from_start.folder).mkdir()
    train(ranks, 1, from_start)
    replay = prepare_replay(plan, build_run(plan, str(tmp_path / "new")))
    Path(replay.folder).mkdir()
    train(ranks, world, replay)
    expected = compute_tensor_sum(from_start.folder)[1]
    assert compute_tensor_sum(replay.folder)[1] == expected
    assert compute_tensor_sum(plan.run)[1] != expected
    if world == 1:  # the files are equal too, with the counters and the record of the data
        ends = [find_newest_valid(RunFolder(job.folder))[0] for job in (replay, from_start)]
        assert len({compute_content_key(end.path) for end in ends if end}) == 1


@pytest.mark.slow
def test_a_replay_that_is_killed_continues_to_the_same_bytes(
    plan, mortal_ranks, ranks, make_run, tmp_path
):
    masks = write_masks(plan.masked, tmp_path / "masked.json")
    run = make_run(tmp_path / "from-start", training=TRAINING, masked_documents=masks)
    from_start = pretrain.prepare(run)
    Path(from_start.folder).mkdir()
    train(ranks, 1, from_start)
    replay = prepare_replay(plan, build_run(plan, str(tmp_path / "new")))
    Path(replay.folder).mkdir()
    attempt = RunFolder(replay.folder).take_attempt(0)
    processes = mortal_ranks.start(
        2, "train", job=replay, attempt=attempt, fault=(1, "die", STEPS - 1)
    )
    assert processes[1].wait() == -signal.SIGKILL
    mortal_ranks.end()
    train(ranks, 1, replay)
    assert compute_tensor_sum(replay.folder)[1] == compute_tensor_sum(from_start.folder)[1]


@pytest.mark.slow
@pytest.mark.ray
def test_the_command_trains_on_ray_and_the_result_is_that_of_one_rank(plan, ranks, tmp_path):
    file = tmp_path / "pages.txt"
    file.write_text("\n".join(page.document.url for page in plan.pages))
    out = tmp_path / "new"
    arguments = ["forget", plan.run, "--urls", str(file), "--out", str(out), "--workers", "2"]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    assert result.stdout.splitlines()[-1] == str(out / CERTIFICATE)
    replay = prepare_replay(plan, build_run(plan, str(tmp_path / "alone")))
    Path(replay.folder).mkdir()
    train(ranks, 1, replay)
    found = json.loads((out / CERTIFICATE).read_bytes())["tensors_sha256"]
    assert found == compute_tensor_sum(replay.folder)[1]


@pytest.mark.slow
def test_pages_are_taken_back_twice_with_a_certificate_that_can_be_checked(
    old_run, used_urls, late_urls, plan, make_run, ranks, without_ray, tmp_path
):
    before = manifest.read_manifest(old_run)
    new = str(tmp_path / "new")
    certificate = take_back(plan, new)
    assert manifest.read_manifest(old_run) == before
    assert [page["url"] for page in certificate.removed] == [
        page.document.url for page in plan.pages
    ]
    assert take_back(plan, new) == certificate  # nothing is left to do
    result = CliRunner().invoke(app, ["forget", new, "--check", "--json"])
    assert result.exit_code == 0, result.output
    assert len(json.loads(result.stdout)["checks"]) == 5
    # Neither a trace nor an attribution finds the page in the new run.
    for run, is_there in ((old_run, True), (new, False)):
        arguments = ["trace", run, "--url", late_urls[0], "--json"]
        traced = json.loads(CliRunner().invoke(app, arguments).stdout)
        assert bool(traced["steps"]) is is_there
        steps = find_learned_steps(run, plan, tmp_path / "index")
        assert bool(steps) is is_there
    # A further request on the new run begins at a checkpoint of the old one, and keeps the masks.
    early_url = used_urls[len(used_urls) // 2]
    early = PageRequest(frozenset([early_url, late_urls[0]]), frozenset())
    further = plan_forgetting(new, early)
    assert further.unused == (UnusedName(late_urls[0], "is masked already"),)
    assert [page.document.url for page in further.pages] == [early_url]
    assert len(further.masked.documents) == 4
    assert further.start and further.start.checkpoint.startswith(old_run)
    assert 0 < further.start.step < further.first_update
    newest = str(tmp_path / "newest")
    both = take_back(further, newest)
    assert both.earlier == 3
    masks = write_masks(further.masked, tmp_path / "masked.json")
    run = make_run(tmp_path / "from-start", training=TRAINING, masked_documents=masks)
    finish_run(run, ranks)
    arguments = ["forget", newest, "--check", "--against", run.output]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0 and "equal, byte for byte" in result.stdout, result.output
    arguments[-1] = new
    result = CliRunner().invoke(app, arguments)
    assert isinstance(result.exception, DataError)
    assert "its tensors differ from the tensors of" in str(result.exception)
    with pytest.raises(OutputTaken, match="made by another run"):
        take_back(further, new)
    # A change of the list of pages is noticed.
    masked = Path(newest, "masked.json")
    masked.write_bytes(masked.read_bytes().replace(early_url.encode(), b"https://web.example/99"))
    result = CliRunner().invoke(app, arguments[:-2])
    assert "masked.json: differs from its SHA-256 in certificate.json" in str(result.exception)


def test_the_plan_names_updates_checkpoint_and_cost(old_run, late_urls, tmp_path):
    file = tmp_path / "pages.txt"
    file.write_text("\n".join([*late_urls, "", "https://never.example/7"]))
    arguments = ["forget", old_run, "--urls", str(file), "--plan"]
    result = CliRunner().invoke(app, [*arguments, "--json", "--instance", "m7i.2xlarge"])
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    (unused,) = found["unused"]
    assert unused["name"] == "https://never.example/7"
    assert unused["reason"].startswith("no training document of ")
    assert {page["url"] for page in found["pages"]} == set(late_urls)
    first = min(page["updates"][0] for page in found["pages"])
    assert found["first_update"] == first
    assert found["start"]["step"] == (first - 1) // 2 * 2
    assert found["replay"]["first"] == found["start"]["step"] + 1
    assert found["replay"]["last"] == STEPS
    assert found["replay"]["tokens"] == (STEPS - found["start"]["step"]) * 8 * 32
    assert found["replay"]["worker_hours"] > 0 and found["replay"]["usd"] > 0
    assert found["checkpoints"] == [step for step in range(2, STEPS + 1, 2) if step >= first]
    shown = CliRunner().invoke(app, arguments).stdout
    assert "https://never.example/7: " in shown and "nothing to take back" in shown
    assert f"updates to make again: {found['replay']['first']} to 12, about" in shown
    assert "USD" not in shown


def test_updates_of_a_page_are_those_that_trace_finds(old_run, plan):
    for page in plan.pages:
        arguments = ["trace", old_run, "--url", page.document.url, "--json"]
        traced = json.loads(CliRunner().invoke(app, arguments).stdout)
        # The trace leaves out rows with nothing but the page's first token, as the last target.
        assert set(traced["steps"]) <= set(page.updates)
        assert len(page.updates) - len(traced["steps"]) <= 1


def test_ids_of_documents_are_accepted(old_run, plan, tmp_path):
    file = tmp_path / "documents.txt"
    file.write_text("\n".join(page.document.id for page in plan.pages))
    assert plan_forgetting(old_run, read_request((), [str(file)])) == plan


def test_nothing_is_written_for_pages_that_were_never_used(old_run, tmp_path):
    file = tmp_path / "pages.txt"
    file.write_text("https://never.example/7\n")
    out = tmp_path / "new"
    result = CliRunner().invoke(app, ["forget", old_run, "--urls", str(file), "--out", str(out)])
    assert result.exit_code == 0, result.output
    assert "https://never.example/7: nothing to take back; no training doc" in result.stdout
    assert result.stdout.endswith("has this URL or id\nnothing is done\n")
    assert not out.exists()


@pytest.fixture
def copied_run(old_run: str, tmp_path: Path) -> str:
    return str(shutil.copytree(old_run, tmp_path / "copied"))


def test_a_replay_from_the_beginning_is_asked_for_with_its_cost(copied_run, late_urls, tmp_path):
    runs = RunFolder(copied_run)
    for path, step, _ in list_committed(runs, runs.checkpoints):
        if step < STEPS:
            shutil.rmtree(path)
    file = tmp_path / "pages.txt"
    file.write_text("\n".join(late_urls))
    out = tmp_path / "new"
    result = CliRunner().invoke(app, ["forget", copied_run, "--urls", str(file), "--out", str(out)])
    assert isinstance(result.exception, ConfigError)
    message = str(result.exception)
    assert "no whole checkpoint is from before update" in message
    assert "all 12 updates are made again (about 3,072 tokens and" in message
    assert message.endswith("add --yes to do that")
    assert not out.exists()


@pytest.mark.slow
def test_a_replay_from_the_beginning_equals_one_from_a_checkpoint(
    copied_run, late_urls, plan, ranks, without_ray, tmp_path
):
    shutil.rmtree(Path(copied_run, "checkpoints"))
    file = tmp_path / "pages.txt"
    file.write_text("\n".join(late_urls))
    out = tmp_path / "new"
    arguments = ["forget", copied_run, "--urls", str(file), "--out", str(out), "--yes", "--json"]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    certificate = json.loads(result.stdout)
    assert certificate["continued_from"] is None
    replay = prepare_replay(plan, build_run(plan, str(tmp_path / "branch")))
    Path(replay.folder).mkdir()
    train(ranks, 1, replay)
    assert certificate["tensors_sha256"] == compute_tensor_sum(replay.folder)[1]


def test_a_damaged_checkpoint_is_passed_over(copied_run, late_urls, plan):
    assert plan.start is not None
    inside = plan.start.checkpoint.removeprefix(plan.run)
    (tensors, *_) = Path(copied_run + inside).glob("*.safetensors")
    tensors.write_bytes(tensors.read_bytes()[:-1] + b"?")
    again = plan_forgetting(copied_run, PageRequest(frozenset(late_urls), frozenset()))
    assert again.start is not None and again.start.step == plan.start.step - 2


def test_shards_that_differ_from_their_sums_are_refused_before_anything_is_written(
    plan, tokens, make_run, ranks, tmp_path
):
    copied = shutil.copytree(tokens, tmp_path / "tokens")
    run = make_run(tmp_path / "old", training=TRAINING, tokens=str(copied))
    finish_run(run, ranks)
    urls = frozenset(page.document.url for page in plan.pages)
    of_copy = plan_forgetting(run.output, PageRequest(urls, frozenset()))
    (shard,) = Path(copied, "train").glob("*.bin")
    data = bytearray(shard.read_bytes())
    data[5] ^= 1
    shard.write_bytes(data)
    out = tmp_path / "new"
    with pytest.raises(DataError, match=r"\.bin: damaged: its SHA-256 differs"):
        take_back(of_copy, str(out))
    assert not out.exists()


def test_a_run_that_cannot_forget_is_refused_in_one_line(old_run, copied_run, late_urls, tmp_path):
    request = PageRequest(frozenset(late_urls), frozenset())
    with pytest.raises(ConfigError, match="no such folder; name the folder of a finished run"):
        plan_forgetting(str(tmp_path / "none"), request)
    with pytest.raises(ConfigError, match="is a run file; name the folder"):
        plan_forgetting(f"{old_run}/run.toml", request)
    Path(copied_run, manifest.MANIFEST).unlink()
    with pytest.raises(ConfigError, match="the run is not finished; finish it by `trainrig pre"):
        plan_forgetting(copied_run, request)
    with pytest.raises(ConfigError, match=r"no certificate; name a folder"):
        CliRunner().invoke(app, ["forget", old_run, "--check"], catch_exceptions=False)
    file = tmp_path / "pages.txt"
    file.write_text("\n\n")
    with pytest.raises(ConfigError, match=r"pages\.txt: names no page; write one URL"):
        read_request([str(file)], ())
    with pytest.raises(DataError, match=r"none\.txt: no such file"):
        read_request([str(tmp_path / "none.txt")], ())
    file.write_bytes(b"\xff")
    with pytest.raises(DataError, match="save the file as UTF-8"):
        read_request([str(file)], ())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "forget: name the pages by --urls FILE or --documents FILE"),
        (["--urls", "pages.txt"], "forget: name the run folder to write by --out DIR, or give"),
        (["--against", "x"], "forget --against: needs --check"),
    ],
)
def test_options_that_do_not_fit_are_refused(old_run, arguments, message):
    with pytest.raises(ConfigError, match=message):
        CliRunner().invoke(app, ["forget", old_run, *arguments], catch_exceptions=False)


def test_a_batch_that_holds_a_masked_document_is_noticed(old_run, plan):
    with pytest.raises(DataError, match="holds a masked document"):
        check_batches(old_run, plan.masked, STEPS)


def test_an_objective_that_changes_rows_cannot_mask_documents(make_run, tmp_path):
    with pytest.raises(ValueError, match="masked_documents: objective MaskedLM changes the rows"):
        make_run(
            tmp_path / "run",
            objective={"kind": "MaskedLM"},
            model={"kind": "Encoder"},
            masked_documents="masked.json",
        )


def test_the_plan_in_the_new_folder_keeps_its_starting_point(plan, copied_run, tmp_path):
    """The checkpoint that a replay began with may be deleted while it runs."""
    out = tmp_path / "new"
    out.mkdir()
    of_copy = dataclasses.replace(plan, run=copied_run)
    (out / FORGOTTEN).write_text(json.dumps(of_copy.to_json()))
    shutil.rmtree(Path(copied_run, "checkpoints"))
    urls = frozenset(page.document.url for page in plan.pages)
    again = plan_forgetting(copied_run, PageRequest(urls, frozenset()), out=str(out))
    assert again.start == plan.start
    assert CERTIFICATE not in {path.name for path in out.iterdir()}


def test_another_spelling_of_a_url_is_shown(old_run, late_urls):
    spelled = late_urls[0].replace("https://", "http://www.") + "/"
    plan = plan_forgetting(old_run, PageRequest(frozenset([spelled]), frozenset()))
    assert plan.pages == () and plan.masked.documents == ()
    (unused,) = plan.unused
    assert unused.name == spelled
    assert unused.reason.endswith(f"; request this spelling too: {late_urls[0]}")


def test_a_held_out_page_is_named_as_such(old_run):
    tokens = find_shards(open_forgettable(old_run).settings)
    held_out = TokenShards.open(f"{tokens}/{HELD_OUT}")
    page = held_out.document(held_out.sources[0], 0)
    plan = plan_forgetting(old_run, PageRequest(frozenset(), frozenset([page.id])))
    assert plan.unused == (UnusedName(page.id, "is held out, so no update used it"),)


def test_documents_of_the_request_that_no_update_used_are_masked_too(old_run, used_urls, late_urls):
    shards = open_forgettable(old_run).batches.shards
    assert isinstance(shards, TokenShards)
    entries = [entry for source in shards.sources for entry in shards.iterate_index(source)]
    unused = next(entry.url for entry in entries if entry.url not in used_urls)
    plan = plan_forgetting(old_run, PageRequest(frozenset([late_urls[0], unused]), frozenset()))
    assert [page.document.url for page in plan.pages] == [late_urls[0]]
    assert {document.url for document in plan.masked.documents} == {late_urls[0], unused}
    assert [name.name for name in plan.unused] == [unused]
    assert "no update used it" in plan.unused[0].reason


def test_initial_weights_that_learned_from_a_page_are_refused(
    old_run, late_urls, make_run, ranks, tmp_path
):
    run = make_run(tmp_path / "second", training=TRAINING, continue_from=old_run)
    finish_run(run, ranks)
    request = PageRequest(frozenset(late_urls[:1]), frozenset())
    with pytest.raises(ConfigError, match=r"its initial weights, .*old, learned from https"):
        plan_forgetting(run.output, request)
    Path(run.output, "run.toml").write_text(
        Path(run.output, "run.toml").read_text().replace(old_run, str(tmp_path / "elsewhere"))
    )
    assert plan_forgetting(run.output, request).unknown_base == str(tmp_path / "elsewhere")


def test_a_replay_begins_before_data_that_the_old_run_left_out(copied_run, late_urls):
    RunFolder(copied_run).take_attempt(STEPS, (3, 5))
    plan = plan_forgetting(copied_run, PageRequest(frozenset(late_urls), frozenset()))
    assert plan.start is not None and plan.start.step == 2


def test_a_spike_from_before_the_starting_point_gives_no_certificate(plan, copied_run):
    folder = RunFolder(copied_run)
    begin = plan.start.data_step
    folder.record("spike", skip=[begin, begin + 2], back_to=begin)
    check_rollbacks(copied_run, plan.start)
    folder.record("spike", skip=[begin - 1, begin + 2], back_to=0)
    check_rollbacks(copied_run, None)
    with pytest.raises(DataError, match="train from the beginning: trainrig pretrain"):
        check_rollbacks(copied_run, plan.start)


def test_a_run_that_scores_end_is_refused(old_run, monkeypatch):
    traced = open_forgettable(old_run)
    training = traced.settings.training.model_copy(
        update={"stop_if": StopIf.model_construct(evaluation="words", score="correct")}
    )
    settings = traced.settings.model_copy(update={"training": training})
    ended = dataclasses.replace(traced, settings=settings)
    monkeypatch.setattr(forget_plan, "open_traced", lambda _: ended)
    with pytest.raises(ConfigError, match=r"training\.stop_if ends the run by scores"):
        open_forgettable(old_run)


@pytest.mark.parametrize(
    ("ids", "targets", "hidden"),
    [
        ([5, 6, 7], [6, 7, 8], False),
        ([5, 1, 1], [6, IGNORE, IGNORE], False),  # its first token is a target
        ([5, 1, 7], [IGNORE, IGNORE, IGNORE], False),
        ([5, 1, 1], [IGNORE, IGNORE, IGNORE], True),
    ],
)
def test_ids_and_targets_of_a_masked_document_are_noticed(ids, targets, hidden):
    """Document 3 has position 0 of the row, document 4 the other two."""
    pieces = np.array([[0, 0, 3], [0, 1, 4]])
    micro = SimpleNamespace(ids=np.array([ids]), targets=np.array([targets]), pieces=pieces)
    assert is_hidden(micro, 0, {4}, filler=1) is hidden


@pytest.mark.parametrize(("last", "hidden"), [(8, False), (IGNORE, True)])
def test_a_masked_document_that_is_only_the_last_target_is_noticed(last, hidden):
    pieces = np.array([[0, 0, 3]])
    micro = SimpleNamespace(ids=np.array([[5, 6]]), targets=np.array([[6, last]]), pieces=pieces)
    assert is_hidden(micro, 0, {4}, filler=1) is hidden
