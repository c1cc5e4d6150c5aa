import math
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pydantic import Field, ValidationError, model_validator

from trainrig import config, storage
from trainrig.config import NOT_IDENTITY, RunFile, Settings
from trainrig.config.field_marks import ADDED_LATER
from trainrig.errors import ConfigError


class Words(Settings):
    kind: Literal["Words"] = "Words"
    min_words: int = 50
    share: float = 0.5
    lists: dict[str, str] = Field(default_factory=dict)


class Language(Settings):
    kind: Literal["Language"] = "Language"
    languages: tuple[str, ...] = ("en",)
    mode: Literal["keep", "drop"] = "keep"


Filter = Annotated[Words | Language, Field(discriminator="kind")]


class Part(Settings):
    """Model with tables at every depth, and a validator."""

    filters: tuple[Filter, ...] = ()
    first: Filter = Words(min_words=7)
    paths: Annotated[tuple[str, ...], NOT_IDENTITY] = ()
    low: int = 0
    high: int | None = None

    @model_validator(mode="after")
    def _low_is_below_high(self) -> "Part":
        if self.high is not None and self.low > self.high:
            raise ValueError(f"low ({self.low}) is above high ({self.high})")
        return self


class Sorting(RunFile):
    verb: ClassVar[str] = "sort"
    stage: Literal["sort"] = "sort"
    output: Annotated[str, NOT_IDENTITY]
    workers: Annotated[int, NOT_IDENTITY] = Field(default=2, ge=0)
    seed: int = 0
    rate: float = 0.1
    loud: bool = False
    parts: tuple[Part, ...] = ()
    named: dict[str, Part] = Field(default_factory=dict)
    single: Part = Part()


TOP = 'stage = "sort"\noutput = "out"\n'


def load_text(folder: Path, text: str, *overrides: str) -> Sorting:
    (folder / "run.toml").write_text(text, encoding="utf-8")
    return config.load(Sorting, str(folder / "run.toml"), overrides)


def load_error(folder: Path, text: str, *overrides: str) -> str:
    """Return the error of `load` for `text`, from the file's name on."""
    with pytest.raises(ConfigError) as caught:
        load_text(folder, text, *overrides)
    message = str(caught.value)
    assert "\n" not in message
    return message.removeprefix(f"{folder}/")


# Reading


def test_a_run_file_holds_differences_only(tmp_path: Path) -> None:
    run = load_text(tmp_path, TOP + "seed = 3\n[[parts]]\nfilters = [{kind = 'Language'}]\n")
    assert run == Sorting(output="out", seed=3, parts=(Part(filters=(Language(),)),))


def test_arrays_become_tuples_at_every_depth(tmp_path: Path) -> None:
    run = load_text(
        tmp_path, TOP + "[single]\nfilters = [{kind='Language', languages=['en','de']}]\n"
    )
    assert run.single.filters == (Language(languages=("en", "de")),)


def test_a_run_file_may_lie_in_a_bucket(s3: str) -> None:
    storage.write(f"{s3}/run.toml", (TOP + "seed = 5\n").encode())
    assert config.load(Sorting, f"{s3}/run.toml").seed == 5
    with pytest.raises(ConfigError, match=r"s3://.*/none\.toml: no such"):
        config.load(Sorting, f"{s3}/none.toml")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            TOP + "sede = 1\n",
            "run.toml:3: no key 'sede' in Sorting; did you mean 'seed'?",
        ),
        (
            TOP + "xyzzy = 1\n",
            "run.toml:3: no key 'xyzzy' in Sorting; there are: loud, named, output, parts, rate, "
            "seed, single, stage, workers",
        ),
        (
            TOP + "[[parts]]\n\n[[parts.filters]]\nkind = 'Words'\nmin_word = 3\n",
            "run.toml:7: parts[0].filters[0]: no key 'min_word' in Words; "
            "did you mean 'min_words'?",
        ),
        (
            TOP + "[named.a.first]\nkind = 'Language'\nlangs = []\n",
            "run.toml:5: named.a.first: no key 'langs' in Language; did you mean 'languages'?",
        ),
        (
            TOP + "seed = 'one'\n",
            "run.toml:3: seed: input should be a valid integer, found 'one'",
        ),
        (
            TOP + "workers = -1\n",
            "run.toml:3: workers: input should be greater than or equal to 0, found -1",
        ),
        (TOP + "single = 3\n", "run.toml:3: single: should be a table, found 3"),
        (TOP + "parts = 3\n", "run.toml:3: parts: should be an array, found 3"),
        (TOP + "named = 3\n", "run.toml:3: named: should be a table, found 3"),
        (TOP + "single.first = 3\n", "run.toml:3: single.first: should be a table, found 3"),
        (
            TOP + f"seed = '{'x' * 80}'\n",
            f"run.toml:3: seed: input should be a valid integer, found '{'x' * 56}...",
        ),
        ('stage = "sort"\n', "run.toml: `output` is missing"),
        (
            TOP + "[single.first]\nkind = 'Word'\n",
            "run.toml:4: single.first: no kind 'Word'; did you mean 'Words'?",
        ),
        (
            TOP + "[single.first]\nkind = 'Qqqq'\n",
            "run.toml:4: single.first: no kind 'Qqqq'; there are: Language, Words",
        ),
        (
            TOP + "[single.first]\nmin_words = 3\n",
            "run.toml:3: single.first: `kind` is missing; it selects the table's keys",
        ),
        (
            TOP + "[[single.filters]]\nkind = 'Language'\nmode = 'keeep'\n",
            "run.toml:5: single.filters[0].mode: 'keeep' is none of keep, drop; "
            "did you mean 'keep'?",
        ),
        (
            TOP + "[[single.filters]]\nkind = 'Language'\nmode = 7\n",
            "run.toml:5: single.filters[0].mode: 7 is none of keep, drop",
        ),
        (
            TOP + "[[parts]]\n[[parts]]\nlow = 3\nhigh = 2\n",
            "run.toml:4: parts[1]: low (3) is above high (2)",
        ),
        (
            TOP + "seed = 1.5\nloud = 1\nrate = 'x'\n",
            "run.toml:3: seed: input should be a valid integer, found 1.5 (and 2 more)",
        ),
        (
            "output = 'out'\n",
            'run.toml: no `stage`, so this is not a run file for `sort`; write `stage = "sort"`',
        ),
    ],
)
def test_an_invalid_value_is_named_with_its_place(tmp_path: Path, text: str, message: str) -> None:
    assert load_error(tmp_path, text) == message


def test_a_run_file_for_another_verb_is_sent_there(tmp_path: Path) -> None:
    message = load_error(tmp_path, 'stage = "curate"\noutput = "x"\n')
    assert message == (
        'run.toml: `stage = "curate"`, so this is not a run file for `sort`; '
        f"use `trainrig curate {tmp_path}/run.toml`"
    )


def test_the_stage_cannot_be_changed_from_the_command_line(tmp_path: Path) -> None:
    assert "stage: 'curate' is none of sort" in load_error(tmp_path, TOP, "stage=curate")


def test_text_that_is_no_toml_is_named_with_its_line(tmp_path: Path) -> None:
    message = load_error(tmp_path, TOP + "seed = = 3\n")
    assert message.startswith("run.toml: not TOML: ")
    assert "line 3" in message


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    def says(name: str) -> str:
        with pytest.raises(ConfigError) as caught:
            config.load(Sorting, str(tmp_path / name))
        return str(caught.value).removeprefix(f"{tmp_path}/")

    (tmp_path / "folder").mkdir()
    (tmp_path / "latin.toml").write_bytes(b'stage = "\xe9"')
    assert says("none.toml") == "none.toml: no such run file"
    (tmp_path / "run.yaml").write_text("stage: pretrain\n")
    assert says("run.yaml").startswith("run.yaml: run files are TOML; `trainrig init`")
    assert says("folder") == "folder: is a folder; name the run file in it"
    assert says("latin.toml") == "latin.toml: not UTF-8 at byte 9; a run file is TOML"
    assert says("latin.toml/run.toml") == "latin.toml/run.toml: cannot be read: Not a directory"


# Strictness


@pytest.mark.parametrize(
    "line",
    [
        "seed = '1'",
        "seed = 1.5",
        "seed = 1.0",
        "seed = true",
        "rate = '0.1'",
        "rate = true",
        "loud = 1",
        "loud = 'true'",
        "output = 3",
        "output = 2024-05-18",
    ],
)
def test_no_value_is_taken_for_one_of_another_type(tmp_path: Path, line: str) -> None:
    key = line.partition(" ")[0]
    text = f'stage = "sort"\n{line}\n' + ('output = "x"\n' if key != "output" else "")
    assert load_error(tmp_path, text).startswith(f"run.toml:2: {key}: input should be a valid ")


def test_a_whole_number_is_a_fine_float(tmp_path: Path) -> None:
    rate = load_text(tmp_path, TOP + "rate = 1\n").rate
    assert (rate, type(rate)) == (1.0, float)


def test_settings_are_frozen() -> None:
    run = Sorting(output="x")
    with pytest.raises(ValidationError, match="frozen"):
        run.seed = 1  # type: ignore[misc]
    with pytest.raises(ValidationError, match="frozen"):
        run.single.low = 1  # type: ignore[misc]


def test_unknown_keys_are_refused_in_python_too() -> None:
    with pytest.raises(ValidationError, match=r"no key 'sed'.*'seed'"):
        Sorting(output="x", sed=1)  # type: ignore[call-arg]


# --set


@pytest.mark.parametrize(
    ("override", "data"),
    [
        ("seed=3", {"seed": 3}),
        ("rate=1e-3", {"rate": 1e-3}),
        ("loud=true", {"loud": True}),
        ("output=s3://bucket/a b", {"output": "s3://bucket/a b"}),
        ("output='3'", {"output": "3"}),
        ("output=a=b", {"output": "a=b"}),
        ("output=", {"output": ""}),
        (" single . low = word ", {"single": {"low": "word"}}),
        ("single.first.kind=Words", {"single": {"first": {"kind": "Words"}}}),
        ("a=[1, 'b']", {"a": [1, "b"]}),
        ("a={b = 1}", {"a": {"b": 1}}),
        ("output=1\nseed=2", {"output": "1\nseed=2"}),
    ],
)
def test_an_override_is_toml_or_a_bare_word(override: str, data: dict[str, Any]) -> None:
    tables: dict[str, Any] = {}
    config.set_key(tables, override)
    assert tables == data


def test_overrides_change_the_file_in_their_order(tmp_path: Path) -> None:
    text = TOP + "seed = 1\n[[parts]]\nlow = 1\n[[parts]]\nfilters = [{kind = 'Words'}]\n"
    run = load_text(
        tmp_path,
        text,
        "seed=2",
        "seed=3",
        "parts.0.low=9",
        "parts.1.filters.0={kind='Language'}",
        "parts.1.filters.0.mode=drop",
        "named.new.low=4",
    )
    assert run.seed == 3
    assert run.parts == (Part(low=9), Part(filters=(Language(mode="drop"),)))
    assert run.named == {"new": Part(low=4)}


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("seed", "--set seed: write it as --set a.b=value"),
        ("=3", "--set =3: write it as --set a.b=value"),
        ("a..b=3", "--set a..b=3: write it as --set a.b=value"),
        (
            "seed.x=3",
            "--set seed.x=3: seed is a value (1), not a table; set the whole value, or another key",
        ),
        (
            "sizes.0.x=3",
            "--set sizes.0.x=3: sizes.0 is a value (8), not a table; set the whole "
            "value, or another key",
        ),
        ("sizes.2=3", "--set sizes.2=3: '2' is no index of its 2 entries (0, 1, …)"),
        ("sizes.-1=3", "--set sizes.-1=3: '-1' is no index of its 2 entries (0, 1, …)"),
        ("sizes.²=3", "--set sizes.²=3: '²' is no index of its 2 entries (0, 1, …)"),
        ("deep.x.y=3", "--set deep.x.y=3: deep.x: 'x' is no index of its 1 entries (0, 1, …)"),
    ],
)
def test_an_override_that_cannot_work_is_named(override: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        config.set_key({"seed": 1, "sizes": [8, 9], "deep": [{}]}, override)
    assert str(caught.value) == message


# Nearest names


@pytest.mark.parametrize(
    ("name", "choices", "hint"),
    [
        ("sede", ["seed", "rate"], "; did you mean 'seed'?"),
        ("zzz", ["seed", "rate"], "; there are: rate, seed"),
        ("zzz", [], ""),
    ],
)
def test_the_nearest_name_is_offered_or_all_of_them(
    name: str, choices: list[str], hint: str
) -> None:
    assert config.suggest_choice(name, choices) == hint


# Lines

LINES = """\
seed = 1

[single]
low = 1  # single.low
'quoted' = 2
"also" = 3
first.kind = "Words"

[[parts]]  # the first
low = 1
[parts.first]
kind = "Words"
[[parts.filters]]
kind = "A"
[[parts.filters]]
kind = "B"

[[parts]]
[[parts.filters]]
inline = {deep = 3}

[named."a"]
low = 1
"""


@pytest.mark.parametrize(
    ("location", "line"),
    [
        (("seed",), 1),
        (("single",), 3),
        (("single", "low"), 4),
        (("single", "quoted"), 5),
        (("single", "also"), 6),
        (("single", "first", "kind"), 7),
        (("single", "absent"), 3),
        (("parts", 0), 9),
        (("parts",), 9),
        (("parts", 0, "low"), 10),
        (("parts", 0, "first", "kind"), 12),
        (("parts", 0, "filters", 0, "kind"), 14),
        (("parts", 0, "filters", 1, "kind"), 16),
        (("parts", 1), 18),
        (("parts", 1, "filters", 0, "inline", "deep"), 20),
        (("named", "a", "low"), 23),
        (("absent",), None),
        ((), None),
    ],
)
def test_the_line_of_a_key_is_found(location: config.Location, line: int | None) -> None:
    assert config.find_line(LINES, location) == line


@pytest.mark.parametrize(
    ("location", "text"),
    [
        (("filters", 0, "min_words"), "filters[0].min_words"),
        ((0, 1), "[0][1]"),
        ((), ""),
    ],
)
def test_a_place_is_written_as_one_would_in_python(location: config.Location, text: str) -> None:
    assert config.format_location(location) == text


# Identity


def test_identity_leaves_places_out_at_any_depth() -> None:
    run = Sorting(
        output="here",
        workers=7,
        parts=(Part(paths=("a",), filters=(Words(),)),),
        named={"n": Part(paths=("b",))},
        single=Part(paths=("c",)),
    )
    elsewhere = Sorting(
        output="there",
        parts=(Part(paths=("x", "y"), filters=(Words(),)),),
        named={"n": Part()},
    )
    assert config.extract_identity(run) == config.extract_identity(elsewhere)
    assert config.extract_identity(Words()) == {
        "kind": "Words",
        "min_words": 50,
        "share": 0.5,
        "lists": {},
    }


class Older(Settings):
    kept: int = 1


class Newer(Older):
    added: Annotated[tuple[int, ...] | None, ADDED_LATER] = None
    made: Annotated[dict[str, int], ADDED_LATER] = Field(default_factory=dict)


def test_a_field_added_later_changes_no_identity_while_it_has_its_default() -> None:
    assert config.extract_identity(Newer()) == config.extract_identity(Older())
    assert config.extract_identity(Newer(kept=2, added=None, made={})) == {"kept": 2}
    assert config.extract_identity(Newer(added=(1,))) == {"kept": 1, "added": [1]}
    assert config.extract_identity(Newer(made={"a": 1})) == {"kept": 1, "made": {"a": 1}}


@pytest.mark.parametrize(
    "change",
    [
        {"seed": 1},
        {"parts": (Part(low=1),)},
        {"named": {"m": Part()}},
        {"single": Part(filters=(Words(share=0.25),))},
    ],
)
def test_identity_changes_with_whatever_the_result_depends_on(change: dict[str, Any]) -> None:
    assert config.extract_identity(Sorting(output="x", **change)) != config.extract_identity(
        Sorting(output="x")
    )


# Writing

texts = st.text(st.characters(exclude_categories=("Cs",)))
floats = st.floats(allow_nan=False)
words = st.builds(
    Words, min_words=st.integers(), share=floats, lists=st.dictionaries(texts, texts, max_size=3)
)
filters = words | st.builds(
    Language,
    languages=st.lists(texts, max_size=3).map(tuple),
    mode=st.sampled_from(["keep", "drop"]),
)
parts = st.builds(
    Part,
    filters=st.lists(filters, max_size=3).map(tuple),
    first=filters,
    paths=st.lists(texts, max_size=2).map(tuple),
    low=st.integers(max_value=0),
    high=st.none() | st.integers(min_value=0),
)
runs = st.builds(
    Sorting,
    output=texts,
    workers=st.integers(min_value=0),
    seed=st.integers(),
    rate=floats,
    loud=st.booleans(),
    parts=st.lists(parts, max_size=3).map(tuple),
    named=st.dictionaries(texts, parts, max_size=2),
)


@given(runs)
@example(Sorting(output='\x00\x1f\x7f\x85\u2028"\\\r\n\t'))
@example(Sorting(output="", named={"": Part(), "a.b": Part(), '"]': Part()}))
@example(Sorting(output="x", rate=math.inf))
@example(Sorting(output="x", rate=-math.inf))
@example(Sorting(output="x", rate=5e-324))
@example(Sorting(output="x", rate=1e22))
def test_a_written_run_file_reads_back_equal(run: Sorting) -> None:
    for changed in (False, True):
        text = config.to_toml(run, changed)
        assert config.build(Sorting, config.parse(text, "x"), "x") == run


def test_only_changed_values_are_written_when_asked() -> None:
    parts = (Part(low=3), Part(first=Words(min_words=50, share=0.25)))
    text = config.to_toml(Sorting(output="out", seed=4, workers=2, parts=parts), changed=True)
    assert text == (
        'stage = "sort"\noutput = "out"\nseed = 4\n\n[[parts]]\nlow = 3\n\n[[parts]]\n'
        '\n[parts.first]\nkind = "Words"\nshare = 0.25\n'
    )


def test_nan_reads_back_unchanged() -> None:
    text = config.to_toml(Sorting(output="x", rate=math.nan))
    assert math.isnan(config.build(Sorting, config.parse(text, "x"), "x").rate)


def test_values_that_are_not_set_are_marked_as_default() -> None:
    text = config.to_toml(Sorting(output="out", seed=0, parts=(Part(low=3),)))
    assert text == (
        'stage = "sort"  # default\n'
        'output = "out"\n'
        "workers = 2  # default\n"
        "seed = 0\n"
        "rate = 0.1  # default\n"
        "loud = false  # default\n"
        "\n[[parts]]\n"
        "filters = []  # default\n"
        "paths = []  # default\n"
        "low = 3\n"
        "\n[parts.first]\n"
        'kind = "Words"  # default\n'
        "min_words = 7  # default\n"  # set by Part's author, not by the user
        "share = 0.5  # default\n"
        "\n[parts.first.lists]\n"
        "\n[named]\n"
        "\n[single]\n"
        "filters = []  # default\n"
        "paths = []  # default\n"
        "low = 0  # default\n"
        "\n[single.first]\n"
        'kind = "Words"  # default\n'
        "min_words = 7  # default\n"
        "share = 0.5  # default\n"
        "\n[single.first.lists]\n"
    )


def test_a_default_table_of_words_is_marked_line_by_line() -> None:
    class Holder(Settings):
        lists: dict[str, str] = Field(default={"a": "b"})

    assert config.to_toml(Holder()) == '[lists]\na = "b"  # default\n'
    assert config.to_toml(Holder(lists={"a": "b"})) == '[lists]\na = "b"\n'


def test_a_value_that_toml_has_no_word_for_is_a_bug_and_says_so() -> None:
    class Odd(Settings):
        data: bytes = b""

    with pytest.raises(TypeError, match="no TOML for b''"):
        config.to_toml(Odd())


def test_a_run_file_may_begin_with_a_byte_order_mark(tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_bytes(b"\xef\xbb\xbf" + (TOP + "seed = 7\n").encode())
    assert config.load(Sorting, str(file)).seed == 7
    file.write_text(TOP, encoding="utf-16")
    with pytest.raises(ConfigError, match=r"run.toml: UTF-16.*first two"):
        config.load(Sorting, str(file))


@pytest.mark.parametrize(
    ("text", "overrides", "message"),
    [
        ("", ["seed=1", "workers=-1"], "--set workers=-1: workers: input should be greater than"),
        ("[single]\nlow = 3\n", ["single.high=2"], "--set single.high=2: single: low (3) is above"),
        ("", ["single.hihg=2"], "--set single.hihg=2: single: no key 'hihg' in Part; did you mean"),
        ("workers = -1\n", ["seed=1"], "run.toml:3: workers: input should be greater than"),
        # One change may repair what another breaks: only the final result is checked.
        (
            "[single]\nlow = 3\n",
            ["single.high=2", "single.low=1", "workers=-1"],
            "--set workers=-1: workers: input should be greater than",
        ),
        ("[single]\nlow = 3\n", ["single.high=2", "workers=-1"], "--set workers=-1: workers"),
        ("[single]\nlow = 3\n", ["single.high=2", "seed=1"], "--set single.high=2: single: low"),
    ],
)
def test_an_error_from_an_override_does_not_name_the_file(
    tmp_path: Path, text: str, overrides: list[str], message: str
) -> None:
    assert load_error(tmp_path, TOP + text, *overrides).startswith(message)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("mode = 'keep'\n", "under [[single.filters]] or under [parts.first] and 3 more"),
        ("[high]\na = 1\n", "no key 'high' in Sorting; it belongs under [[parts]] or"),
        ("[single]\nseed = 1\n", "single: no key 'seed' in Part; it belongs at the top level"),
        ("[wipe_out]\n", "no key 'wipe_out' in Sorting; there are: "),
    ],
)
def test_a_misplaced_key_is_an_error_with_the_right_place(
    tmp_path: Path, text: str, message: str
) -> None:
    assert message in load_error(tmp_path, TOP + text)
