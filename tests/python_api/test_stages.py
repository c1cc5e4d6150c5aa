import json
import logging
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support import tiny_runs

import trainrig
from trainrig.python_api import stages
from trainrig.tokens.prepare import Tokenization
from trainrig.tokens.tokenizer import TokenizerTraining
from trainrig.verbs import VERBS

STAGES: dict[str, Callable[..., stages.StageOutput]] = {
    "curate": stages.curate,
    "tokenizer": stages.train_tokenizer,
    "tokenize": stages.tokenize,
    "conversations": stages.encode_conversations,
    "pretrain": stages.pretrain,
    "posttrain": stages.posttrain,
    "rl": stages.rl,
    "evaluate": stages.evaluate,
    "sweep": stages.sweep,
}


@pytest.fixture(scope="module")
def curated(tmp_path_factory: pytest.TempPathFactory) -> str:
    return tiny_runs.write_curated(str(tmp_path_factory.mktemp("library") / "curated"))


@pytest.fixture(scope="module")
def tokenizer(curated: str) -> stages.StageOutput:
    return stages.train_tokenizer(
        documents=curated,
        output=Path(curated).with_name("tokenizer"),
        tokenizer={"kind": "ByteLevelBPE", "vocabulary": 320, "extra": ["<|mask|>"]},
    )


def read_records(output: stages.StageOutput) -> tuple[bytes, dict[str, Any], dict[str, bytes]]:
    """Return the claim, the manifest without its times, and all files of a stage."""
    folder = Path(output.output)
    record = json.loads((folder / "manifest.json").read_text())
    for name in ("seconds", "cost"):
        record.pop(name)
    files = {name: (folder / name).read_bytes() for name in record["files"]}
    return (folder / "stage.json").read_bytes(), record, files


def test_keywords_give_the_bytes_of_a_run_file(
    curated: str, tokenizer: stages.StageOutput, tmp_path: Path
) -> None:
    file = tmp_path / "tokenizer.toml"
    file.write_text(
        f'stage = "tokenizer"\ndocuments = "{curated}"\noutput = "{tmp_path}/tokenizer"\n'
        "[tokenizer]\n"
        'kind = "ByteLevelBPE"\nvocabulary = 300\nextra = ["<|mask|>"]\n'
    )
    by_file = stages.train_tokenizer(file, changes=["tokenizer.vocabulary=320"])
    assert read_records(by_file) == read_records(tokenizer)
    keys = {"documents": curated, "workers": 0, "held_out": 0.2}
    by_keywords = stages.tokenize(tokenizer=tokenizer, output=tmp_path / "tokens", **keys)
    model = Tokenization(tokenizer=by_file.output, output=str(tmp_path / "others"), **keys)
    assert read_records(by_keywords) == read_records(stages.tokenize(model))
    assert by_keywords.counts == by_keywords.manifest.counts
    assert stages.tokenize(model).manifest == stages.tokenize(model).manifest  # finished


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ("held_ot = 0.1", "no key 'held_ot' in Tokenization; did you mean 'held_out'?"),
        ("held_out = 2.0", "held_out: input should be less than"),
        ('plans = { kind = "None" }', "plans"),
        ("shard_bytes = [1, 2]", "shard_bytes: input should be a valid integer, found (1, 2)"),
    ],
)
def test_a_mistake_in_keywords_is_the_line_of_the_run_file(
    wrong: str, said: str, tmp_path: Path
) -> None:
    usual = 'stage = "tokenize"\ndocuments = "a"\ntokenizer = "b"\noutput = "c"\n'
    file = tmp_path / "run.toml"
    file.write_text(usual + wrong)
    with pytest.raises(trainrig.ConfigError) as by_file:
        stages.tokenize(file)
    with pytest.raises(trainrig.ConfigError) as by_keywords:
        stages.tokenize(**tomllib.loads(usual + wrong))
    assert str(by_file.value).startswith(f"{file}:5: ")
    assert str(by_keywords.value) == "tokenize: " + str(by_file.value).removeprefix(f"{file}:5: ")
    assert said in str(by_keywords.value)


def test_a_stage_takes_a_run_file_or_keywords(tmp_path: Path) -> None:
    other = TokenizerTraining(documents="a", output=str(tmp_path / "b"))
    for given, keys, said in (
        ((), {}, "tokenize: give a run file, or its keys as keyword arguments, and not both"),
        (("run.toml",), {"workers": 0}, "and not both"),
        (("run.toml",), {}, "run.toml: no such run file"),
        ((other,), {}, "tokenize: the run file is a TokenizerTraining, for `tokenizer`"),
        ((), {"documents": "a", "changes": ["workers=0"]}, "`changes` apply to a run file"),
    ):
        with pytest.raises(trainrig.ConfigError, match=said.replace("(", "\\(")):
            stages.tokenize(*given, **keys)
    with pytest.raises(trainrig.DataError, match=r"no manifest\.json"):
        stages.tokenize(documents=tmp_path, tokenizer="b", output=tmp_path / "c", workers=0)


@pytest.mark.parametrize("verb", STAGES)
def test_no_key_of_a_run_file_hides_behind_an_option(verb: str) -> None:
    assert not {"run", "changes", "progress"} & set(VERBS[verb].load_model().model_fields)
    with pytest.raises(trainrig.ConfigError, match=f"^{verb}: "):  # the function is the verb's
        STAGES[verb](no_such_key=1)


def test_a_stage_shows_its_progress_and_leaves_loggers_as_they_were(
    curated: str, tokenizer: stages.StageOutput, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    logger = logging.getLogger("trainrig")
    before = (list(logger.handlers), logger.level, logger.propagate)
    keys: dict[str, Any] = {"documents": curated, "tokenizer": tokenizer, "workers": 0}
    stages.tokenize(**keys, output=tmp_path / "shown")
    shown = capsys.readouterr()
    stages.tokenize(**keys, output=tmp_path / "quiet", progress=False)
    assert (list(logger.handlers), logger.level, logger.propagate) == before
    assert f"tokenize: {tmp_path}/shown: " in shown.err
    assert (shown.out, capsys.readouterr()) == ("", ("", ""))


def test_a_notebook_shows_the_counts_and_the_report(tokenizer: stages.StageOutput) -> None:
    assert tokenizer.report == f"{tokenizer.output}/report.html"
    assert tokenizer.list_files(".json") == [
        f"{tokenizer.output}/report.json",
        f"{tokenizer.output}/tokenizer.json",
    ]
    assert tokenizer.paths == tuple(tokenizer.list_files())
    assert tokenizer.paths[0].startswith(f"{tokenizer.output}/")
    shown = tokenizer._repr_html_()
    assert "<td style='text-align:left'>320</td>" in shown
    assert "report.html" in shown
