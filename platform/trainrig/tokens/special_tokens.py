"""Which special token plays which role, found from the files that a tokenizer comes with.

A role is what code asks for: the end of a text, padding, the end of a turn. Its token is looked for
in this order, and the first that the tokenizer has is taken:

1. `roles.json`, where a user said so;
2. `tokenizer_config.json` and `special_tokens_map.json`, which name tokens;
3. `generation_config.json` and `config.json`, which give ids;
4. the chat template, rendered: what stands after an answer ends a turn;
5. the names that published tokenizers use (`trainrig.tokens.special`).
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

import tokenizers

from trainrig import storage
from trainrig.errors import DataError, InputError
from trainrig.tokens.chat_template import render_chat
from trainrig.tokens.special import (
    ASSISTANT,
    BEGIN_OF_TEXT,
    END_OF_TEXT,
    END_OF_TURN,
    MASK,
    PAD,
    PUBLISHED_NAMES,
    SYSTEM,
    USER,
)

TOKENIZER = "tokenizer.json"
TOKENIZER_CONFIG, MAP = "tokenizer_config.json", "special_tokens_map.json"
GENERATION, MODEL_CONFIG = "generation_config.json", "config.json"
TEMPLATE = "chat_template.jinja"
ROLES = "roles.json"  # ours: role → token, where the other files do not tell
NEW_TOKENS = "new_tokens.json"  # ours: the tokens that `import --add-token` added
# One file in their place, in folders that we write: file name → text.
BROUGHT = "brought.json"
# The files that are read beside a tokenizer.json, and carried along with it.
BESIDE = (TOKENIZER_CONFIG, MAP, GENERATION, MODEL_CONFIG, TEMPLATE, ROLES)

Role = Literal["begin", "end", "pad", "mask", "end_of_turn", "user", "assistant", "system"]
# Each role, by our own name of the token that plays it.
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
_QUESTIONS, _ANSWERS = ("what is one?", "and what is two?"), ("it is three", "it is four")


@dataclass(frozen=True)
class TokenizerFiles:
    """A tokenizer.json with the files beside it. Travels by pickle, and to JSON and back."""

    tokenizer: str  # the text of tokenizer.json
    beside: Mapping[str, str] = field(default_factory=dict)  # file name → its text
    where: str = TOKENIZER  # named in errors

    @classmethod
    def read(cls, path: str) -> "TokenizerFiles":
        """Those of the folder `path`, or of the tokenizer.json at `path`. Raises DataError."""
        folder, _, name = path.rpartition("/") if path.endswith(".json") else (path, "", TOKENIZER)
        where = storage.join(folder, name or TOKENIZER)
        text = _read_text(where)
        if text is None:
            raise DataError(
                f"{where}: no such file; `trainrig tokenizer` makes one, and `save_pretrained` of "
                "Transformers' AutoTokenizer writes one of any published tokenizer"
            )
        brought = _read_text(storage.join(folder, BROUGHT))
        if brought is not None:
            return cls(text, json.loads(brought), where)
        found = {file: _read_text(storage.join(folder, file)) for file in BESIDE}
        return cls(text, {file: each for file, each in found.items() if each is not None}, where)

    @property
    def brought(self) -> bytes:
        """The files beside tokenizer.json as the one file `BROUGHT`."""
        return json.dumps(dict(self.beside), indent=1, ensure_ascii=False, sort_keys=True).encode()

    def with_roles(self, roles: Mapping[str, str]) -> "TokenizerFiles":
        """The same, where `roles` says which token plays which role. Raises DataError."""
        for role in roles:
            if role not in NAME_OF:
                raise DataError(f"no role {role!r}; there are: {', '.join(NAME_OF)}")
        given = self.parse_json(ROLES) | dict(roles)
        return TokenizerFiles(
            self.tokenizer, {**self.beside, ROLES: json.dumps(given, indent=1)}, self.where
        )

    def parse_json(self, name: str) -> dict[str, Any]:
        """What the JSON file `name` holds; nothing where it is not there. Raises DataError."""
        try:
            value = json.loads(self.beside.get(name, "{}"))
        except ValueError as error:
            raise DataError(f"{self._place(name)}: not JSON: {error}") from None
        if not isinstance(value, dict):
            raise DataError(f"{self._place(name)}: not a JSON object")
        return value

    @cached_property
    def chat_template(self) -> str | None:
        """The Jinja template of conversations; None: there is none.

        Of several, the one named "default".
        """
        if TEMPLATE in self.beside:
            return self.beside[TEMPLATE]
        found = self.parse_json(TOKENIZER_CONFIG).get("chat_template")
        if isinstance(found, list):  # older files hold several, each with its name
            named = {each["name"]: each["template"] for each in found}
            return named.get("default") or next(iter(named.values()), None)
        return found

    def _place(self, name: str) -> str:
        return storage.join(self.where.rpartition("/")[0], name)


@dataclass(frozen=True)
class SpecialToken:
    """A token that no text makes."""

    text: str
    id: int


@dataclass(frozen=True)
class SpecialTokens:
    """The token of each role; None: none plays it, or none could be found."""

    begin: SpecialToken | None  # stands before a text
    end: SpecialToken | None  # stands after a text: between documents
    pad: SpecialToken | None
    mask: SpecialToken | None  # stands for a token that is to be predicted
    end_of_turn: SpecialToken | None  # stands after each message of a conversation
    # Stand before a message, where one token says whose it is.
    user: SpecialToken | None
    assistant: SpecialToken | None
    system: SpecialToken | None
    stop_ids: tuple[int, ...]  # each of them ends an answer
    prefix: tuple[int, ...]  # what the tokenizer itself puts before a text; mostly `begin`
    chat_template: str | None
    names: Mapping[str, int]  # every special token there is, and its id
    entries: int  # of the vocabulary: every id is below
    where: str  # named in errors

    @property
    def padding(self) -> int:
        """The id to fill rows with. Padding is masked, so without a token for it any other does."""
        token = self.pad or self.end or self.begin
        return token.id if token else 0

    def of(self, role: Role) -> SpecialToken:
        """The token of `role`. Raises DataError, which says how to name one, if there is none."""
        token: SpecialToken | None = getattr(self, role)
        if token is None:
            there = ", ".join(list(self.names)[:12]) or "none"
            raise DataError(
                f"{self.where}: no special token is known to be {role!r} ({NAME_OF[role]}); there "
                f'are: {there}; write {{"{role}": "<token>"}} to {ROLES} beside it, or import '
                f"the model with --role {role}=TOKEN"
            )
        return token


def find_special_tokens(
    files: TokenizerFiles, parsed: tokenizers.Tokenizer | None = None
) -> SpecialTokens:
    """The special tokens of a tokenizer by role. `parsed`: it, if the caller has it already.

    Raises DataError for files that contradict each other.
    """
    return _Search(files, parsed or parse_tokenizer(files.tokenizer, files.where)).find_roles()


def parse_tokenizer(tokenizer_json: str, where: str) -> tokenizers.Tokenizer:
    """The library's tokenizer, set to give all of a text and no more than the text."""
    try:
        tokenizer = tokenizers.Tokenizer.from_str(tokenizer_json)
    except Exception as error:  # the library raises nothing more exact
        raise DataError(f"{where}: not a tokenizer.json: {error}") from None
    # Published files may cut and fill every text to one length.
    tokenizer.no_truncation()
    tokenizer.no_padding()
    # Kept out of tokenizer.json by the library, so it must be set again wherever one is read.
    tokenizer.encode_special_tokens = True
    return tokenizer


class _Search:
    def __init__(self, files: TokenizerFiles, parsed: tokenizers.Tokenizer) -> None:
        self._files, self._tokenizer = files, parsed
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
            # A model tuned to chat names its end of turn as the end of all.
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
                    f"{self._files.where}: no token {text!r} to be {role!r}; special tokens there "
                    f"are: {there}"
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
            return self._look_up_id(number)
        return None

    def _find_configured_ids(self, role: Role) -> Iterator[int]:
        """Ids that the files of the model give `role`; some give the end of a text several."""
        for file in (GENERATION, MODEL_CONFIG):
            given = self._files.parse_json(file).get(f"{_KEYS[role]}_id")
            for number in given if isinstance(given, list) else [given]:
                # -1, and ids beyond the vocabulary, stand in published files for "none".
                if isinstance(number, int) and self._look_up_id(number):
                    yield number

    def _find_turn_end(self) -> SpecialToken | None:
        """The first special token that the chat template puts after an answer."""
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
            return None  # one that wants more than messages tells nothing
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
        return (end.id,) if end else ()  # one of ours: a text begins where another ended

    def _find_token(self, text: str) -> SpecialToken | None:
        number = self._tokenizer.token_to_id(text)
        return None if number is None else SpecialToken(text, number)

    def _look_up_id(self, number: int) -> SpecialToken | None:
        text = self._tokenizer.id_to_token(number) if number >= 0 else None
        return None if text is None else SpecialToken(text, number)


def _read_text(path: str) -> str | None:
    try:
        return storage.read(path).decode("utf-8")
    except (FileNotFoundError, NotADirectoryError):
        return None
    except UnicodeDecodeError:
        raise DataError(f"{path}: not UTF-8") from None
