"""Prompts from rows: texts, and conversations with their chat template and tools."""

import json

import pytest

from trainrig.errors import DataError
from trainrig.models.token_sampling import Sampling
from trainrig.posttrain.prompt_files import PromptFiles, read_prompt_set
from trainrig.posttrain.prompt_text import PromptEncoder
from trainrig.posttrain.text_generator import read_request
from trainrig.tokens.chat.chat_messages import Message

CALLED = {"name": "get", "arguments": {"city": "a", "unit": None}}
TURNS = [
    {"role": "developer", "content": "s"},
    {"role": "user", "content": "is it"},
    {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": CALLED}]},
    {"role": "tool", "content": '{"t": null}'},
]
TOOLS = [{"type": "function", "function": {"name": "get", "parameters": {"default": None}}}]


@pytest.fixture
def read(encoder, tmp_path):
    """Return the prompts of rows written to a file, and the messages about omitted rows."""

    def read_rows(rows, longest=400, **files):
        path = tmp_path / "prompts.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        given = PromptFiles.model_validate({"paths": (str(path),), "chat": True, **files})
        return read_prompt_set(given, PromptEncoder(encoder), longest)

    return read_rows


def test_a_conversation_is_asked_whole_with_its_tools(read, encoder):
    (found,) = read([{"prompt": TURNS, "tools": json.dumps(TOOLS)}]).prompts
    text = encoder.decode(list(found.ids))
    assert text.startswith("<|end_of_text|><|system|>s\n\nTools") and '"default": null' in text
    assert '"unit": null' in text and text.endswith("</tool_response><|end_of_turn|><|assistant|>")
    assert found.build_fields() == {"prompt": TURNS, "tools": TOOLS}
    assert found.text.startswith("developer: s\n\nuser: is it\n\n")


def test_a_single_message_is_a_plain_text_prompt(read):
    rows = [{"q": "is it"}, {"q": [{"role": "user", "content": "is it"}]}]
    text, chat = read(rows, template=" {{ q }} ").prompts
    assert (text.text.strip(), chat.text) == ("is it", "is it")
    (same,) = read(rows[:1], template="{{ q }}").prompts
    assert same.ids == chat.ids and same.build_fields() == {"prompt": "is it"}


@pytest.mark.parametrize(
    ("row", "files", "said"),
    [
        (
            {"prompt": TURNS},
            {"chat": False},
            "`prompt` is a list of messages; set prompts.chat = true",
        ),
        ({"prompt": TURNS}, {"template": "{{ prompt }}!"}, "is not a text; name a part of it"),
        ({"prompt": TURNS[:3]}, {}, "`prompt` must not be empty or end in a turn of the assistant"),
        ({"prompt": []}, {}, "`prompt` must not be empty"),
        ({"prompt": [{"role": "bot", "content": "a"}]}, {}, "unknown_role: `role` is 'bot'"),
        ({"prompt": TURNS, "tools": [1]}, {}, "bad_tools"),
    ],
)
def test_a_conversation_that_cannot_be_asked_is_left_out_and_says_why(
    read, row, files, said, caplog
):
    with pytest.raises(DataError, match="none of 1 rows"):
        read([row], **files)
    assert said in caplog.text


def test_ignored_columns_of_prompts_are_logged_once(read, caplog):
    asked = [{"role": "user", "content": "a"}]
    read([{"prompt": "a", "tools": TOOLS}, {"prompt": asked, "images": ["x"]}, {"prompt": "b"}])
    assert caplog.text.count("fields that are not used") == 1
    assert "images in 1, tools of a prompt that is one text in 1" in caplog.text
    caplog.clear()
    read([{"prompt": "a", "tools": TOOLS}], template="{{ prompt }} {{ tools | tojson }}")
    assert not caplog.text


def test_a_row_to_generate_from_has_its_tools(encoder):
    request = read_request({"messages": TURNS, "tools": TOOLS}, Sampling())
    ids = PromptEncoder(encoder).encode(request.prompt)
    assert '"default": null' in encoder.decode(ids)
    plain = read_request({"messages": TURNS[1:2]}, Sampling())
    assert PromptEncoder(encoder).encode(plain.prompt) == PromptEncoder(encoder).encode(
        (Message("user", "is it"),)
    )
