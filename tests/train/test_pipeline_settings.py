"""Pipeline stages of a run file: rejected settings, and the output of `check` and `pretrain`."""

import pytest

from trainrig.errors import ConfigError
from trainrig.estimate.cost_estimate import DeviceChoice
from trainrig.estimate.training_check import estimate_pretraining
from trainrig.train.pretrain import prepare

UNTIED = {"layers": 4, "tie_embeddings": False}
TWO = {"ranks": 2, "schedule": "1F1B"}
INTERLEAVED = {"ranks": 2, "schedule": "interleaved", "chunks": 2}

REFUSED = [
    ({"model": {"layers": 1}}, r"ranks \(2\) is above the 1 layers.*use at most 1"),
    ({"objective": {"kind": "PrefixLM"}}, "objective PrefixLM cannot be computed in stages"),
    (
        {
            "training": {
                "parallel": {"kind": "FSDP", "pipeline": {"ranks": 2, "schedule": "GPipe"}},
                "recompute": {"kind": "Budget", "gib": 1.0},
            }
        },
        "keeps all micro-batches of a step; set schedule = '1F1B'",
    ),
    (
        {"objective": {"kind": "MaskedLM"}, "model": {"kind": "Encoder"}},
        "kind Encoder cannot be cut",
    ),
]


@pytest.mark.parametrize(("changes", "said"), REFUSED)
def test_models_without_stages_are_rejected_by_the_run_file(changes, said, make_run, tmp_path):
    parallel = {"kind": "FSDP", "pipeline": TWO}
    training = {"parallel": parallel, **changes.get("training", {})}
    with pytest.raises(ValueError, match=said):
        make_run(tmp_path, 2, **changes | {"training": training})


@pytest.mark.parametrize(
    ("pipeline", "sizes", "said"),
    [
        ({"ranks": 2, "schedule": "interleaved"}, {}, "set chunks = 2 or more"),
        ({"ranks": 2, "chunks": 2}, {}, 'set schedule = "interleaved"'),
        (INTERLEAVED | {"chunks": 3}, {}, r"chunks \(3\).*4 layers.*model.*2"),
        (INTERLEAVED | {"ranks": 4}, {}, r'4 layers.*model.*= "1F1B"'),
        (INTERLEAVED, {"global_batch": 12}, r"\(12\).*multiple of 8.*use 8 or 16, or"),
    ],
)
def test_stages_that_cannot_be_interleaved_are_refused(pipeline, sizes, said, make_run, tmp_path):
    parallel = {"kind": "FSDP", "pipeline": pipeline}
    with pytest.raises(ValueError, match=said):
        make_run(tmp_path, 4, model=UNTIED, batches=sizes, training={"parallel": parallel})


@pytest.mark.parametrize(
    ("frozen", "said"),
    [
        (
            ("layers.[23].*", "[nh]*"),
            "freeze the whole stage of layers 2 to 3, which then has nothing",
        ),
        (("layers.[01].*", "embedding.*"), "stage of layers 0 to 1, .*or use fewer ranks"),
        (("layers.[01].*", "[nh]*"), None),  # the embedding and two layers remain
    ],
)
def test_a_stage_of_which_all_is_frozen_is_refused(frozen, said, make_run, tmp_path):
    groups = tuple({"match": pattern, "freeze": True} for pattern in frozen)
    training = {"parallel": {"kind": "FSDP", "pipeline": TWO}, "groups": groups}
    run = make_run(tmp_path, 2, model=UNTIED, training=training)
    model = run.model.model_copy(update={"vocabulary": 64})
    if said is None:
        run.training.check_parameters(model)
        return
    with pytest.raises(ConfigError, match=said):
        run.training.check_parameters(model)


def test_workers_that_are_no_whole_groups_are_refused(make_run, tmp_path):
    run = make_run(tmp_path, 3, training={"parallel": {"kind": "FSDP", "pipeline": TWO}})
    with pytest.raises(ConfigError, match=r"does not divide 3 workers.*use 2 or 4"):
        run.training.check_workers(3)


def test_check_says_how_layers_are_cut_and_how_long_stages_wait(make_run, tmp_path):
    run = make_run(
        tmp_path, 4, model=UNTIED, training={"parallel": {"kind": "FSDP", "pipeline": TWO}}
    )
    facts = estimate_pretraining(run, DeviceChoice())
    assert facts["stages"] == "layers 0-1 (43%), 2-3 (57%)"
    assert facts["bubble"] == "33.3% of a step, for 2 micro-batches per replica"


def test_check_says_which_layers_of_interleaved_stages_a_worker_has(make_run, tmp_path):
    parallel = {"kind": "FSDP", "pipeline": INTERLEAVED}
    facts = estimate_pretraining(
        make_run(tmp_path, 4, model=UNTIED, training={"parallel": parallel}), DeviceChoice()
    )
    assert facts["stages"] == "layers 0-0 and 2-2 (43%), 1-1 and 3-3 (57%)"
    assert facts["bubble"] == "20.0% of a step, for 2 micro-batches per replica"


def test_few_micro_batches_are_warned_of_with_the_time_that_stages_wait(make_run, caplog, tmp_path):
    parallel = {"kind": "FSDP", "pipeline": {"ranks": 4}}
    wide = {"global_batch": 8, "micro_batch": 4}
    run = make_run(tmp_path, 4, model={"layers": 4}, batches=wide, training={"parallel": parallel})
    prepare(run)
    assert "4 stages for 2 micro-batches of a replica: each waits for 60% of a step" in caplog.text
