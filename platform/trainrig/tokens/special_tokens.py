"""Special tokens: their names, and detection of each role's token in the files of a tokenizer.

Special tokens are inserted by code and never produced from text.

A role is what code asks for, such as the end of a text, padding or the end of a turn. These places
are searched in order, and the first token that the tokenizer has is used:

1. `roles.json`, in which a user assigns roles;
2. `tokenizer_config.json` and `special_tokens_map.json`, which name tokens;
3. `generation_config.json` and `config.json`, which give ids;
4. the rendered chat template: the token after an answer ends a turn;
5. the names in published tokenizers.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

import tokenizers

from trainrig import storage
from trainrig.errors import DataError, InputError
from trainrig.tokens.chat_template import render_chat

END_OF_TEXT = "<|end_of_text|>"
PAD = "<|pad|>"
USER = "<|user|>"
ASSISTANT = "<|assistant|>"
END_OF_TURN = "<|end_of_turn|>"
BEGIN_OF_TEXT = "<|begin_of_text|>"
SYSTEM = "<|system|>"
MASK = "<|mask|>"  # only in tokenizers trained with it among their `extra` tokens
# In tokenizers that trainrig trains, the ids are the indices in this tuple: 0 … 6.
SPECIAL_TOKENS = (END_OF_TEXT, PAD, USER, ASSISTANT, END_OF_TURN, BEGIN_OF_TEXT, SYSTEM)

# Names of these roles in published tokenizers, which may not use trainrig's names.
PUBLISHED_NAMES: Mapping[str, tuple[str, ...]] = {
    END_OF_TEXT: (
        "<|endoftext|>",  # GPT-2, GPT-NeoX, OLMo, Qwen
        "</s>",  # Llama 2, Mistral
        "<eos>",  # Gemma
        "<｜end▁of▁sentence｜>",  # DeepSeek
    ),
    PAD: (
        "<pad>",  # Gemma
        "[PAD]",
        "<|padding|>",  # GPT-NeoX, OLMo
        "<|finetune_right_pad_id|>",  # Llama 3.1
        "<｜▁pad▁｜>",  # DeepSeek
    ),
    USER: ("<｜User｜>",),  # DeepSeek
    ASSISTANT: ("<｜Assistant｜>",),  # DeepSeek
    END_OF_TURN: (
        "<|eot_id|>",  # Llama 3
        "<|im_end|>",  # Qwen
        "<end_of_turn>",  # Gemma
    ),
    BEGIN_OF_TEXT: (
        "<s>",  # Llama 2, Mistral
        "<bos>",  # Gemma
        "<｜begin▁of▁sentence｜>",  # DeepSeek
    ),
    SYSTEM: (),
    MASK: (
        "[MASK]",  # BERT, ModernBERT
        "<mask>",  # RoBERTa
    ),
}


# Tokens that objectives other than next-token prediction need. They have no role in a text, so they
# are found by these names alone: names in published tokenizers, where there are any.
# Fill in the middle (arXiv:2207.14255): before the prefix, before the suffix, before the middle.
FIM_PREFIX = ("<|fim_prefix|>", "<fim_prefix>", "<｜fim▁begin｜>")  # Qwen; StarCoder; DeepSeek
FIM_SUFFIX = ("<|fim_suffix|>", "<fim_suffix>", "<｜fim▁hole｜>")
FIM_MIDDLE = ("<|fim_middle|>", "<fim_middle>", "<｜fim▁end｜>")
# Denoisers of UL2, which mark a row: names in the paper (arXiv:2205.05131) and its checkpoints.
MODES: Mapping[str, tuple[str, ...]] = {
    "R": ("[R]", "[NLU]"),
    "S": ("[S]", "[S2S]"),
    "X": ("[X]", "[NLG]"),
}


def name_sentinel(number: int) -> str:
    """Return T5's name for the token that replaces left-out span `number`, counted from 0."""
    return f"<extra_id_{number}>"


def list_special_tokens(reserved: int, sentinels: int = 0, extra: Sequence[str] = ()) -> list[str]:
    """Return the special tokens of a tokenizer that trainrig trains, in the order of their ids.

    These are trainrig's own, `reserved` slots, `sentinels` for spans, and the `extra` ones. A slot
    is a special token without a meaning. A model can be taught one later without new entries in
    its vocabulary.
    """
    slots = (f"<|reserved_{slot}|>" for slot in range(reserved))
    return [*SPECIAL_TOKENS, *slots, *map(name_sentinel, range(sentinels)), *extra]


def find_named(tokens: Mapping[str, int], names: Sequence[str]) -> int | None:
    """Return the id of the first of `names` that is among `tokens`, or None."""
    return next((tokens[name] for name in names if name in tokens), None)


def find_role_id(tokens: Mapping[str, int], role: str) -> int | None:
    """Return the id of the token with `role` (`END_OF_TEXT`, `PAD`, …) among `tokens`, or None.

    trainrig's own name takes precedence over published names: an imported tokenizer's `</s>` is its
    end of text unless it also has `<|end_of_text|>`. A special token that is not a role is found by
    its own name.
    """
    for name in (role, *PUBLISHED_NAMES.get(role, ())):
        if name in tokens:
            return tokens[name]
    return None


TOKENIZER = "tokenizer.json"
TOKENIZER_CONFIG = "tokenizer_config.json"
MAP = "special_tokens_map.json"
GENERATION = "generation_config.json"
MODEL_CONFIG = "config.json"
TEMPLATE_FILE = "chat_template.jinja"
ROLES = "roles.json"  # trainrig's own: role → token, for roles that the other files do not give
NEW_TOKENS = "new_tokens.json"  # trainrig's own: the tokens that `import --add-token` added
# One file with the content of all others, in folders that trainrig writes: file name → text.
BROUGHT = "brought.json"
# Files beside a tokenizer.json that are read and carried along with it.
BESIDE = (TOKENIZER_CONFIG, MAP, GENERATION, MODEL_CONFIG, TEMPLATE_FILE, ROLES)

Role = Literal["begin", "end", "pad", "mask", "end_of_turn", "user", "assistant", "system"]
# The role of each of trainrig's own special tokens.
ROLE_OF: Mapping[str, Role] = {
    BEGIN_OF_TEXT: "begin",
    END_OF_TEXT: "end",
    PAD: "pad",
    MASK: "mask",
    END_OF_TURN: "end_of_turn",
    USER: "user",
    ASSISTANT: "assistant",
    SYSTEM: "system",
}
NAME_OF: Mapping[Role, str] = {role: name for name, role in ROLE_OF.items()}
_KEYS: Mapping[Role, str] = {
    "begin": "bos_token",
    "end": "eos_token",
    "pad": "pad_token",
    "mask": "mask_token",
}
_QUESTIONS = ("what is one?", "and what is two?")
_ANSWERS = ("it is three", "it is four")


@dataclass(frozen=True)
class TokenizerFiles:
    """A tokenizer.json and the files beside it; picklable."""

    tokenizer: str  # text of tokenizer.json
    beside: Mapping[str, str] = field(default_factory=dict)  # file name → text
    where: str = TOKENIZER  # path for error messages

    @classmethod
    def read(cls, path: str) -> "TokenizerFiles":
        """Read the files in the folder `path`, or beside the tokenizer.json at `path`.

        Raises DataError if there is no tokenizer.json.
        """
        folder, _, name = path.rpartition("/") if path.endswith(".json") else (path, "", TOKENIZER)
        where = storage.join(folder, name or TOKENIZER)
        text = _read_text(where)
        if text is None:
            raise DataError(
                f"{where}: no such file; `trainrig tokenizer` makes one, and so does "
                "`save_pretrained` of Transformers' AutoTokenizer for any published tokenizer"
            )
        brought = _read_text(storage.join(folder, BROUGHT))
        if brought is not None:
            return cls(text, json.loads(brought), where)
        found = {file: _read_text(storage.join(folder, file)) for file in BESIDE}
        return cls(
            text, {file: content for file, content in found.items() if content is not None}, where
        )

    @property
    def brought(self) -> bytes:
        """The files beside tokenizer.json, as the content of the file `BROUGHT`."""
        return json.dumps(dict(self.beside), indent=1, ensure_ascii=False, sort_keys=True).encode()

    def with_roles(self, roles: Mapping[str, str]) -> "TokenizerFiles":
        """Return a copy in which `roles` (role → token) take precedence.

        Raises DataError for an unknown role.
        """
        for role in roles:
            if role not in NAME_OF:
                raise DataError(f"no role {role!r}; there are: {', '.join(NAME_OF)}")
        given = self.parse_json(ROLES) | dict(roles)
        return TokenizerFiles(
            self.tokenizer, {**self.beside, ROLES: json.dumps(given, indent=1)}, self.where
        )

    def parse_json(self, name: str) -> dict[str, Any]:
        """Return the JSON object in the file `name`, or {} if there is no such file.

        Raises DataError if the file is not a JSON object.
        """
        try:
            value = json.loads(self.beside.get(name, "{}"))
        except ValueError as error:
            raise DataError(f"{self._place(name)}: not JSON: {error}") from None
        if not isinstance(value, dict):
            raise DataError(f"{self._place(name)}: not a JSON object")
        return value

    @cached_property
    def chat_template(self) -> str | None:
        """The Jinja template for conversations, or None; of several, the one named "default"."""
        if TEMPLATE_FILE in self.beside:
            return self.beside[TEMPLATE_FILE]
        found = self.parse_json(TOKENIZER_CONFIG).get("chat_template")
        if isinstance(found, list):  # older files have several named templates
            named = {entry["name"]: entry["template"] for entry in found}
            return named.get("default") or next(iter(named.values()), None)
        return found

    def _place(self, name: str) -> str:
        return storage.join(self.where.rpartition("/")[0], name)


@dataclass(frozen=True)
class SpecialToken:
    """A token that is never produced from text."""

    text: str
    id: int


@dataclass(frozen=True)
class SpecialTokens:
    """The token of each role; None if no token has the role, or none was found."""

    begin: SpecialToken | None  # precedes a text
    end: SpecialToken | None  # follows a text, and separates documents
    pad: SpecialToken | None
    mask: SpecialToken | None  # replaces a token that is to be predicted
    end_of_turn: SpecialToken | None  # follows each message of a conversation
    # Tokens that precede a message, in tokenizers where one token names the message's role.
    user: SpecialToken | None
    assistant: SpecialToken | None
    system: SpecialToken | None
    stop_ids: tuple[int, ...]  # ids that end an answer
    prefix: tuple[int, ...]  # ids that the tokenizer adds before a text, mostly `begin`
    chat_template: str | None
    names: Mapping[str, int]  # name → id, for all special tokens
    entries: int  # number of entries of the vocabulary; every id is below it
    where: str  # path for error messages

    @property
    def padding(self) -> int:
        """Id that fills rows: the pad token's, or any other, because padding is masked."""
        token = self.pad or self.end or self.begin
        return token.id if token else 0

    def of(self, role: Role) -> SpecialToken:
        """Return the token of `role`; raise DataError, which says how to name one, if none."""
        token: SpecialToken | None = getattr(self, role)
        if token is None:
            there = ", ".join(list(self.names)[:12]) or "none"
            raise DataError(
                f"{self.where}: no special token has the role {role!r} ({NAME_OF[role]}); the "
                f'tokenizer has {there}. Write {{"{role}": "<token>"}} to {ROLES} in the same '
                f"folder, or import the model with --role {role}=TOKEN"
            )
        return token


def find_special_tokens(
    files: TokenizerFiles, parsed: tokenizers.Tokenizer | None = None
) -> SpecialTokens:
    """Return the special tokens of a tokenizer by role; `parsed` saves parsing it again.

    Raises DataError for files that contradict each other.
    """
    return _Search(files, parsed or parse_tokenizer(files.tokenizer, files.where)).find_roles()


def parse_tokenizer(tokenizer_json: str, where: str) -> tokenizers.Tokenizer:
    """Return the library's tokenizer, without truncation, padding or special tokens from text."""
    try:
        tokenizer = tokenizers.Tokenizer.from_str(tokenizer_json)
    except Exception as error:  # the library raises no more specific error
        raise DataError(f"{where}: not a tokenizer.json: {error}") from None
    # Published files may truncate and pad every text to one length.
    tokenizer.no_truncation()
    tokenizer.no_padding()
    # This setting is not saved in tokenizer.json, so it must be set after each parsing.
    tokenizer.encode_special_tokens = True
    return tokenizer


class _Search:
    def __init__(self, files: TokenizerFiles, parsed: tokenizers.Tokenizer) -> None:
        self._files = files
        self._tokenizer = parsed
        added = self._tokenizer.get_added_tokens_decoder()
        self._added = {token.content: number for number, token in sorted(added.items())}
        self._special = {
            token.content: number for number, token in sorted(added.items()) if token.special
        }

    def find_roles(self) -> SpecialTokens:
        roles = self._read_user_roles()
        end = roles.get("end") or self._find_configured("end")
        turn = (
            roles.get("end_of_turn") or self._find_turn_end() or self._find_published("end_of_turn")
        )
        if "end" not in roles and (end is None or end == turn):
            # A chat model's configuration names its end of turn as the end of text.
            end = self._find_published("end") or end
        begin = roles.get("begin") or self._find_configured("begin")
        if begin is None and "bos_token" not in self._files.parse_json(TOKENIZER_CONFIG):
            begin = self._find_published("begin")
        return SpecialTokens(
            begin=begin,
            end=end,
            pad=roles.get("pad") or self._find_configured("pad") or self._find_published("pad"),
            mask=roles.get("mask") or self._find_configured("mask") or self._find_published("mask"),
            end_of_turn=turn,
            user=roles.get("user") or self._find_published("user"),
            assistant=roles.get("assistant") or self._find_published("assistant"),
            system=roles.get("system") or self._find_published("system"),
            stop_ids=self._list_stops(end, turn),
            prefix=self._find_prefix(begin, end),
            chat_template=self._files.chat_template,
            names=self._special,
            entries=max(self._tokenizer.get_vocab().values(), default=-1) + 1,
            where=self._files.where,
        )

    def _read_user_roles(self) -> dict[str, SpecialToken]:
        roles = {}
        for role, text in self._files.parse_json(ROLES).items():
            token = self._find_token(text)
            if token is None:
                there = ", ".join(list(self._special)[:12]) or "none"
                raise DataError(
                    f"{self._files.where}: token {text!r} for the role {role!r} does not exist; "
                    f"the special tokens are: {there}"
                )
            roles[role] = token
        return roles

    def _find_configured(self, role: Role) -> SpecialToken | None:
        for file in (TOKENIZER_CONFIG, MAP):
            given = self._files.parse_json(file).get(_KEYS[role])
            text = given.get("content") if isinstance(given, dict) else given
            if text is not None and (token := self._find_token(text)):
                return token
        for number in self._find_configured_ids(role):
            return self._find_by_id(number)
        return None

    def _find_configured_ids(self, role: Role) -> Iterator[int]:
        """Yield the ids that the model's files give to `role`; it may have several."""
        for file in (GENERATION, MODEL_CONFIG):
            given = self._files.parse_json(file).get(f"{_KEYS[role]}_id")
            for number in given if isinstance(given, list) else [given]:
                # In published files, -1 and ids beyond the vocabulary mean "none".
                if isinstance(number, int) and self._find_by_id(number):
                    yield number

    def _find_turn_end(self) -> SpecialToken | None:
        """Return the first added token that the chat template puts after an answer, or None."""
        template = self._files.chat_template
        if template is None:
            return None
        messages = [
            message
            for question, answer in zip(_QUESTIONS, _ANSWERS, strict=True)
            for message in (
                {"role": "user", "content": question},
                {"role": "assistant", "content": answer},
            )
        ]
        config = self._files.parse_json(TOKENIZER_CONFIG)
        variables = {
            key: value.get("content") if isinstance(value, dict) else value or ""
            for key, value in config.items()
            if key.endswith("_token")
        }
        try:
            text = render_chat(template, messages, variables)
        except InputError:
            return None  # a template that needs more than messages cannot be rendered here
        after = text.partition(_ANSWERS[0])[2].partition(_QUESTIONS[1])[0]
        places = {after.find(name): name for name in self._added if name in after}
        return self._find_token(places[min(places)]) if places else None

    def _find_published(self, role: Role) -> SpecialToken | None:
        ours = NAME_OF[role]
        for name in (ours, *PUBLISHED_NAMES[ours]):
            if name in self._special:
                return SpecialToken(name, self._special[name])
        return None

    def _list_stops(self, end: SpecialToken | None, turn: SpecialToken | None) -> tuple[int, ...]:
        configured = self._find_configured("end")
        named = [token.id for token in (end, turn, configured) if token]
        return tuple(dict.fromkeys([*named, *self._find_configured_ids("end")]))

    def _find_prefix(self, begin: SpecialToken | None, end: SpecialToken | None) -> tuple[int, ...]:
        config = self._files.parse_json(TOKENIZER_CONFIG)
        if config.get("add_bos_token") is True and begin:
            return (begin.id,)
        if config.get("add_bos_token") is False:
            return ()
        bare = self._tokenizer.encode("a", add_special_tokens=False).ids
        dressed = self._tokenizer.encode("a", add_special_tokens=True).ids
        before = next((n for n in range(len(dressed)) if dressed[n : n + len(bare)] == bare), 0)
        if before or self._files.beside:
            return tuple(dressed[:before])
        return (end.id,) if end else ()  # trainrig's own: a text begins after the end of another

    def _find_token(self, text: str) -> SpecialToken | None:
        number = self._tokenizer.token_to_id(text)
        return None if number is None else SpecialToken(text, number)

    def _find_by_id(self, number: int) -> SpecialToken | None:
        text = self._tokenizer.id_to_token(number) if number >= 0 else None
        return None if text is None else SpecialToken(text, number)


def _read_text(path: str) -> str | None:
    try:
        return storage.read(path).decode("utf-8")
    except (FileNotFoundError, NotADirectoryError):
        return None
    except UnicodeDecodeError:
        raise DataError(f"{path}: not UTF-8") from None
