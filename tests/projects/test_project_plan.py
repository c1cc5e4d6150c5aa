"""Each kind of project is written for its data, and its run files are valid and checked."""

import json
import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from trainrig import config
from trainrig.check import describe
from trainrig.errors import ConfigError, OutputTaken
from trainrig.projects import project_verbs
from trainrig.projects.project_files import check_new, render_project, write_project
from trainrig.projects.project_inputs import gather
from trainrig.projects.project_kinds import KINDS
from trainrig.projects.project_plan import make_plan
from trainrig.projects.stage_list import read_stages
from trainrig.verbs import VERBS

WORDS = ["sea", "grey", "mirror", "boat", "home", "over", "before", "dark", "the", "is", "goes"]
DOCUMENTS = [
    {"body": " ".join(WORDS[(n * k) % len(WORDS)] for k in range(1, 60)), "id": n}
    for n in range(200)
]
CHATS = [
    {
        "conversations": [
            {"from": "human", "value": f"{n}?"},
            {"from": "gpt", "value": f"It is {n}."},
        ]
    }
    for n in range(50)
]
PAIRS = [{"question": f"{n}?", "chosen": f"It is {n}.", "rejected": "No."} for n in range(20)]
PROBLEMS = [{"question": f"What is {n} + 1?", "answer": str(n + 1)} for n in range(20)]
PAGE = "<html><body><p>The sea is a grey mirror, and the boat goes home.</p></body></html>"


def write_rows(path: Path, rows: Sequence[Mapping[str, object]]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


@pytest.fixture
def data(tmp_path: Path) -> dict[str, str]:
    """Return the paths of files of each role."""
    (tmp_path / "pages").mkdir()
    for number in range(40):
        (tmp_path / "pages" / f"{number}.html").write_text(PAGE * 20)
    return {
        "documents": write_rows(tmp_path / "documents.jsonl", DOCUMENTS),
        "chats": write_rows(tmp_path / "chats.jsonl", CHATS),
        "pairs": write_rows(tmp_path / "pairs.jsonl", PAIRS),
        "problems": write_rows(tmp_path / "problems.jsonl", PROBLEMS),
        "pages": str(tmp_path / "pages"),
    }


LLAMA = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "vocab_size": 512,
    "max_position_embeddings": 512,
}
BERT = {
    **LLAMA,
    "model_type": "bert",
    "architectures": ["BertForMaskedLM"],
}


@pytest.fixture
def models(tmp_path: Path) -> dict[str, str]:
    """Return Hugging Face folders, of which `init` reads only config.json."""
    folders = {}
    for name, settings in (("decoder", LLAMA), ("encoder", BERT)):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps(settings))
        folders[name] = str(folder)
    return folders


CASES = [
    ("pretrain", ["documents"], None, "tokenizer tokenize pretrain export"),
    ("pretrain", ["pages"], None, "curate tokenizer tokenize pretrain export"),
    ("pretrain", ["documents"], "decoder", "tokenize import pretrain export"),
    (
        "tune",
        ["documents", "chats"],
        None,
        "tokenizer tokenize pretrain conversations posttrain export",
    ),
    ("tune", ["chats"], "decoder", "conversations posttrain export"),
    ("tune", ["chats", "documents"], "decoder", "tokenize conversations posttrain export"),
    (
        "align",
        ["documents", "chats", "pairs"],
        None,
        "tokenizer tokenize pretrain conversations posttrain conversations posttrain export",
    ),
    ("align", ["pairs"], "decoder", "conversations posttrain export"),
    (
        "rl",
        ["documents", "problems"],
        None,
        "tokenizer tokenize pretrain conversations posttrain rl export",
    ),
    ("rl", ["problems"], "decoder", "rl export"),
    ("crawl", ["pages", "documents"], None, "curate tokenizer tokenize"),
    ("sweep", ["documents"], None, "tokenizer tokenize sweep fit"),
    ("encoder", ["documents"], None, "tokenizer tokenize pretrain embed export"),
    ("encoder", ["documents"], "encoder", "tokenize import pretrain embed export"),
]


WITH_GPUS = [("pretrain", None), ("tune", "decoder"), ("rl", "decoder"), ("sweep", None)]


def test_every_kind_has_a_case() -> None:
    assert {kind for kind, *_ in CASES} == set(KINDS)


@pytest.mark.parametrize(
    ("kind", "roles", "model", "verbs", "gpus"),
    [
        *((*case, 0) for case in CASES),
        *((*case, 8) for case in CASES if (case[0], case[2]) in WITH_GPUS),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, list) else str(value).partition(" ")[0],
)
def test_a_project_is_written_whose_run_files_are_valid(
    kind: str,
    roles: list[str],
    model: str | None,
    verbs: str,
    gpus: int,
    data: dict[str, str],
    models: dict[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder = tmp_path / "project"
    given = [data[role] for role in roles]
    inputs = gather(kind, given, models[model] if model else None, gpus)
    plan = make_plan(inputs)
    write_project(check_new(str(folder)), render_project(str(folder), inputs, plan))
    stages = read_stages(str(folder))
    assert [stage.words[0] for stage in stages] == verbs.split()
    assert len((folder / "run.sh").read_text().splitlines()) <= 10
    monkeypatch.chdir(folder)
    for run_file in folder.glob("*.toml"):
        schema, *_ = run_file.read_text().splitlines()
        assert (folder / schema.removeprefix("#:schema ")).is_file()
        verb = config.parse(run_file.read_text(), run_file.name)["stage"]
        describe(config.load(VERBS[verb].load_model(), run_file.name))
        assert (verb, run_file.name) in {stage.words[:2] for stage in stages}
    page = (folder / "README.md").read_text()
    assert all(f"`{stage.command}`" in page for stage in stages)
    assert not re.search(r"\n\n\n", page)


@pytest.mark.parametrize(
    ("kind", "roles", "model", "problem"),
    [
        ("tuna", ["chats"], None, "no kind 'tuna'; did you mean 'tune'?"),
        ("tune", [], None, "init tune: needs --data PATH with chats: "),
        ("tune", ["chats"], None, "no documents to train a new model on; add --data PATH"),
        ("tune", ["documents"], None, "but no chats; add --data PATH with rows such as "),
        ("tune", ["pairs"], None, "holds preference pairs, which `init tune` has no use for; use "),
        ("pretrain", ["chats"], None, "use `trainrig init tune`"),
        ("align", ["pairs", "chats"], "decoder", "uses only to train a new model; leave it out"),
        ("sweep", ["documents"], "decoder", "starts from data alone; leave out --model"),
        ("tune", ["chats"], "encoder", "`init tune` needs a decoder"),
        ("encoder", ["documents"], "decoder", "`init encoder` needs an encoder"),
        ("tune", ["chats"], "owner/name", "run `hf download owner/name --local-dir name`"),
    ],
)
def test_data_that_do_not_fit_are_refused_in_one_line(
    kind: str,
    roles: list[str],
    model: str | None,
    problem: str,
    data: dict[str, str],
    models: dict[str, str],
) -> None:
    with pytest.raises(ConfigError) as refused:
        gather(kind, [data[role] for role in roles], models.get(str(model), model), 0)
    assert problem in str(refused.value)
    assert "\n" not in str(refused.value)


def test_too_few_documents_are_refused(data: dict[str, str], tmp_path: Path) -> None:
    few = write_rows(tmp_path / "few.jsonl", DOCUMENTS[:3])
    with pytest.raises(ConfigError, match=r"about \d+ tokens, and a new model needs 2,000 or more"):
        make_plan(gather("pretrain", [few], None, 0))


def test_the_vocabulary_is_one_that_the_documents_reach(
    data: dict[str, str], tmp_path: Path
) -> None:
    """These documents have 11 words, so a tokenizer of 1,024 entries would be refused."""
    inputs = gather("pretrain", [data["documents"]], None, 0)
    texts = render_project("project", inputs, make_plan(inputs))
    vocabulary = int(re.findall(r"vocabulary = (\d+)", texts["tokenizer.toml"])[0])
    assert 256 < vocabulary <= 320


def test_half_an_emoji_in_a_row_and_a_folder_with_spaces_do_no_harm(
    data: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with Path(data["documents"]).open("a") as rows:
        rows.write('{"text": "cut emoji \\ud83d"}\n')
    folder = str(tmp_path / "my project")
    project_verbs.init("pretrain", folder, data=[data["documents"]], gpus=0)
    assert capsys.readouterr().out.endswith(f"next: trainrig run '{folder}'\n")
    assert f"trainrig run '{folder}'" in Path(folder, "README.md").read_text()


def test_the_working_directory_is_no_new_folder(
    data: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    with pytest.raises(ConfigError, match="is the working directory; name a new folder"):
        project_verbs.init("pretrain", ".", data=[data["documents"]], gpus=0)


def test_a_folder_that_is_not_empty_is_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(OutputTaken, match="not empty; name a new folder"):
        check_new(str(tmp_path))


def test_words_of_a_command_survive_the_shell(
    data: dict[str, str], models: dict[str, str], tmp_path: Path
) -> None:
    named = tmp_path / "my model's folder"
    Path(models["decoder"]).rename(named)
    inputs = gather("pretrain", [data["documents"]], str(named), 0)
    plan = make_plan(inputs)
    folder = tmp_path / "project"
    write_project(folder, render_project(str(folder), inputs, plan))
    words = next(s.words for s in read_stages(str(folder)) if s.words[0] == "import")
    assert words == ("import", str(named), "base", "--keep")
    assert shlex.quote(str(named)) in (folder / "run.sh").read_text()
