"""Recognition of rows by their columns: documents, chats, preference pairs, or problems.

A row may have several roles: a question with its answer is a chat, and also a problem for
reinforcement learning. A role maps fields to the columns that hold them.
"""

import functools
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal

from trainrig.projects.project_kinds import Role
from trainrig.tokens.chat.chat_messages import BadRow
from trainrig.tokens.chat.example_rows import parse_example

Columns = Mapping[str, str]  # field to column
Row = Mapping[str, Any]

# Names of columns that hold a field, most usual first.
TEXTS = (
    "text",
    "content",
    "body",
    "raw_content",
    "page_content",
    "document",
    "article",
    "markdown",
)
DIALOGUES = ("conversation", "dialog", "dialogue", "turns", "chat")
PROMPTS = ("prompt", "instruction", "question", "query", "problem", "input")
ANSWERS = ("completion", "response", "answer", "output", "reply", "solution")
TARGETS = ("answer", "target", "final_answer", "ground_truth", "reference_answer", "solution")
PREFERENCES = (
    ("chosen", "rejected"),
    ("chosen_response", "rejected_response"),
    ("preferred", "dispreferred"),
    ("better", "worse"),
)
HTML = "html"
FITTING = 0.5  # least share of rows that must have a role for the file to have it

# Words for each role in messages, and an example of its rows.
NOUNS: Mapping[Role, str] = {
    "documents": "documents",
    "chats": "chats",
    "pairs": "preference pairs",
    "problems": "problems with answers",
    "pages": "pages",
}
EXAMPLES: Mapping[Role, str] = {
    "documents": 'JSON lines or Parquet with a column `text`, such as {"text": "…"}',
    "chats": '{"messages": [{"role": "user", "content": "…"}, …]} or {"prompt": "…", '
    '"completion": "…"}',
    "pairs": '{"prompt": "…", "chosen": "…", "rejected": "…"}',
    "problems": '{"question": "…", "answer": "…"}',
    "pages": "WARC, HTML or text files",
}


def find_roles(rows: Sequence[Row], parquet: bool) -> dict[Role, Columns]:
    """Return the roles of a file whose first rows are `rows`, with the columns of each role."""
    found: dict[Role, Columns] = {}
    there = {name for row in rows for name, value in row.items() if value is not None}
    if pairs := _choose(rows, there, _list_pair_columns(), _reads_as("pairs", parquet)):
        return {"pairs": pairs[0]}
    if chats := _choose(rows, there, _list_chat_columns(), _reads_as("conversations", parquet)):
        found["chats"] = chats[0]
    if problems := _choose(rows, there, _list_problem_columns(), _is_problem):
        found["problems"] = problems[0]
    if texts := _choose(rows, there, ({"text": name} for name in TEXTS), _is_document):
        found["documents"] = texts[0]
    if pages := _choose(rows, there, iter([{"html": HTML}]), _is_page):
        found["pages"] = pages[0]
    return found


def _choose(
    rows: Sequence[Row],
    there: set[str],
    choices: Iterator[Columns],
    fits: Callable[[Columns, Row], bool],
) -> list[Columns]:
    """Return, in a list, the first of `choices` whose columns fit enough rows; [] if none does."""
    possible = (columns for columns in choices if there.issuperset(columns.values()))
    enough = max(1, FITTING * len(rows))
    fitting = (c for c in possible if sum(fits(c, row) for row in rows) >= enough)
    return list(itertools.islice(fitting, 1))


def _list_chat_columns() -> Iterator[Columns]:
    yield {}
    yield from ({"messages": name} for name in DIALOGUES)
    for prompt, answer in itertools.product(PROMPTS, ANSWERS):
        yield {"prompt": prompt, "completion": answer}


def _list_pair_columns() -> Iterator[Columns]:
    for chosen, rejected in PREFERENCES:
        answers = {"chosen": chosen, "rejected": rejected}
        plain = {field: column for field, column in answers.items() if field != column}
        yield plain
        yield from ({"prompt": prompt, **plain} for prompt in PROMPTS[1:])


def _list_problem_columns() -> Iterator[Columns]:
    for prompt, answer in itertools.product(PROMPTS, TARGETS):
        yield {"prompt": prompt, "answer": answer}


def _reads_as(
    kind: Literal["conversations", "pairs"], parquet: bool
) -> Callable[[Columns, Row], bool]:
    return functools.partial(_is_example, kind, parquet)


def _is_example(
    kind: Literal["conversations", "pairs"], parquet: bool, columns: Columns, row: Row
) -> bool:
    """Return whether `trainrig conversations` would accept the row."""
    try:
        parse_example(row, columns, kind, parquet=parquet)
    except BadRow:
        return False
    return True


def _is_problem(columns: Columns, row: Row) -> bool:
    target = row.get(columns["answer"])
    is_value = isinstance(target, str | int | float) and str(target).strip() != ""
    return is_value and _is_text(row.get(columns["prompt"]))


def _is_document(columns: Columns, row: Row) -> bool:
    return _is_text(row.get(columns["text"]))


def _is_page(columns: Columns, row: Row) -> bool:
    return _is_text(row.get(columns["html"]))


def _is_text(value: object) -> bool:
    return isinstance(value, str) and bool(value.strip())


def extract_text(role: Role, columns: Columns, row: Row, parquet: bool) -> str:
    """Return all text of a row in `role`, to measure its length; "" for a row that does not fit."""
    if role in ("documents", "pages"):
        value = row.get(next(iter(columns.values())))
        return value if isinstance(value, str) else ""
    if role == "problems":
        return f"{row.get(columns['prompt'])}\n{row.get(columns['answer'])}"
    kind: Literal["conversations", "pairs"] = "pairs" if role == "pairs" else "conversations"
    try:
        example = parse_example(row, columns, kind, parquet=parquet)
    except BadRow:
        return ""
    chats = ("\n".join(turn.content for turn in chat.messages) for chat in example.chats)
    return max(chats, key=len)
