"""Instructions of IFEval, which a program can verify (Zhou et al. 2023, arXiv:2311.07911).

The names and the arguments of instructions are those of the published rows. Words are runs of word
characters, sentences end at `.`, `!` or `?`, and `corpus/language` identifies the language.
"""

import json
import re
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from trainrig.errors import DataError

Arguments = Mapping[str, Any]


def is_followed(instruction: Mapping[str, Any], text: str) -> bool:
    """Return whether `text` follows `instruction`, a table of `id` and `arguments`.

    An empty text follows no instruction. Raises DataError for an unknown id or a missing argument.
    """
    name = str(instruction["id"])
    if name not in INSTRUCTIONS:
        there = ", ".join(sorted(INSTRUCTIONS))
        raise DataError(f"instruction '{name}' is unknown; choose one of: {there}")
    given = instruction.get("arguments") or {}
    arguments = {key: value for key, value in given.items() if value is not None}
    if not text.strip():
        return False
    try:
        return INSTRUCTIONS[name](text, arguments)
    except KeyError as error:
        raise DataError(
            f"instruction '{name}': the argument {error} is missing; add it to the row"
        ) from None


def _compare_count(
    count: int, arguments: Arguments, wanted: str, relation: str = "relation"
) -> bool:
    """Return whether `count` is at least, or less than, the number in argument `wanted`."""
    if arguments.get(relation, "at least") == "less than":
        return count < int(arguments[wanted])
    return count >= int(arguments[wanted])


def _find_words(text: str) -> list[str]:
    return re.findall(r"\w+", text)


def _split_sentences(text: str) -> list[str]:
    return [part for part in re.split(r"(?<=[.!?])\s+", text.strip()) if part]


def _split_paragraphs(text: str) -> list[str]:
    return [part.strip() for part in re.split(r"\s?\*\*\*\s?", text)]


def _split_blocks(text: str) -> list[str]:
    return [part.strip() for part in re.split(r"\n\n", text) if part.strip()]


def _check_keywords(text: str, arguments: Arguments) -> bool:
    return all(re.search(re.escape(w), text, re.IGNORECASE) for w in arguments["keywords"])


def _avoids_forbidden(text: str, arguments: Arguments) -> bool:
    words = (re.escape(word) for word in arguments["forbidden_words"])
    return not any(re.search(rf"\b{word}\b", text, re.IGNORECASE) for word in words)


def _compare_frequency(text: str, arguments: Arguments) -> bool:
    found = re.findall(re.escape(arguments["keyword"]), text, re.IGNORECASE)
    return _compare_count(len(found), arguments, "frequency")


def _compare_letter_frequency(text: str, arguments: Arguments) -> bool:
    count = Counter(text.lower())[str(arguments["letter"]).lower()]
    return _compare_count(count, arguments, "let_frequency", "let_relation")


def _is_in_language(text: str, arguments: Arguments) -> bool:
    from trainrig.corpus.models.language_id import identify

    return identify(text, model="lid.176").code == str(arguments["language"])


def _matches_first_word(text: str, arguments: Arguments) -> bool:
    blocks = _split_blocks(text)
    place = int(arguments["nth_paragraph"])
    if len(blocks) != int(arguments["num_paragraphs"]) or place > len(blocks):
        return False
    first = blocks[place - 1].split()[0].lstrip("'\"")
    return re.split(r"[.,?!'\"]", first)[0].lower() == str(arguments["first_word"]).lower()


def _check_placeholders(text: str, arguments: Arguments) -> bool:
    return len(re.findall(r"\[.*?\]", text)) >= int(arguments["num_placeholders"])


def _check_postscript(text: str, arguments: Arguments) -> bool:
    marker = str(arguments["postscript_marker"]).lower()
    known = {"p.p.s": r"\s*p\.\s?p\.\s?s.*$", "p.s.": r"\s*p\.\s?s\..*$"}
    pattern = known.get(marker, r"\s*" + re.escape(marker) + r".*$")
    return bool(re.search(pattern, text.lower(), re.MULTILINE))


def _check_bullets(text: str, arguments: Arguments) -> bool:
    stars = re.findall(r"^\s*\*[^\*].*$", text, re.MULTILINE)
    dashes = re.findall(r"^\s*-.*$", text, re.MULTILINE)
    return len(stars) + len(dashes) == int(arguments["num_bullets"])


def _is_constrained(text: str, arguments: Arguments) -> bool:
    return any(f"My answer is {word}." in text for word in ("yes", "no", "maybe"))


def _check_highlights(text: str, arguments: Arguments) -> bool:
    found = [part.strip("*").strip() for part in re.findall(r"\*\*[^\n*]*\*\*|\*[^\n*]*\*", text)]
    return sum(map(bool, found)) >= int(arguments["num_highlights"])


def _check_sections(text: str, arguments: Arguments) -> bool:
    # The published rows misspell this key.
    splitter = re.escape(str(arguments["section_spliter"]).strip())
    found = re.split(rf"\s?{splitter}\s?\d+\s?", text)
    return len(found) - 1 >= int(arguments["num_sections"])


def _is_json(text: str, arguments: Arguments) -> bool:
    stripped = re.sub(r"^```(?:json|Json|JSON)?|```$", "", text.strip()).strip()
    try:
        json.loads(stripped)
    except (ValueError, RecursionError):
        return False
    return True


def _check_title(text: str, arguments: Arguments) -> bool:
    return any(found.strip("<>").strip() for found in re.findall(r"<<[^\n]+>>", text))


def _gives_two_responses(text: str, arguments: Arguments) -> bool:
    parts = text.split("******")
    if any(not part.strip() for part in parts[1:-1]):
        return False
    filled = [part.strip() for part in parts if part.strip()]
    return len(filled) == 2 and filled[0] != filled[1]


def _repeat_prompt(text: str, arguments: Arguments) -> bool:
    return text.strip().lower().startswith(str(arguments["prompt_to_repeat"]).strip().lower())


def _ends_with(text: str, arguments: Arguments) -> bool:
    return text.strip().strip('"').lower().endswith(str(arguments["end_phrase"]).strip().lower())


def _compare_capital_frequency(text: str, arguments: Arguments) -> bool:
    count = sum(word.isupper() for word in _find_words(text))
    return _compare_count(count, arguments, "capital_frequency", "capital_relation")


def _is_english(text: str) -> bool:
    return _is_in_language(text, {"language": "en"})


def _is_quoted(text: str, arguments: Arguments) -> bool:
    stripped = text.strip()
    return len(stripped) > 1 and stripped[0] == stripped[-1] == '"'


def _check_divided_paragraphs(text: str, arguments: Arguments) -> bool:
    parts = _split_paragraphs(text)
    if any(not part for part in parts[1:-1]):
        return False
    return sum(map(bool, parts)) == int(arguments["num_paragraphs"])


INSTRUCTIONS: Mapping[str, Callable[[str, Arguments], bool]] = {
    "keywords:existence": _check_keywords,
    "keywords:frequency": _compare_frequency,
    "keywords:forbidden_words": _avoids_forbidden,
    "keywords:letter_frequency": _compare_letter_frequency,
    "language:response_language": _is_in_language,
    "length_constraints:number_sentences": lambda text, given: _compare_count(
        len(_split_sentences(text)), given, "num_sentences"
    ),
    "length_constraints:number_paragraphs": _check_divided_paragraphs,
    "length_constraints:number_words": lambda text, given: _compare_count(
        len(_find_words(text)), given, "num_words"
    ),
    "length_constraints:nth_paragraph_first_word": _matches_first_word,
    "detectable_content:number_placeholders": _check_placeholders,
    "detectable_content:postscript": _check_postscript,
    "detectable_format:number_bullet_lists": _check_bullets,
    "detectable_format:constrained_response": _is_constrained,
    "detectable_format:number_highlighted_sections": _check_highlights,
    "detectable_format:multiple_sections": _check_sections,
    "detectable_format:json_format": _is_json,
    "detectable_format:title": _check_title,
    "combination:two_responses": _gives_two_responses,
    "combination:repeat_prompt": _repeat_prompt,
    "startend:end_checker": _ends_with,
    "change_case:capital_word_frequency": _compare_capital_frequency,
    "change_case:english_capital": lambda text, given: text.isupper() and _is_english(text.lower()),
    "change_case:english_lowercase": lambda text, given: text.islower() and _is_english(text),
    "punctuation:no_comma": lambda text, given: "," not in text,
    "startend:quotation": _is_quoted,
}
