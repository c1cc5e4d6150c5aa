"""Lines of random pages for curation."""

import json
import random

WORDS = [
    "keeper",
    "lighthouse",
    "harbor",
    "lamp",
    "window",
    "river",
    "bridge",
    "garden",
    "letter",
    "market",
    "engine",
    "valley",
]


def make_lines(count: int, seed: int = 0) -> bytes:
    """Return JSON lines of unrelated texts; every tenth is short."""
    dice = random.Random(seed)
    texts = (" ".join(dice.choices(WORDS, k=8 if n % 10 == 0 else 60)) for n in range(count))
    rows = (json.dumps({"url": f"http://a/{n}", "text": text}) for n, text in enumerate(texts))
    return "".join(f"{row}\n" for row in rows).encode()
