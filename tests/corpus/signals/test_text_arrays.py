"""Character tables over all of Unicode, compared with Python's answer for each character."""

import sys

from trainrig.corpus.signals import text_arrays as module
from trainrig.corpus.signals.text_arrays import build_character_tables


def test_every_character_has_pythons_classes():
    classes, lower = build_character_tables()
    others = [
        hex(code)
        for code in range(sys.maxunicode + 1)
        if classes[code] != module._classify(chr(code)) or lower[code] != ord(chr(code).lower()[0])
    ]
    assert others == []
