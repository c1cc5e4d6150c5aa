from typing import Any

import numpy as np
import pytest
from pydantic import TypeAdapter, ValidationError

from trainrig.corpus.filters.filters import (
    C4,
    PRESET_NAMES,
    Filter,
    Filters,
    FineWeb,
    GopherQuality,
    Length,
    Preset,
    RefinedWeb,
    find_broken_rules,
    list_read_columns,
    need_datatrove,
)
from trainrig.corpus.rewrite.refinedweb_line_rules import RefinedWebLines
from trainrig.corpus.signals.text_signals import SIGNALS
from trainrig_contrib.datatrove_signals.datatrove_columns import DATATROVE_SIGNALS

MEASURED = {*SIGNALS, *DATATROVE_SIGNALS, *RefinedWebLines.columns, "language", "language_score"}


def filters(*written: Any) -> Any:
    return TypeAdapter(Filters).validate_python(written)


@pytest.mark.parametrize("name", PRESET_NAMES)
def test_every_preset_is_filters_over_columns_that_are_measured(name: str):
    if name.endswith("datatrove"):
        pytest.importorskip("spacy")
    found = filters({"kind": "Preset", "name": name})
    assert found and found == Preset(name=name).build_filters()
    assert set(list_read_columns(found)) <= MEASURED
    assert need_datatrove(found) == name.endswith("datatrove")


def test_a_preset_expands_to_its_filters_in_place():
    found = filters(
        {"kind": "Length", "min_characters": 7}, {"kind": "Preset", "name": "gopher"}, Length()
    )
    assert [quality_filter.kind for quality_filter in found] == [
        "Length",
        "GopherRepetition",
        "GopherQuality",
        "Length",
    ]


def test_an_unknown_name_gets_the_nearest_one():
    with pytest.raises(ValidationError, match=r"no preset 'finweb'.*'fineweb'"):
        filters({"kind": "Preset", "name": "finweb"})


def test_words_of_spacy_are_refused_without_it(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ValidationError, match=r"pip install -e '\.\[datatrove\]'"):
        GopherQuality(words="datatrove")
    with pytest.raises(ValidationError, match=r"pip install -e '\.\[datatrove\]'"):
        filters({"kind": "Preset", "name": "gopher-datatrove"})


def test_two_texts_are_datatroves_alone():
    with pytest.raises(ValidationError, match='after_c4 requires words = "datatrove"'):
        FineWeb(after_c4=True)


@pytest.mark.parametrize(
    ("rule", "signal", "at_the_limit", "past_it"),
    [
        (C4(), "c4_sentences", 3, 2),
        (C4(terminal_punctuation=False), "c4_sentences_any_end", 3, 2),
        (C4(), "lorem_ipsum", 0, 1),
        (C4(), "curly_brackets", 0, 1),
        (FineWeb(), "terminal_lines", 0.12, 0.1199),
        (FineWeb(), "short_lines", 0.67, 0.6701),
        (FineWeb(), "duplicate_line_characters", 0.1, 0.1001),
        (FineWeb(), "new_lines_per_word", 0.3, 0.3001),
        (RefinedWeb(), "refinedweb_removed_per_10000", 500, 501),
    ],
)
def test_the_published_limit_is_kept_and_the_next_value_is_not(
    rule: Filter, signal: str, at_the_limit: float, past_it: float
):
    kept = {
        column: np.array([3 if column.startswith("c4_sentences") else 0.12])
        for column in list_read_columns((rule,))
    }
    kept |= {"lorem_ipsum": np.array([0]), "curly_brackets": np.array([0])}
    kept |= {"duplicate_line_characters": np.array([0.0])}

    def broken(value: float) -> list[str]:
        rules = find_broken_rules((rule,), kept | {signal: np.array([value])})
        return [name for name, found in rules.items() if found[0]]

    assert broken(at_the_limit) == []
    assert len(broken(past_it)) == 1
