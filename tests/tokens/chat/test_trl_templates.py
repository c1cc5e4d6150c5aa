"""Every chat template of the installed TRL, compared with inference and with Transformers.

A sample is the prompt of inference and the answer as the template renders it when it is the last
turn. Where that differs from `apply_chat_template` of the whole row, the difference is one of
`DIFFERENCES`, with its reason.
"""

import datetime
import importlib.util
import re
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import tokenizers

from trainrig.tokens.chat.chat_messages import BadRow, Conversation, Message
from trainrig.tokens.chat.rendering import ChatRenderer, MessageForm
from trainrig.tokens.chat_template import DATE
from trainrig.tokens.tokenizers.encode import Encoder

transformers = pytest.importorskip("transformers")
NAMED = {"bos_token": "<bos>", "eos_token": "<eos>"}
# Tokens are special if they are in the published tokenizers, unlike <think> and <tool_call>.
SPECIAL = re.compile(
    r"<[|｜][^<>|｜\s]+[|｜]?>|<[^<>|｜\s]+\|>|</s>|\[/?INST\]|\[gMASK\]"
    r"|<(?:bos|eos|sop|start_of_turn|end_of_turn|end_of_utterance)>"
)


def find_folder():
    found = importlib.util.find_spec("trl")
    return Path(found.origin).parent / "chat_templates" if found and found.origin else None


FOLDER = find_folder()
ALL = sorted(path.stem for path in FOLDER.glob("*.jinja")) if FOLDER else []
NAMES = [name for name in ALL if not name.endswith("_training")]
TWINS = [name for name in NAMES if f"{name}_training" in ALL]


def make_user_turn(text):
    return Message("user", text)


def make_answer(text, **more):
    return Message("assistant", text, 1.0, more)


def make_call(city):
    arguments = {"city": city, "days": 3, "unit": None}
    function = {"name": "forecast", "arguments": arguments}
    return {"id": "call00001", "type": "function", "function": function}


def make_tool_result(text):
    return Message("tool", text, 1.0, {"name": "forecast", "tool_call_id": "call00001"})


SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}
TOOLS = (
    {
        "type": "function",
        "function": {"name": "forecast", "description": "the weather", "parameters": SCHEMA},
    },
)
INLINE = "<think>\nchew grass\n</think>\n\nGreen."
CHATS = {
    "one": [make_user_turn("Colour?"), make_answer("Green.")],
    "turns": [
        make_user_turn("Colour?"),
        make_answer("Green."),
        make_user_turn("More?"),
        make_answer("Red é猫."),
    ],
    "system": [Message("system", "be brief"), make_user_turn("Colour?"), make_answer("Green.")],
    "developer": [
        Message("developer", "be brief"),
        make_user_turn("Colour?"),
        make_answer("Green."),
    ],
    "thoughts": [
        make_user_turn("Colour?"),
        make_answer("Green.", reasoning_content="chew grass"),
        make_user_turn("More?"),
        make_answer("Red.", reasoning_content="smell a rose"),
    ],
    "inline": [
        make_user_turn("Colour?"),
        make_answer(INLINE),
        make_user_turn("More?"),
        make_answer("Red."),
    ],
    "call": [make_user_turn("Rain?"), make_answer("", tool_calls=[make_call("Paris")])],
    "tools": [
        make_user_turn("Rain?"),
        make_answer("", reasoning_content="look it up", tool_calls=[make_call("Paris")]),
        make_tool_result("wet"),
        make_answer("It rains."),
        make_user_turn("Thanks"),
        make_answer("Welcome."),
    ],
    "results": [
        make_user_turn("Rain?"),
        make_answer("", tool_calls=[make_call("Paris"), make_call("Rome")]),
        make_tool_result("wet"),
        make_tool_result("dry"),
        make_answer("Paris alone."),
    ],
}

# --- templates' refusals and omissions, none of which may be trained on silently

PARTS = ("idefics3", "llava_next", "smolvlm")
TEXT_ARGUMENTS = ("deepseek_r1_distill", "deepseekv3")
NULL_CONTENT = ("deepseek_r1_distill",)
NO_CALLS = [
    *("cohere", "cohere2", "gemma", "gemma3", "idefics3", "lfm2", "llama3", "llava_next"),
    *("phi3", "phi3_5", "qwen2_5_vl", "smolvlm"),
]
REFUSED = (
    {(name, chat): "answer_lost" for name in NO_CALLS for chat in ("call", "tools", "results")}
    | {
        (name, "developer"): "template_refuses"
        for name in (
            *("cohere", "gemma", "gemma3", "llava_next"),
            *("qwen3_5_nothink", "qwen3_5_think", "qwen3_6", "qwen3_8"),
        )
    }
    | {("gemma", "system"): "template_refuses"}
    # Templates with one call a turn: Llama's refuse a second call, gpt-oss's leaves it out.
    | {(name, "results"): "template_refuses" for name in ("llama3_1", "llama3_2")}
    | {("gptoss", "results"): "answer_lost"}
)


@cache
def make_library(name):
    """Return a byte-level tokenizer with a template's special tokens.

    It puts a BOS before each text, as Llama's do.
    """
    names = sorted({*SPECIAL.findall(read_template(name)), "<bos>", "<eos>"})
    made = tokenizers.Tokenizer(tokenizers.models.BPE())
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = tokenizers.decoders.ByteLevel()
    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    trainer = tokenizers.trainers.BpeTrainer(special_tokens=names, initial_alphabet=alphabet)
    made.train_from_iterator(["sky"], trainer)
    made.post_processor = tokenizers.processors.TemplateProcessing(
        single="<bos> $A", special_tokens=[("<bos>", made.token_to_id("<bos>"))]
    )
    return made


def read_template(name):
    return (FOLDER / f"{name}.jinja").read_text()


@cache
def make_encoder(name):
    return Encoder(make_library(name).to_str())


@cache
def make_renderer(name, template):
    return ChatRenderer(
        make_encoder(name), read_template(template), {**NAMED, DATE: datetime.date.today()}
    )


@cache
def make_theirs(name):
    return transformers.PreTrainedTokenizerFast(tokenizer_object=make_library(name), **NAMED)


def apply_theirs(name, messages, tools, template=None, **given):
    """Return Transformers' rendering of messages, in the form that the template reads."""
    form = MessageForm(
        parts=name in PARTS,
        text_arguments=name in TEXT_ARGUMENTS,
        null_content=name in NULL_CONTENT,
    )
    shown = [form.apply(message.to_json()) for message in messages]
    for turn in shown:
        if "reasoning_content" in turn:  # under the other name that templates read
            turn["thinking"] = turn["reasoning_content"]
    return make_theirs(name).apply_chat_template(
        shown,
        tools=list(tools) or None,
        chat_template=read_template(template or name),
        **{"return_dict": False, **given},
    )


@cache
def render(name, chat, template=None):
    """Return the samples of a chat, or the reason for its refusal."""
    conversation = Conversation(tuple(CHATS[chat]), list_tools(chat))
    try:
        return make_renderer(name, template or name).render_samples(conversation)
    except BadRow as why:
        return why.reason


def list_tools(chat):
    return TOOLS if chat in ("call", "tools", "results") else ()


def list_answers(samples):
    """Return the ids before each answer, and the answer's ids, keyed by turn."""
    found = {}
    for sample in samples:
        taught = np.flatnonzero(sample.weights)
        runs = np.split(taught, np.flatnonzero(np.diff(taught) > 1) + 1)
        assert len(runs) == len(sample.turns)
        for turn, run in zip(sample.turns, runs, strict=True):
            assert turn not in found  # each answer is a target once
            found[turn] = (sample.ids[: run[0]].tolist(), sample.ids[run].tolist())
    return found


# --- differences between samples and Transformers' rendering of the same turns

# The template's prompt opens thoughts, but the answer as it renders it has none. Without thoughts,
# the answer follows the header alone. With them, it follows the prompt, though the template drops
# them from its text: the model must generate them.
OPENS_AND_DROPS = ("deepseek_r1_distill", "deepseekv3")
# `enable_thinking` switches between the prompts of answers with and without thoughts.
SWITCHES = ("nemotron_3", "qwen3_5_nothink")
# A turn has no end token: the model stops at the token by which the next turn begins.
UNENDED = ("glm4moe",)
# A prompt that ends in a tool's turn has no header, but the rendered answer after it has one.
HEADLESS = {("diffusion_gemma", "tools", 3), ("diffusion_gemma", "results", 4)}
# Thoughts before a tool's result are in the prompt, and are dropped once the answer exists.
FORGETS = {("gptoss", "tools", 3)}


def list_prompts(name, messages, tools):
    """Return the ids of all possible prompts at inference, first the one without variables."""
    given = {"add_generation_prompt": True}
    prompts = [apply_theirs(name, messages, tools, **given)]
    if name.startswith(SWITCHES):
        for value in (False, True):
            prompts.append(apply_theirs(name, messages, tools, enable_thinking=value, **given))
    if name in OPENS_AND_DROPS:
        opened = make_theirs(name)("<think>\n", add_special_tokens=False)["input_ids"]
        prompts += [prompts[0][: -len(opened)]] if prompts[0][-len(opened) :] == opened else []
    return prompts


def begins_as_in_theirs(name, chat, turn):
    """Return whether prompt and answer begin as `apply_chat_template` renders them."""
    message = CHATS[chat][turn]
    thinks = "reasoning_content" in message.more or "</think>" in message.content
    dropped = name in OPENS_AND_DROPS and thinks
    return not dropped and (name, chat, turn) not in HEADLESS | FORGETS


@pytest.mark.parametrize("name", NAMES)
def test_answers_are_trained_on_as_inference_makes_them(name):
    encoder = make_encoder(name)
    special = set(encoder.special_ids.values())
    for chat, messages in CHATS.items():
        samples = render(name, chat)
        if (name, chat) in REFUSED:
            assert samples == REFUSED[name, chat], chat
            continue
        if name in NULL_CONTENT and list_tools(chat):
            continue  # Transformers leaves out null contents, without which this template fails
        assert not isinstance(samples, str), (chat, samples)
        answers = list_answers(samples)
        assert sorted(answers) == [n for n, m in enumerate(messages) if m.role == "assistant"]
        for turn, (before, said) in answers.items():
            place = (name, chat, turn)
            tools = list_tools(chat)
            prompts = list_prompts(name, messages[:turn], tools)
            assert before in prompts, place
            assert make_renderer(name, name).encode_prompt(messages[:turn], tools) == prompts[0]
            whole = apply_theirs(name, messages[: turn + 1], tools)
            joined = before + said[:-1] if name in UNENDED else before + said
            if begins_as_in_theirs(*place):
                assert whole[: len(joined)] == joined, place
            check_trained_text(encoder.decode(said), messages[turn], encoder.decode(whole), place)
            assert said[-1] in special, place
            assert encoder.decode(said).count(encoder.decode(said[-1:])) == 1 or tools, place
            rest = encoder.decode(whole[len(joined) :]) if begins_as_in_theirs(*place) else ""
            assert rest.replace("<eos>", "").strip() == "", place  # no text is left untrained


def check_trained_text(said, message, whole, place):
    """Assert that the answer's words are trained on.

    Thoughts must be trained on where the template, or only inference, has them.
    """
    content = message.content.rpartition("</think>")[2].strip()
    assert content in said, place
    for made in message.more.get("tool_calls", ()):
        assert made["function"]["name"] in said, place
        assert made["function"]["arguments"]["city"] in said, place
    thoughts = message.more.get("reasoning_content") or (
        "chew grass" if "</think>" in message.content else ""
    )
    last = whole[-len(said) - 100 :]
    if thoughts in last or (place[0] in OPENS_AND_DROPS and place[1] != "tools"):
        assert thoughts in said, place


@pytest.mark.parametrize("name", NAMES)
def test_there_is_one_bos_whatever_the_tokenizer_adds(name):
    """Tokenize texts with a BOS before each; most templates contain one already."""
    begin = make_library(name).token_to_id("<bos>")
    written = "bos_token" in read_template(name)
    samples = render(name, "turns")
    prompt = make_renderer(name, name).encode_prompt(CHATS["turns"][:3])
    for ids in [prompt, *(sample.ids.tolist() for sample in samples)]:
        assert ids.count(begin) == written
        assert not written or ids[0] == begin


# The marks of `_training` templates also include text that inference gives before the answer (a
# header, or text that a prompt opens), and text after its end that no inference asks for.
GIVEN = re.compile(
    r"(<｜Assistant｜>|<\|start\|>assistant)?"
    r"(<think>\s*(</think>\s*)?|<\|START_RESPONSE\|>|\n)?"
)
BEHIND = re.compile(r"\s*(<eos>)?")


@pytest.mark.parametrize("name", TWINS)
def test_masks_equal_generation_marks_except_for_prompts(name):
    """Compare with TRL's own variant of a template, which marks the assistant's text."""
    twin = f"{name}_training"
    encoder = make_encoder(name)
    # DeepSeek's variants read thoughts only in the content, and V3's leaves them out of its text.
    thoughts = {"deepseek_r1_distill": ["inline"], "deepseekv3": []}.get(name, ["thoughts"])
    for chat in ("one", "turns", "system", *thoughts):
        samples = render(name, chat, twin)
        if isinstance(samples, str):
            assert (name, chat) in REFUSED
            continue
        for turn, (_, said) in list_answers(samples).items():
            theirs = apply_theirs(
                name,
                CHATS[chat][: turn + 1],
                (),
                twin,
                return_dict=True,
                return_assistant_tokens_mask=True,
            )
            marked = np.flatnonzero(theirs["assistant_masks"])
            run = np.split(marked, np.flatnonzero(np.diff(marked) > 1) + 1)[-1]
            text = encoder.decode([theirs["input_ids"][at] for at in run])
            ours = encoder.decode(said)
            at = text.find(ours)
            assert at >= 0, (chat, turn, text, ours)
            assert GIVEN.fullmatch(text[:at]), (chat, turn, text[:at])
            assert BEHIND.fullmatch(text[at + len(ours) :]), (chat, turn)
