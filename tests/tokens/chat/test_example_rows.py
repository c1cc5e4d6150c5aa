"""Rows of user data: the conversation that each is read as, and the reasons for refusals."""

import json

import pytest

from trainrig.tokens.chat.chat_messages import BadRow
from trainrig.tokens.chat.example_rows import parse_example

ASKED = {"role": "user", "content": "weather in Paris?"}
CALLED = {"name": "get", "arguments": {"city": "Paris", "unit": None}}
CALL = {"type": "function", "function": CALLED}
CALLS = {"role": "assistant", "content": "", "tool_calls": [CALL]}
SCHEMA = {"name": "get", "parameters": {"type": "object", "default": None, "enum": [None, 1]}}
TOOL = {"type": "function", "function": SCHEMA}
RESULT = {"role": "tool", "content": '{"t": 3}', "name": "get"}
SAID = {"role": "assistant", "content": "3 degrees"}
CHAT = [ASKED, CALLS, RESULT, SAID]

SHAREGPT = [
    {"from": "human", "value": "weather in Paris?"},
    {"from": "function_call", "value": json.dumps(CALLED)},
    {"from": "observation", "value": '{"t": 3}'},
    {"from": "gpt", "value": "3 degrees"},
]
QUOTED = '<functioncall> {"name": "get", "arguments": \'{"city": "Paris", "unit": null}\'}'
GLAIVE = (
    f"USER: weather in Paris?\n\n\nASSISTANT: {QUOTED} <|endoftext|>\n\n\n"
    'FUNCTION RESPONSE: {"t": 3}\n\n\nASSISTANT: 3 degrees <|endoftext|>\n\n\n'
)
OPENAI_OLD = [
    ASKED,
    {
        "role": "assistant",
        "content": None,
        "function_call": {"name": "get", "arguments": json.dumps(CALLED["arguments"])},
    },
    {"role": "function", "name": "get", "content": {"t": 3}},
    SAID,
]


def read(row, kind="conversations", parquet=False, **columns):
    return parse_example(row, columns, kind, parquet=parquet)


def find_reason(chat):
    return [message.to_json() for message in chat.messages]


@pytest.mark.parametrize(
    "row",
    [
        {"messages": CHAT, "tools": [TOOL]},
        {"messages": CHAT, "tools": json.dumps([TOOL])},
        {"messages": CHAT, "tools": [json.dumps(TOOL)]},
        {"messages": json.dumps(CHAT), "tools": [TOOL]},
        {"messages": OPENAI_OLD, "functions": [SCHEMA]},
        {"prompt": CHAT[:3], "completion": CHAT[3:], "tools": [TOOL]},
        {"conversations": SHAREGPT, "tools": json.dumps([SCHEMA])},
        {"conversations": CHAT, "tools": [TOOL]},
        {"chat": GLAIVE, "tools": [SCHEMA]},
        {"chat": GLAIVE, "system": f"SYSTEM: \n{json.dumps(SCHEMA, indent=4)}\n"},
        {
            "conversations": [
                SHAREGPT[0],
                {"from": "gpt", "value": QUOTED},
                {"from": "human", "value": 'FUNCTION RESPONSE: {"t": 3}'},
                SHAREGPT[3],
            ],
            "tools": [SCHEMA],
        },
        {
            "messages": [
                ASKED,
                {"role": "tool_call", "content": json.dumps(CALLED)},
                {"role": "tool_response", "content": '{"t": 3}'},
                SAID,
            ],
            "tools": [TOOL],
        },
    ],
    ids=[
        *(
            "openai",
            "tools_json",
            "tools_of_json",
            "messages_json",
            "functions",
            "prompt",
            "sharegpt",
        ),
        *("roles_in_conversations", "glaive", "glaive_system", "glaive_sharegpt", "ms_swift"),
    ],
)
def test_calls_of_all_formats_are_the_templates_calls_and_keep_their_nulls(row):
    (chat,) = read(row).chats
    assert find_reason(chat) == CHAT
    assert list(chat.tools) == [TOOL]


def test_calls_in_separate_turns_join_the_previous_assistant_turn():
    several = json.dumps([CALLED, {"name": "put", "arguments": {}}])
    row = {
        "conversations": [
            {"from": "human", "value": "a"},
            {"from": "gpt", "value": "I look."},
            {"from": "function_call", "value": several},
            {"from": "observation", "value": "[1, 2]"},
            {"from": "function_call", "value": f"<think>\nhm\n</think>\n\n{json.dumps(CALLED)}"},
            {"from": "observation", "value": [{"t": 3}]},
            {"from": "gpt", "value": "b"},
        ]
    }
    turns = find_reason(read(row).chats[0])
    put = {"type": "function", "function": {"name": "put", "arguments": {}}}
    assert turns[1] == {"role": "assistant", "content": "I look.", "tool_calls": [CALL, put]}
    # After two calls, the result's call is unknown.
    assert turns[2] == {"role": "tool", "content": "[1, 2]"}
    assert (turns[3]["content"], turns[3]["tool_calls"]) == ("<think>\nhm\n</think>\n\n", [CALL])
    assert turns[4] == {"role": "tool", "content": '[{"t": 3}]', "name": "get"}


@pytest.mark.parametrize(
    ("name", "role"),
    [
        *((name, "assistant") for name in ("gpt", "chatgpt", "bing", "bard", "assistant", "model")),
        *((name, "user") for name in ("human", "user")),
        *((name, "tool") for name in ("tool", "function", "ipython", "observation")),
        *((name, name) for name in ("system", "developer")),
    ],
)
def test_all_names_of_roles_are_known(name, role):
    for row in (
        {"conversations": [{"from": name, "value": "x"}, SHAREGPT[0], SHAREGPT[3]]},
        {"messages": [{"role": name, "content": "x"}, ASKED, SAID]},
    ):
        assert find_reason(read(row).chats[0])[0] == {"role": role, "content": "x"}


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("a b", "a b"),
        ([{"type": "text", "text": "a "}, {"type": "text", "text": "b", "image_url": None}], "a b"),
        (["a ", "b"], "a b"),
        ({"type": "text", "text": "a b"}, "a b"),
        ({"content_type": "text", "parts": ["a ", "b"]}, "a b"),
    ],
)
def test_a_content_is_a_text_or_has_parts(content, text):
    for role in ("system", "user", "developer"):
        row = {"messages": [{"role": role, "content": content}, ASKED, SAID]}
        assert find_reason(read(row).chats[0])[0]["content"] == text


def test_a_tool_may_return_any_json():
    for content in ({"t": None}, [1, {"a": 2}], 42, False, [{"type": "car"}]):
        row = {"messages": [ASKED, CALLS, {"role": "tool", "content": content}, SAID]}
        assert find_reason(read(row).chats[0])[2]["content"] == json.dumps(content)


def test_history_precedes_the_question_and_is_trained_on():
    history = [["a", "b"], ["c", "d"]]
    row = {"instruction": "e", "input": "f", "output": "g", "history": history, "system": "s"}
    for given in (row, {**row, "history": json.dumps(history)}):
        (chat,) = read(given).chats
        assert [turn.content for turn in chat.messages] == ["s", "a", "b", "c", "d", "e\n\nf", "g"]
        assert chat.trained_turns == [2, 4, 6]
        assert chat.train_on_last().trained_turns == [6]
    for nothing in ([], None, ""):
        assert len(read({**row, "history": nothing}).chats[0].messages) == 3


@pytest.mark.parametrize(
    ("marks", "weight"),
    [
        ({}, 1.0),
        ({"weight": 0}, 0.0),
        ({"weight": 1, "train": None}, 1.0),
        ({"weight": 0.25}, 0.25),
        ({"train": False}, 0.0),
        ({"train": True}, 1.0),
        ({"train": True, "weight": 0.5}, 0.5),
        ({"train": 0, "weight": 1}, 0.0),
        ({"loss": False}, 0.0),
        ({"loss": 2.7}, 1.0),
    ],
)
def test_a_turn_is_trained_on_by_its_marks(marks, weight):
    last = {"role": "assistant", "content": "z"}
    chat = read({"messages": [ASKED, {**SAID, **marks}, ASKED, last]}).chats[0]
    assert chat.messages[1].weight == weight
    turns = [{**SHAREGPT[3], **marks}, SHAREGPT[0], SHAREGPT[3]]
    assert read({"conversations": [SHAREGPT[0], *turns]}).chats[0].messages[1].weight == weight


THOUGHT = {"role": "assistant", "content": "so", "reasoning_content": "hm"}
ASKED_PROMPT = [{"role": "developer", "content": "be brief"}, *CHAT[:3], THOUGHT, ASKED]
GOOD = {"role": "assistant", "content": "3"}
POOR = {"role": "assistant", "content": "4"}


@pytest.mark.parametrize(
    "row",
    [
        {"prompt": ASKED_PROMPT, "chosen": [GOOD], "rejected": [POOR]},
        {"prompt": ASKED_PROMPT, "chosen": "3", "rejected": POOR},
        {"chosen": [*ASKED_PROMPT, GOOD], "rejected": [*ASKED_PROMPT, POOR]},
        {
            "prompt": ASKED_PROMPT[1:],
            "chosen": [*ASKED_PROMPT, GOOD],
            "rejected": [*ASKED_PROMPT, POOR],
        },
        {
            "prompt": ASKED_PROMPT,
            "chosen": [*ASKED_PROMPT[1:], GOOD],
            "rejected": [*ASKED_PROMPT[1:], POOR],
        },
        {"messages": ASKED_PROMPT, "chosen": GOOD, "rejected": POOR},
        {
            "conversations": ASKED_PROMPT,
            "chosen": {"from": "gpt", "value": "3"},
            "rejected": {"from": "gpt", "value": "4"},
        },
    ],
    ids=[
        *("explicit", "mixed", "implicit", "system_in_answers", "system_in_prompt"),
        *("messages", "llama_factory"),
    ],
)
def test_pairs_of_all_formats_keep_all_of_their_prompts(row):
    example = read({**row, "tools": [TOOL]}, kind="pairs")
    for chat, answer in zip(example.chats, (GOOD, POOR), strict=True):
        assert find_reason(chat) == [*ASKED_PROMPT, answer]
        assert list(chat.tools) == [TOOL]
        assert chat.trained_turns == [len(ASKED_PROMPT)]


def test_pairs_of_alpaca_have_their_instruction_as_the_prompt():
    row = {
        "instruction": "The sky?",
        "input": "now",
        "chosen": "It is blue",
        "rejected": "It is red",
    }
    for chat, answer in zip(
        read(row, kind="pairs").chats, ("It is blue", "It is red"), strict=True
    ):
        assert [turn.content for turn in chat.messages] == ["The sky?\n\nnow", answer]


def test_weights_of_answers_that_begin_with_their_prompt_are_kept():
    row = {"chosen": [ASKED, {**GOOD, "weight": 0.5}], "rejected": [ASKED, POOR]}
    assert [chat.messages[1].weight for chat in read(row, kind="pairs").chats] == [0.5, 1.0]


def test_rankings_are_pairs_of_the_answers_that_columns_name():
    answers = [{"answer": "best", "rank": 1.0}, {"answer": "worst", "rank": 7.0}]
    row = {"prompt": "\n\nHuman: why?\n\nAssistant: ", "answers": answers}
    columns = {"chosen": "answers.0.answer", "rejected": "answers.1.answer"}
    for chat, answer in zip(read(row, "pairs", **columns).chats, ("best", "worst"), strict=True):
        assert [turn.content for turn in chat.messages] == ["why?", answer]


@pytest.mark.parametrize(
    "row",
    [
        {"prompt": CHAT[:3], "completion": [SAID]},
        {"messages": CHAT},
        {"conversations": SHAREGPT, "kto_tag": None},
        {"conversations": CHAT},
    ],
)
def test_a_labelled_conversation_is_its_last_answer_with_the_label(row):
    example = read({**row, "label": False, "tools": [TOOL]}, kind="labelled")
    (chat,) = example.chats
    assert find_reason(chat) == CHAT
    assert (example.kind, example.label, chat.trained_turns) == ("labelled", 0, [3])
    assert list(chat.tools) == [TOOL]


def test_a_solution_in_steps_keeps_tools_and_turns_of_its_prompt():
    row = {"prompt": CHAT[:3], "completions": ["one", "two"], "labels": [True, False]}
    example = read({**row, "tools": [TOOL]}, kind="steps")
    (chat,) = example.chats
    assert find_reason(chat)[:3] == CHAT[:3] and list(chat.tools) == [TOOL]
    assert example.step_labels == (1, 0)


def test_nulls_of_parquet_are_keys_that_are_not_there_but_for_those_in_json():
    row = {"messages": [{**turn, "tool_calls": turn.get("tool_calls")} for turn in CHAT]}  # type: ignore[attr-defined]
    whole = read({**row, "tools": [TOOL]}).chats[0]
    assert find_reason(whole) == CHAT
    example = read({**row, "tools": [TOOL]}, parquet=True)
    filled = example.chats[0]
    arguments = filled.messages[1].more["tool_calls"][0]["function"]["arguments"]
    assert arguments == {"city": "Paris"}
    assert filled.tools[0]["function"]["parameters"] == {"type": "object", "enum": [None, 1]}
    assert ["null keys" in said for said in example.unread] == [True]
    written = {**CALL, "function": {**CALLED, "arguments": json.dumps(CALLED["arguments"])}}
    turns = [ASKED, {**CALLS, "tool_calls": [written]}, RESULT, SAID]
    kept = read({"messages": turns, "tools": json.dumps([TOOL])}, parquet=True)
    assert find_reason(kept.chats[0]) == CHAT and list(kept.chats[0].tools) == [TOOL]
    assert not kept.unread


def turn(**given):
    return {"messages": [ASKED, {"role": "assistant", "content": "a", **given}]}


def chats(*turns):
    return {"conversations": [SHAREGPT[0], *turns, SHAREGPT[3]]}


@pytest.mark.parametrize(
    ("row", "kind", "reason", "named"),
    [
        (turn(train="no"), None, "bad_weight", "`train` is 'no'"),
        (turn(train_detail=[{"train": False}]), None, "bad_weight", "`train_detail` is"),
        (turn(weight=True), None, "bad_weight", "weight True"),
        (turn(content={"a": 1}), None, "not_text", r"`content` is \{'a': 1\}"),
        (turn(content=None), None, "not_text", "`content` of a turn of the assistant is null"),
        (
            turn(content=[{"type": "image", "image": "x"}]),
            None,
            "not_text",
            r"the part \{'type': 'image'",
        ),
        (turn(role="bot"), None, "unknown_role", "`role` is 'bot'; known: system"),
        (chats({"from": "bot", "value": "a"}), None, "unknown_role", "`from` is 'bot'"),
        (chats({"from": "function_call", "value": "get()"}), None, "bad_tool_calls", r"'get\(\)'"),
        (chats({"from": "gpt", "value": "<functioncall> get"}), None, "bad_tool_calls", "'get'"),
        (chats({"value": "a"}), None, "not_messages", r"found \{'value': 'a'\}"),
        (turn(tool_calls="get"), None, "not_messages", "`tool_calls` is text, but not JSON"),
        ({**turn(), "tools": [1]}, None, "bad_tools", r"`tools` is \[1\]"),
        ({"chat": "hello"}, None, "not_messages", "`chat` is 'hello'"),
        ({"chat": GLAIVE, "system": "SYSTEM: a {b"}, None, "bad_tools", "'{b'"),
        (
            {"instruction": "a", "output": "b", "history": [["c"]]},
            None,
            "bad_history",
            r"`history` has \['c'\]",
        ),
        (
            {"question": "why?", "chosen": "It is so", "rejected": "It is not"},
            "pairs",
            "no_prompt",
            "a column `question`: name it by columns.prompt",
        ),
        (
            {
                "prompt": [{"role": "system", "content": "x"}, ASKED],
                "chosen": [{"role": "system", "content": "y"}, ASKED, GOOD],
                "rejected": [POOR],
            },
            "pairs",
            "prompt_differs",
            "after another system turn 'y'",
        ),
    ],
)
def test_an_unknown_row_is_refused_with_its_key_and_value(row, kind, reason, named):
    with pytest.raises(BadRow, match=f"^{reason}: .*{named}"):
        read(row, kind or "conversations")


def test_unread_keys_that_change_the_meaning_are_reported():
    row = {
        **turn(images=["a.png"]),
        "chat_template_kwargs": {"enable_thinking": False},
        "margin": 2.0,
        "history": [["a", "b"]],
        "id": 7,
    }
    row["messages"][0] = {**ASKED, "train": True}
    assert read(row).unread == (
        *("chat_template_kwargs", "margin", "history"),
        *("train = true of a turn of the user", "images of a message"),
    )
    assert read({**turn(), "images": [], "margin": None}).unread == ()
