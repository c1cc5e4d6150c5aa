"""A teacher's stored logits: the same bytes at any number of processes, and their use."""

from pathlib import Path

import numpy as np
import pytest
import torch
from support.interruptions import interrupt_after
from support.tuning_fixtures import build_tuning

from trainrig import manifest
from trainrig.errors import ConfigError, DataError, OutputTaken
from trainrig.models.decoder import Decoder, DecoderConfig, initialise
from trainrig.posttrain.row_run_files import TeacherScoring
from trainrig.posttrain.stages import teacher_stage
from trainrig.posttrain.stages.teacher_stage import store_teacher
from trainrig.posttrain.tuning.fine_tuning import posttrain, prepare
from trainrig.posttrain.tuning.teacher_probabilities import StoredTeacher
from trainrig.runs.step_trace import trace
from trainrig.tokens.batches import IGNORE, TEACHER_IDS, TEACHER_LOG, TEACHER_REST
from trainrig.tokens.shards.token_shards import TokenShards
from trainrig.train import checkpoint
from trainrig.train.run import metrics

LENGTH = 47
ENTRIES = 6
ROWS = [
    {"prompt": f"is {n} {'or ' * (n % 5)}", "completion": f"yes {'and ' * (n % 3)}é"}
    for n in range(13)
]


@pytest.fixture
def folder(encode_rows, tmp_path):
    encode_rows(ROWS, sequence_length=LENGTH, held_out=0.3)
    return str(tmp_path / "encoded")


@pytest.fixture
def scoring(fresh, folder, tmp_path):
    def make(**settings):
        given = {"checkpoint": fresh, "conversations": folder, "output": str(tmp_path / "taught")}
        given |= {"entries": ENTRIES, "workers": 0, "batch": 3, "part_tokens": 90}
        return TeacherScoring.model_validate(given | settings)

    return make


@pytest.fixture
def tuning(fresh, folder, tmp_path):
    def make(output="student", conversations=folder, **changes):
        given = {
            "teacher": str(tmp_path / "taught"),
            "batches": {"sequence_length": LENGTH, "global_batch": 2, "micro_batch": 1},
            "objective": {"kind": "Distillation", "temperature": 2.0},
            "training": {
                "steps": 12,
                "optimizer": {"kind": "AdamW", "lr": 3e-3},
                "held_out": {"every": 12, "rows": 2},
            },
        }
        return build_tuning(fresh, conversations, tmp_path / output, **given | changes)

    return make


def read_content(folder):
    there = sorted(Path(folder).glob("*-0*"))
    return {path.name: path.read_bytes() for path in there}


def write_model(encoder, folder, seed=9, channels=16):
    model_config = DecoderConfig(layers=1, channels=channels, heads=2, positions=48, vocabulary=320)
    model = Decoder(model_config)
    initialise(model, seed=seed)
    checkpoint.write_model(folder, model_config, encoder.text, model.state_dict())
    return folder


def test_each_target_has_what_the_model_expects_by_itself(scoring, fresh, folder, tmp_path):
    made = store_teacher(scoring(temperature=2.0))
    model = checkpoint.open_model(fresh).build()
    seen = 0
    for split in ("train", "held_out"):
        shards = TokenShards.open(f"{folder}/{split}")
        stored = StoredTeacher(str(tmp_path / "taught"), split, shards)
        for number in range(shards.count_documents("chats")):
            begin, end = shards.find_document_starts(
                "chats", np.array([number, number + 1])
            ).tolist()
            weights = np.empty(end - begin, dtype=np.int64)
            shards.read_weights("chats", begin, weights)
            ids = torch.from_numpy(shards.read_window("chats", begin, end - begin).astype(np.int64))
            with torch.no_grad():
                log = (model(ids[None, :-1]).logits[0] / 2).log_softmax(-1)[weights[1:] > 0]
            found_ids, found_log, rest = stored.read("chats", number)
            np.testing.assert_allclose(found_log, log.topk(ENTRIES).values, atol=1e-5)
            named = log.gather(-1, torch.from_numpy(found_ids.astype(np.int64)))
            np.testing.assert_allclose(found_log, named, atol=1e-5)
            np.testing.assert_allclose(
                np.exp(rest) + np.exp(found_log).sum(1), np.ones(len(rest)), atol=1e-5
            )
            seen += len(rest)
    assert made.counts["targets"] == seen and made.counts["conversations"] == len(ROWS)
    assert 0 < made.counts["covered"] < 1
    assert len(read_content(tmp_path / "taught")) > 12  # several parts
    assert store_teacher(scoring(temperature=2.0)) == made  # the result exists already


@pytest.mark.parametrize("packing", ["best_fit", "none"])
def test_a_batch_has_at_each_target_what_the_teacher_expects_there(
    scoring, tuning, folder, tmp_path, packing, fresh
):
    store_teacher(scoring(temperature=2.0))
    model = checkpoint.open_model(fresh).build()
    sizes = {"sequence_length": LENGTH, "global_batch": 2, "micro_batch": 2, "packing": packing}
    job, inputs, _ = prepare(tuning(batches=sizes))
    assert inputs["teacher"] == manifest.read_manifest(str(tmp_path / "taught")).content
    for micro in (job.make_batches().micro_batch(0, 0), *job.make_held_out().batches):
        arrays = micro.arrays
        given = {} if micro.positions is None else {
            "positions_BT": torch.from_numpy(micro.positions)
        }  # fmt: skip
        with torch.no_grad():
            log = (model(torch.from_numpy(micro.ids), **given).logits / 2).log_softmax(-1)
        there = micro.targets != IGNORE
        assert there.any() and not arrays[TEACHER_LOG][~there].any()
        named = log.gather(-1, torch.from_numpy(arrays[TEACHER_IDS]).long()).numpy()
        np.testing.assert_allclose(arrays[TEACHER_LOG][there], named[there], atol=1e-5)
        together = np.exp(arrays[TEACHER_REST]) + np.exp(arrays[TEACHER_LOG]).sum(-1)
        np.testing.assert_allclose(together[there], 1, atol=1e-5)


@pytest.mark.slow
@pytest.mark.ray
def test_the_bytes_are_the_same_at_any_number_of_workers(scoring, tmp_path):
    for workers in (0, 2):
        store_teacher(scoring(workers=workers, output=str(tmp_path / f"by {workers}")))
    one, two = (read_content(tmp_path / f"by {workers}") for workers in (0, 2))
    assert len(one) > 12 and one == two


def test_a_stopped_stage_continues_with_the_rest(scoring, tmp_path):
    whole = store_teacher(scoring(output=str(tmp_path / "whole")))
    with interrupt_after(2, teacher_stage.teacher_probabilities, "write_part"):
        store_teacher(scoring())
    done = read_content(tmp_path / "taught")
    assert len(done) == 12  # two parts, of three arrays with their checksums
    again = store_teacher(scoring())
    assert read_content(tmp_path / "taught") == read_content(tmp_path / "whole")
    assert again.content == whole.content


@pytest.mark.slow
def test_a_student_learns_the_predictions_of_its_teacher(
    scoring, tuning, encoder, tmp_path, without_ray
):
    teacher = write_model(encoder, str(tmp_path / "teacher"))
    store_teacher(scoring(checkpoint=teacher, temperature=2.0))
    posttrain(tuning())
    lines = metrics.read_series(str(tmp_path / "student"))
    first, last = (lines[n]["train/loss"] for n in (0, -1))
    assert last < 0.7 * first
    assert "train/diagnostics/teacher_agreement" in lines[-1]
    measured = metrics.read_held_out_series(str(tmp_path / "student"))
    assert measured[-1]["eval/diagnostics/student_cross_entropy"] > 0
    assert trace(str(tmp_path / "student"), 2).log == "agrees"
    posttrain(tuning(output=str(tmp_path / "two"), workers=2))
    one, two = (checkpoint.open_model(str(tmp_path / name)).weights for name in ("student", "two"))
    assert all(torch.equal(one[name], two[name]) for name in one)
    batches = prepare(tuning(output=str(tmp_path / "other")))[0].make_batches()
    content_of = manifest.read_manifest(str(tmp_path / "taught")).content
    assert batches.data_before(3)["teacher"] == content_of


@pytest.mark.slow
def test_invalid_settings_are_one_line_errors(
    scoring, tuning, fresh, encode_rows, make_tokens, tmp_path, encoder
):
    with pytest.raises(ConfigError, match=r"entries .400. must be at most the 320"):
        store_teacher(scoring(entries=400))
    foreign = make_tokens(tmp_path / "foreign", entries=300)
    encode_rows(ROWS, "elsewhere", tokenizer=foreign, sequence_length=LENGTH)
    with pytest.raises(ConfigError, match=r"another tokenizer than .*`trainrig sample`"):
        store_teacher(scoring(conversations=str(tmp_path / "elsewhere")))
    encode_rows(ROWS, "long", sequence_length=64)
    with pytest.raises(ConfigError, match=r"has 48 positions, .* sequence_length = 48"):
        store_teacher(scoring(conversations=str(tmp_path / "long")))
    assert not (tmp_path / "taught").exists()
    store_teacher(scoring(temperature=2.0))
    with pytest.raises(OutputTaken, match="input `checkpoint` has other contents"):
        other = write_model(encoder, str(tmp_path / "other"))
        store_teacher(scoring(temperature=2.0, checkpoint=other))
    with pytest.raises(ConfigError, match=r"objective.temperature.*1.0.*made with 2.0"):
        prepare(tuning(objective={"kind": "Distillation"}))
    encode_rows(ROWS[:9], "changed", sequence_length=LENGTH, held_out=0.3)
    with pytest.raises(ConfigError, match=r"conversations that have changed"):
        prepare(tuning(conversations=str(tmp_path / "changed")))
    for changes, told in (
        ({"teacher": None}, "teacher: objective Distillation needs"),
        ({"objective": {"kind": "SFT"}}, "teacher: objective SFT uses no teacher"),
    ):
        with pytest.raises(ValueError, match=told):
            tuning(**changes)
    part = next((tmp_path / "taught").glob("train-*.log"))
    data = bytearray(part.read_bytes())
    data[5] ^= 1
    part.write_bytes(data)
    with pytest.raises(DataError, match="damaged"):
        batches = prepare(tuning())[0].make_batches()
        for step in range(9):
            batches.at(step)
