import json

from trainrig.quickstart.site.questions import (
    PRINCIPLES,
    Instruction,
    format_lines,
    format_problems,
    format_prompts,
    shuffle_answers,
    write_instructions,
)
from trainrig.quickstart.site.source_pages import Described


def describe_number(number, **changes):
    fields = {
        "name": f"pkg.part{number % 7}.call{number}",
        "module": f"pkg.part{number % 7}",
        "signature": f"call{number}(x, y=1)",
        "summary": f"Counts the {number} things that were asked for.",
    }
    return Described(**(fields | changes))


MANY = [describe_number(number) for number in range(600)]
TRAIN, HELD_OUT = write_instructions(MANY, 400, 30, seed=0)


def find_subject(instruction):
    return instruction.question.split("`")[1].rpartition(".")[2]


def test_there_are_as_many_as_asked_for_and_no_name_is_on_both_sides():
    assert (len(TRAIN), len(HELD_OUT)) == (400, 30)
    names = [*map(find_subject, TRAIN), *map(find_subject, HELD_OUT)]
    assert len(set(names)) == 430


def test_which_side_a_name_falls_on_depends_on_the_name_alone():
    few_train, few_held_out = write_instructions(MANY[::3], 600, 600, seed=5)
    all_held_out = set(map(find_subject, write_instructions(MANY, 600, 600, seed=0)[1]))
    assert set(map(find_subject, few_held_out)) <= all_held_out
    assert not set(map(find_subject, few_train)) & all_held_out


def test_the_order_is_the_seed_s_and_not_the_input_s():
    assert write_instructions(MANY[::-1], 400, 30, seed=0) == (TRAIN, HELD_OUT)
    assert write_instructions(MANY, 400, 30, seed=1)[0] != TRAIN


def test_answers_are_true():
    by_short = {item.name.rpartition(".")[2]: item for item in MANY}
    kinds = set()
    for instruction in [*TRAIN, *HELD_OUT]:
        item = by_short[find_subject(instruction)]
        truths = {
            "what": item.summary,
            "how": f"`{item.signature}`",
            "where": f"`{find_subject(instruction)}` is defined in the module `{item.module}`.",
        }
        (kind,) = (kind for kind, answer in truths.items() if answer == instruction.answer)
        kinds.add(kind)
    assert kinds == {"what", "how", "where"}


def test_a_summary_shared_by_several_is_used_once():
    twins = [describe_number(n, summary="Does what its twin does as well.") for n in range(50)]
    assert sum(map(len, write_instructions(twins, 50, 50, seed=0))) == 1


def test_nobody_is_asked_where_an_ambiguous_name_comes_from():
    same = [describe_number(n, name=f"pkg.m{n}.same", module=f"pkg.m{n}") for n in range(200)]
    train, held_out = write_instructions(same, 200, 200, seed=0)
    assert all("pkg.m" in instruction.question for instruction in [*train, *held_out])


def test_long_ones_are_left_out_and_nothing_to_ask_is_fine():
    long = [describe_number(0, name="pkg." + "long" * 150)]
    assert write_instructions(long, 10, 10, seed=0) == ([], [])
    assert write_instructions([], 10, 10, seed=0) == ([], [])


def test_a_line_is_a_chat():
    line = format_lines([TRAIN[0].build_row()])
    (question, answer) = json.loads(line)["messages"]
    assert question == {"role": "user", "content": TRAIN[0].question}
    assert answer == {"role": "assistant", "content": TRAIN[0].answer}
    assert line.count("\n") == 1


def test_rejected_answers_are_answers_to_other_questions():
    pairs = shuffle_answers(TRAIN)
    for pair, given, other in zip(pairs, TRAIN, (*TRAIN[1:], TRAIN[0]), strict=True):
        assert pair["prompt"] == [{"role": "user", "content": given.question}]
        assert pair["chosen"] == [{"role": "assistant", "content": given.answer}]
        assert pair["rejected"] == [{"role": "assistant", "content": other.answer}]


def test_the_same_answer_is_never_the_wrong_one():
    same = [Instruction(f"{n}?", answer) for n, answer in enumerate("aab")]
    wrong = [pair["rejected"][0]["content"] for pair in shuffle_answers(same)]
    assert wrong == ["b", "b", "a"]
    assert shuffle_answers(same[:2]) == shuffle_answers([]) == []


def test_the_answer_of_a_problem_is_its_sum() -> None:
    rows = [json.loads(line) for line in format_problems(0).splitlines()]
    assert len(rows) == 200
    for row in rows:
        first, second = row["question"].removeprefix("What is ").rstrip("?").split(" + ")
        assert int(first) + int(second) == int(row["answer"])
    assert format_problems(0) == format_problems(0) != format_problems(1)


def test_prompts_are_questions_and_principles_are_paragraphs() -> None:
    assert format_prompts([Instruction("Why?", "So.")]) == '{"prompt": "Why?"}\n'
    assert len([part for part in PRINCIPLES.split("\n\n") if not part.startswith("#")]) == 2
