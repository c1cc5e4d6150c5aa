"""The quickstart's page, from the results of a real run and from worse ones."""

import math
import re
from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from functools import cache
from html import unescape
from html.parser import HTMLParser
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from pydantic import TypeAdapter

from trainrig.quickstart import quickstart_page
from trainrig.quickstart.quickstart_page import build_quickstart_page
from trainrig.quickstart.quickstart_results import (
    DomainScore,
    Dropped,
    HeldOutPoint,
    LossPoint,
    ModelAnswer,
    NearDuplicate,
    Planned,
    Planted,
    PreferencePoint,
    Preferences,
    PromptAnswers,
    QuickstartResults,
    Restart,
    Scaling,
    StageResult,
    SweepPoint,
)

STEPS = 400
TOKENS_A_STEP = 16_384
KILLED_AT = 212
RESUMED_FROM = 180


def compute_loss_at(step: int) -> float:
    noise = np.random.default_rng(step).normal(0, 0.12)
    return float(3.9 + 5.1 * math.exp(-step / 70) + noise)


def list_loss_points() -> tuple[LossPoint, ...]:
    first = range(1, KILLED_AT + 1)
    second = range(RESUMED_FROM + 1, STEPS + 1)
    return tuple(
        LossPoint(step, step * TOKENS_A_STEP, compute_loss_at(step), attempt)
        for attempt, steps in ((0, first), (1, second))
        for step in steps
    )


STORY = QuickstartResults(
    stages=(
        StageResult("pages", 21.4, 3_452, "pages"),
        StageResult("documents", 38.2, 2_318, "documents"),
        StageResult("tokens", 11.9, 6_912_345, "tokens"),
        StageResult("model", 131.0, 3_412_992, "parameters"),
        StageResult("tuned", 31.8, 200, "steps"),
        StageResult("aligned", 20.0, 600, "pairs"),
        StageResult("scores", 15.7, 3, "domains"),
    ),
    documents_in=3_452,
    documents_kept=2_318,
    dropped=(
        Dropped("not in a wanted language", 71, ("Der Fluss trägt das Wasser der Berge ins Tal.",)),
        Dropped("fewer than 50 words", 402, ("Index of modules", "See also: [EMAIL]", "(none)")),
        Dropped("too few words with letters", 188, ("0x00 0x01 0x02 " * 60,)),
        Dropped("the same text as another", 63, ("The heap queue algorithm keeps a list …",)),
        Dropped("nearly the same text as another", 410, ("json encodes and decodes data.",)),
    ),
    planted=(
        Planted("exact copies", 60, 59, 0, 1),
        Planted("near-duplicates", 60, 51, 6, 3),
        Planted("foreign language", 60, 60, 0, 0),
        Planted("e-mail addresses", 30, 26, 3, 1),
        Planted("IP addresses", 24, 23, 0, 1),
        Planted("phone numbers", 24, 19, 3, 2),
        Planted("payment cards", 24, 24, 0, 0),
        Planted("bank accounts (IBAN)", 18, 18, 0, 0),
    ),
    near_duplicates=(
        NearDuplicate(
            "https://docs.trainrig.example/mirror/2/heapq.html",
            "https://docs.trainrig.example/library/heapq.html",
            0.913,
        ),
        NearDuplicate(
            "https://docs.trainrig.example/old/asyncio.html",
            "https://docs.trainrig.example/library/asyncio.html",
            0.8,
        ),
    ),
    tokens_by_source={"docs": 4_612_345, "code": 2_300_000},
    vocabulary=8_192,
    parameters=3_412_992,
    loss=list_loss_points(),
    held_out=tuple(
        HeldOutPoint(step, step * TOKENS_A_STEP, 4.0 + 5.01 * math.exp(-step / 70))
        for step in range(0, STEPS + 1, 50)
    ),
    restarts=(Restart(KILLED_AT, RESUMED_FROM, 8.4, 31_337),),
    speed=tuple(
        (step, float(52_000 + np.random.default_rng(step).normal(0, 2_000)))
        for step in range(1, STEPS + 1)
    ),
    samples_checked=25_600,
    samples_lost=0,
    samples_repeated=0,
    tuning=tuple((step, 0.6 * compute_loss_at(2 * step)) for step in range(1, 201)),
    preferences=Preferences(
        steps=tuple(PreferencePoint(n, 0.01 * n, -0.02 * n, 0.5 + n / 100) for n in range(1, 38)),
        held_out=PreferencePoint(37, 0.31, -0.62, 0.83),
        held_out_pairs=200,
        right_drift=-0.4,
        wrong_drift=-6.2,
    ),
    scores=(
        DomainScore("docs", (2.31, 2.38, 2.39), (74.2, 82.1, 82.9)),
        DomainScore("code", (2.05, 2.11, 2.12), (40.3, 43.9, 44.1)),
        DomainScore("questions and answers", (2.92, 1.61, 1.63), (151.0, 15.9, 16.2)),
    ),
    generations=(
        PromptAnswers(
            "What does `json.dumps` do?",
            (
                ModelAnswer(" json.dumps(obj, *, skipkeys=False)\n\n    Return the", 60, "length"),
                ModelAnswer("Serialize an object to a string.", 9, "end of turn"),
                ModelAnswer("Serialize obj to a string.", 1, "end of turn"),
            ),
        ),
        PromptAnswers(
            "Write the signature of `heapq.merge`.",
            (
                ModelAnswer("\nheapq.merge is a function of the module. The module", 60, "length"),
                ModelAnswer("heapq.merge(*iterables, key=None)", 14, "end of turn"),
                ModelAnswer("heapq.merge(*iterables)", 11, "end of turn"),
            ),
        ),
        PromptAnswers(
            "Which module defines `Counter`?",
            (
                ModelAnswer(" Counter Counter Counter", 60, "length"),
                ModelAnswer("The module `collections`.", 8, "end of turn"),
                ModelAnswer("The module `collections`.", 8, "end of turn"),
            ),
        ),
    ),
    versions={"trainrig": "0.1.0", "python": "3.11.4", "torch": "2.13.0", "ray": "2.60.0"},
    machine="2 cores, 8 GiB, Linux x86_64",
    manifests={name: f"{i:x}" * 64 for i, name in enumerate(("curated", "tokens", "model"), 10)},
    commands=(
        ("Talk to the tuned model", "trainrig chat quickstart/tuned"),
        ("Continue the training of a model of your own", "trainrig pretrain my-run.toml"),
        ("See which documents step 200 trained on", "trainrig trace quickstart/model --step 200"),
    ),
)


class Elements(HTMLParser):
    """Elements of a page in order, with their attributes."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))

    def values(self, attribute: str) -> list[str]:
        return [a[attribute] for _, a in self.found if a.get(attribute)]


@cache
def page() -> str:
    return build_quickstart_page(STORY)


def extract_text(html: str) -> str:
    return " ".join(unescape(re.sub("<[^>]+>", " ", html)).split())


def add_hostile_text(value: Any) -> Any:
    """Append markup to every string in `value`, except trainrig's own stage names."""
    if isinstance(value, str):
        return f"{value}</p><script>alert('1')</script>\u202e\x00"
    if isinstance(value, StageResult):
        return value
    if isinstance(value, tuple):
        return tuple(map(add_hostile_text, value))
    if isinstance(value, Mapping):
        return {add_hostile_text(k): add_hostile_text(v) for k, v in value.items()}
    if is_dataclass(value):
        return replace(
            value, **{f.name: add_hostile_text(getattr(value, f.name)) for f in fields(value)}
        )
    return value


def test_the_verdict_says_what_happened_in_one_sentence():
    assert "Seven stages, 4 min 30 s, one worker killed, 0 samples lost or repeated." in (
        extract_text(page())
    )
    assert 'class="verdict done"' in page()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changes", "state", "words"),
    [
        ({"samples_lost": 3}, "failed", "Three samples lost and 0 repeated"),
        ({"samples_repeated": 64}, "failed", "64 were not used for training exactly once"),
        ({"restarts": ()}, "warning", "no workers killed"),
        (
            {"loss": (*STORY.loss[:211], LossPoint(212, 1, 9.9, 0), *STORY.loss[212:])},
            "warning",
            "training was not bit-exact",
        ),
    ],
)
def test_a_worse_run_gets_a_worse_verdict(changes, state, words):
    html = build_quickstart_page(replace(STORY, **changes))
    assert f'class="verdict {state}"' in html
    assert words in extract_text(html)


def test_the_page_says_why_the_report_of_the_run_has_another_held_out_loss():
    text = extract_text(page())
    assert "Scored by evaluate on more text than the run's own report" in text.replace("&#39;", "'")


def test_a_loss_that_rose_is_said_to_have_risen():
    worse = replace(STORY, held_out=STORY.held_out[::-1])
    assert "Held-out loss rose from 4.02 to 9.01 nats per token" in extract_text(
        build_quickstart_page(worse)
    )


def test_every_number_of_the_story_that_a_reader_would_ask_for_is_on_the_page():
    text = extract_text(page())
    for words in (
        "2,318 documents",
        "67.1 % of 3,452 read",
        "280 of 300",
        "12 missed, 8 dropped earlier",
        "6.91M tokens",
        "vocabulary of 8,192",
        "process 31337 was killed after step 212",
        "checkpoint of step 180",
        "32 steps ran twice; the two losses are bit-identical",
        "Tuning and preferences lowered bits per byte in 1 of 3 domains",
        "The right answer has the higher reward in 83.0 % of held-out pairs",
        "right answers 0.4 nats less likely, wrong answers 6.2 nats less likely",
        "14 tokens, stopped: end of turn",
        "One token, stopped",
        "trainrig chat quickstart/tuned",
        "a" * 64,
    ):
        assert words in text


def test_the_next_commands_are_lines_to_copy():
    lines = re.findall("<pre><code>(.*?)</code></pre>", page())
    assert lines == [line for _, line in STORY.commands]


def test_the_steps_done_twice_are_counted_and_compared():
    assert quickstart_page.compare_repeated_steps(STORY) == (32, 0.0)
    other = replace(STORY.loss[211], loss=STORY.loss[211].loss + 0.25)
    results = replace(STORY, loss=(*STORY.loss[:211], other, *STORY.loss[212:]))
    assert quickstart_page.compare_repeated_steps(results) == (32, pytest.approx(0.25))


def test_the_curve_is_the_final_models_history_and_the_dead_attempts_end_is_apart():
    faint, _, _, thrown, killed = quickstart_page.draw_loss(STORY)["plot"].marks
    tokens = TOKENS_A_STEP * np.arange(STEPS + 1)
    assert faint.x.tolist() == tokens[1:].tolist()
    assert faint.y.tolist() == [compute_loss_at(step) for step in range(1, STEPS + 1)]
    assert thrown.x.tolist() == tokens[181:213].tolist()
    assert killed.x == KILLED_AT * TOKENS_A_STEP


def test_a_killed_step_that_was_not_logged_still_has_its_place():
    sparse = replace(STORY, loss=tuple(point for point in STORY.loss if point.step % 10 == 0))
    *_, killed = quickstart_page.draw_loss(sparse)["plot"].marks
    assert killed.x == KILLED_AT * TOKENS_A_STEP


def test_the_funnel_narrows_by_what_each_reason_drops():
    results = replace(STORY, dropped=(Dropped("short", 1_000), Dropped("foreign", 134)))
    assert [row.lengths for row in quickstart_page.draw_funnel(results)["plot"].rows] == [
        (3_452, 0),
        (2_452, 1_000),
        (2_318, 134),
        (2_318, 0),
    ]


def test_at_most_three_examples_are_shown_for_a_reason():
    results = replace(STORY, dropped=(Dropped("short", 9, tuple("abcde")),))
    assert re.findall("Example [0-9]", build_quickstart_page(results)) == [
        "Example 1",
        "Example 2",
        "Example 3",
    ]


def test_every_chart_has_a_label_a_caption_with_n_and_its_table():
    found = re.findall("<figure>.*?</figure>", page(), re.S)
    assert len(found) == 8
    for chart in found:
        assert re.search('role="img" aria-label="[^"]{20,}"', chart)
        assert re.search("<figcaption>n = [0-9]", chart)
        assert "<table " in chart
        assert re.search(r"<tbody>\s*<tr>", chart)


def test_every_drawing_is_xml_and_no_two_elements_share_an_id():
    drawings = re.findall("<svg.*?</svg>", page(), re.S)
    assert len(drawings) == 8
    for drawing in drawings:
        ElementTree.fromstring(drawing)
    ids = Elements(page()).values("id")
    assert len(ids) == len(set(ids))


def test_links_lead_to_places_on_the_page_and_nowhere_else():
    elements = Elements(page())
    links = {link for link in elements.values("href") if link != "data:,"}
    assert links >= {"#pages", "#documents", "#tokens", "#model", "#tuned", "#aligned", "#scores"}
    assert {link.lstrip("#") for link in links} <= set(elements.values("id"))
    assert elements.values("src") == []


def test_hostile_text_anywhere_in_the_story_adds_no_element():
    hostile = build_quickstart_page(add_hostile_text(STORY))
    assert "&lt;script&gt;alert(&#39;1&#39;)" in hostile
    assert "\u202e" not in hostile
    assert "\x00" not in hostile
    outside = re.compile("<svg.*?</svg>", re.S)
    tags = [tag for tag, _ in Elements(outside.sub("", hostile)).found]
    assert tags == [tag for tag, _ in Elements(outside.sub("", page())).found]


def test_the_same_story_gives_the_same_bytes():
    assert build_quickstart_page(STORY) == page()


@pytest.mark.slow
def test_a_long_run_with_long_texts_stays_under_a_megabyte():
    steps = range(1, 20_001)
    long = replace(
        STORY,
        loss=tuple(LossPoint(s, s * TOKENS_A_STEP, compute_loss_at(s), 0) for s in steps),
        speed=tuple((s, 50_000.0 + s % 777) for s in steps),
        dropped=tuple(Dropped(f"reason {i}", 10, ("word " * 100_000,) * 9) for i in range(20)),
        restarts=(),
    )
    assert len(build_quickstart_page(long).encode()) < 1_000_000


def test_a_run_without_removals_and_duplicates_has_a_page():
    clean = replace(STORY, dropped=(), near_duplicates=(), documents_kept=3_452)
    assert "No documents were dropped" in extract_text(build_quickstart_page(clean))


def test_a_story_survives_json():
    adapter = TypeAdapter(QuickstartResults)
    assert adapter.validate_json(adapter.dump_json(STORY)) == STORY


@pytest.mark.parametrize("part", ["stages", "planted", "loss", "held_out", "scores"])
def test_a_story_without_its_main_parts_is_refused(part):
    with pytest.raises(ValueError, match=f"`{part}`"):
        replace(STORY, **{part: ()})


@pytest.mark.slow
def test_a_law_and_a_plan_have_a_section_where_there_was_a_sweep() -> None:
    points = tuple(
        SweepPoint(n, d, 4.0 + 1e3 / n + 1e4 / d, 4.0 + 1.02e3 / n + 1e4 / d)
        for n in (20_000, 40_000)
        for d in (80_000, 160_000)
    )
    constants = (("alpha", "0.34", "[0.2, 0.5]"),)
    plan = Planned(3e12, 1e5, 5e6, 3.9, ("100,000 parameters on 5,000,000 tokens",))
    page = build_quickstart_page(replace(STORY, scaling=Scaling(points, constants, plan)))
    assert "Scaling law: 4 runs of 2 sizes" in page and "[0.2, 0.5]" in page
    assert "The law is within 0.0% of each of the 4 runs" in page
    assert "100,000 parameters on 5,000,000 tokens" in page
    assert "Scaling law" not in build_quickstart_page(STORY)
    without = build_quickstart_page(
        replace(STORY, scaling=Scaling(points, problem="all on one ray"))
    )
    assert "No law can be fitted to them: all on one ray." in without
