"""Prompts of each kind of task, and the error messages about unusable rows."""

import gzip
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from trainrig import config
from trainrig.errors import ConfigError, DataError
from trainrig.evaluate.engine.shards import TaskRun, load_questions
from trainrig.evaluate.evaluation_run_file import TaskChoice
from trainrig.evaluate.tasks.shipped import list_shipped_tasks, load_task
from trainrig.evaluate.tasks.task_definition import Task
from trainrig.evaluate.tasks.task_prompts import read_rows

CHOICE = {"kind": "MultipleChoice", "choices": "choices", "gold": "gold"}


def write(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def load_prompts(tmp_path, rows, scoring=CHOICE, **task):
    data = {"name": "t", "rows": "x", "prompt": "{{ query }}", "scoring": scoring} | task
    built = config.build(Task, data, "t.toml")
    return load_questions(TaskRun(built, write(tmp_path / "rows.jsonl", rows)))


def test_rows_are_read_from_lines_packed_lines_and_parquet(tmp_path):
    rows = [{"query": "é\u2028x", "gold": 1}, {"query": "b", "gold": 0}]
    plain = write(tmp_path / "a.jsonl", rows)
    packed = tmp_path / "a.jsonl.gz"
    table = tmp_path / "a.parquet"
    packed.write_bytes(gzip.compress((tmp_path / "a.jsonl").read_bytes()))
    pq.write_table(pa.Table.from_pylist(rows), table)
    for path in (plain, str(packed), str(table)):
        assert [dict(row.fields) for row in read_rows(path)] == rows


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b'{"a": 1}\n{"a": \n', "row 2: not JSON"),
        (b"[1]\n", "row 1: a JSON list; write a JSON object"),
        (b"\n", "the file has no row"),
        (b"\xff\xfe{", "UTF-16"),
        (b"\x1f\x8bxx", "damaged"),
    ],
)
def test_an_invalid_row_is_named_with_its_position(tmp_path, content, said):
    path = tmp_path / "rows.jsonl"
    path.write_bytes(content)
    with pytest.raises(DataError, match=f"rows.jsonl: {said}"):
        read_rows(str(path))


@pytest.mark.parametrize(
    ("row", "said"),
    [
        (
            {"query": "q", "gold": 0},
            "scoring.choices uses a field that the row does not have: 'choices'",
        ),
        (
            {"choices": ["a", "b"], "gold": 0},
            "prompt uses a field that the row does not have: 'query'",
        ),
        (
            {"query": "q", "choices": ["a", "b"], "gold": 2},
            "the answer is choice 2, but the row has 2",
        ),
        (
            {"query": "q", "choices": ["a", "b"], "gold": "c"},
            "'c' is not one of the choices: 'a', 'b'",
        ),
        ({"query": "q", "choices": ["a"], "gold": 0}, "fewer than two choices"),
        ({"query": "q", "choices": {"a": 1}, "gold": 0}, "must be a text or a list of texts"),
        ({"query": "q", "choices": ["a", "b"], "gold": [0]}, "neither a number nor a text"),
    ],
)
def test_an_unusable_row_is_named_with_file_and_number(tmp_path, row, said):
    good = {"query": "q", "choices": ["a", "b"], "gold": "b"}
    with pytest.raises(DataError, match=rf"rows.jsonl: row 2: .*{said}"):
        load_prompts(tmp_path, [good, row])


@pytest.mark.parametrize(
    ("template", "said"),
    [
        ("{{ query", "invalid template"),
        ("{{ query.__class__.__mro__ }}", "must not use this|does not have"),
        ("{{ query.missing }}", "does not have"),
        ("{{ 1 / 0 }}", "row: ZeroDivisionError"),
    ],
)
def test_a_template_reaches_nothing_but_the_row(tmp_path, template, said):
    row = {"query": "q", "choices": ["a", "b"], "gold": 0}
    with pytest.raises((ConfigError, DataError), match=said):
        load_prompts(tmp_path, [row], prompt=template)


def test_examples_are_the_same_for_each_row_and_never_the_row_itself(tmp_path):
    rows = [{"query": f"q{n}", "choices": ["a", "b"], "gold": n % 2} for n in range(9)]
    shots = {"count": 3, "seed": 4}
    questions = load_prompts(tmp_path, rows, few_shot=shots)
    usual = {q.shots for q in questions if q.prompt not in {s.prompt for s in questions[0].shots}}
    assert len(usual) <= 2 and all(len(q.shots) == 3 for q in questions)
    for question in questions:
        assert question.prompt not in [shot.prompt for shot in question.shots]
    shown = questions[0].shots[0]
    assert shown.answer == " " + "ab"[int(shown.prompt[1]) % 2]
    assert load_prompts(tmp_path, rows, few_shot=shots) == questions
    with pytest.raises(DataError, match=r"few_shot.count = 9 needs 10 rows.*file has 9"):
        load_prompts(tmp_path, rows, few_shot={"count": 9})


def make_row(text, gold=0, **more):
    return {"query": text, "choices": ["a", "b"], "gold": gold, **more}


DOUBLES = [
    make_row("q0"),
    make_row("q0", 1, page=3),
    make_row(" Q0\n"),
    *(make_row(f"q{n}") for n in range(1, 6)),
]


@pytest.mark.parametrize("draw", ["first", "random"])
@pytest.mark.parametrize("shown", ["own", "same file", "copy", "training rows"])
def test_a_row_is_never_its_own_example_from_any_file(tmp_path, shown, draw):
    """Duplicates of a row are not shown either, and the wanted number of rows is still shown."""
    file = tmp_path / ("rows.jsonl" if shown in ("own", "same file") else "shown.jsonl")
    rows = DOUBLES if shown != "training rows" else [*DOUBLES[2:], make_row("q9")]
    write(file, rows)
    for seed in range(8):
        shots = {"count": 4, "draw": draw, "seed": seed}
        questions = load_prompts(
            tmp_path, DOUBLES, few_shot=shots if shown == "own" else {**shots, "rows": str(file)}
        )
        for question in questions:
            said = [" ".join(shot.prompt.lower().split()) for shot in question.shots]
            assert len(said) == 4
            assert " ".join(question.prompt.lower().split()) not in said


def test_rows_with_equal_prompts_are_distinguished_by_answers_or_refused(tmp_path):
    scoring = {"kind": "Continuation", "target": "{{ text }}"}
    rows = [{"text": text} for text in ("a", "b", "a", "c")]
    questions = load_prompts(tmp_path, rows, scoring, prompt="", few_shot={"count": 2})
    for question, row in zip(questions, rows, strict=True):
        shown = {shot.answer.strip() for shot in question.shots}
        assert len(question.shots) == 2 and row["text"] not in shown
    with pytest.raises(
        DataError, match=r"row 1: few_shot.count = 2, but only 0 of.*4 rows.*ask something"
    ):
        load_prompts(tmp_path, rows, scoring, prompt="go on:", few_shot={"count": 2})


def test_an_unusable_example_is_named_with_its_own_file(tmp_path):
    write(tmp_path / "shown.jsonl", [{"query": "x", "choices": ["a", "b"]}])
    shots = {"count": 1, "rows": str(tmp_path / "shown.jsonl")}
    with pytest.raises(DataError, match=r"shown.jsonl: row 1: .* does not have: 'gold'"):
        load_prompts(tmp_path, [make_row("q")], few_shot=shots)


def test_messages_are_no_text_of_a_prompt(tmp_path):
    row = make_row([{"role": "user", "content": "q"}])
    with pytest.raises(DataError, match=r"row 1.*TypeError: \[\{'role'.*not a text"):
        load_prompts(tmp_path, [row])
    (question,) = load_prompts(
        tmp_path, [row], prompt="{{ query[0].content }} {{ query | tojson }}"
    )
    assert question.prompt.startswith("q [{")


# One row of each task in its published form. Rows of the other shipped tasks are in the data
# folder.
PUBLISHED = {
    "mmlu": {"question": " 2+2? ", "choices": ["1", "2", "3", "4"], "answer": 3},
    "hellaswag": {
        "activity_label": "Cooking",
        "ctx_a": "A man [title] stirs.",
        "ctx_b": "he",
        "endings": [" eats [substeps] it.", "sings.", "runs.", "sleeps."],
        "label": "0",
    },
    "arc_challenge": {
        "question": "Why?",
        "choices": {"text": ["x", "y"], "label": ["A", "B"]},
        "answerKey": "B",
    },
    "openbookqa": {
        "question_stem": "Why is",
        "choices": {"text": ["x", "y"], "label": ["A", "B"]},
        "answerKey": "A ",
    },
    "triviaqa": {"question": "Who", "answer": {"aliases": ["He", "Him"]}},
    "math": {"problem": "1+1", "solution": "It is $\\boxed{\\frac{4}{2}}$."},
    "mbpp": {"text": "Add.", "code": "def f(): pass", "test_list": ["assert f() is None"]},
    "ifeval": {
        "prompt": "No commas.",
        "instruction_id_list": ["punctuation:no_comma"],
        "kwargs": [{}],
    },
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_published_row_gives_the_published_prompt(tmp_path, name):
    write(tmp_path / f"{name}.jsonl", [PUBLISHED[name]])
    task, rows = load_task(TaskChoice(task=name, few_shot=0), str(tmp_path))
    (question,) = load_questions(TaskRun(task, rows))
    wanted = {
        "mmlu": ("2+2?\nA. 1\nB. 2\nC. 3\nD. 4\nAnswer:", "D"),
        "hellaswag": ("Cooking: A man.  stirs. He".replace(".  ", ". "), "eats it."),
        "arc_challenge": ("Question: Why?\nAnswer:", "y"),
        "openbookqa": ("Why is", "x"),
        "triviaqa": ("Question: Who?\nAnswer:", "He"),
        "math": ("Problem: 1+1\nAnswer:", "\\frac{4}{2}"),
        "ifeval": ("No commas.", ""),
    }
    if name in wanted:
        assert (question.prompt, question.expected) == wanted[name]
    assert name != "triviaqa" or question.answers == ("He", "Him")
    assert name != "ifeval" or question.instructions[0]["id"] == "punctuation:no_comma"


@pytest.mark.data
def test_every_shipped_task_of_the_data_folder_gives_prompts(test_data):
    sets = str(test_data / "sets")
    found = set(list_shipped_tasks()) - set(PUBLISHED)
    assert len(found) == 10
    for name in found:
        task, rows = load_task(TaskChoice(task=name), sets)
        questions = load_questions(TaskRun(task, rows))
        assert len(questions) > 90 and all(q.prompt for q in questions)
        assert name == "humaneval" or all(q.expected for q in questions)


def test_a_missing_task_is_named_with_the_nearest(tmp_path):
    for name, said in {
        "arc_esy": "nor a task of trainrig; did you mean 'arc_easy'",
        str(tmp_path / "none.toml"): "no such task file",
        "arc_easy": "set `task_rows` to the folder of that file",
    }.items():
        with pytest.raises(ConfigError, match=said):
            load_task(TaskChoice(task=name), None)
    (tmp_path / "mine.toml").write_text('name = "mine"\nrows = "/x"\nprompt = "a"\nscorin = 1\n')
    with pytest.raises(ConfigError, match=r"mine.toml:4: no key 'scorin'.*'scoring'"):
        load_task(TaskChoice(task=str(tmp_path / "mine.toml")), None)
