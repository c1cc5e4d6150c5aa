"""Texts on which two tokenizer libraries are compared, when a tokenizer is loaded and reported.

They combine every kind of character: scripts, digits, runs of white space, emoji, code and all
bytes that occur in UTF-8. They also have characters that are recent in Unicode, which libraries
with older Unicode tables classify differently.
"""

import functools

# Blocks of letters, marks and digits that were added in Unicode 14 to 17 (appendix D of each
# version of the standard). Unicode tables of different versions differ here.
_LATE_BLOCKS = (
    (0x088F, 0x0890), (0x0C5C, 0x0C5D), (0x1C89, 0x1C8B), (0x1ACF, 0x1ADE), (0xA7C0, 0xA7DD),
    (0xA7F1, 0xA7F5), (0x10570, 0x105BD), (0x105C0, 0x105F4), (0x10940, 0x1095A),
    (0x10D40, 0x10D86), (0x10EC2, 0x10EC8), (0x10F70, 0x10F8A), (0x11070, 0x11076),
    (0x11240, 0x11242), (0x11380, 0x113E3), (0x116D0, 0x116E4), (0x11AB0, 0x11AF9),
    (0x11BC0, 0x11BFA), (0x11DB0, 0x11DEA), (0x11F00, 0x11F5B), (0x12F90, 0x12FF3),
    (0x13460, 0x13480), (0x16100, 0x1613A), (0x16A70, 0x16ACA), (0x16D40, 0x16D7A),
    (0x16EA0, 0x16ED4), (0x187F8, 0x18800), (0x1B132, 0x1B133), (0x1B155, 0x1B156),
    (0x1DF00, 0x1DF2B), (0x1E030, 0x1E08F), (0x1E290, 0x1E2AF), (0x1E4D0, 0x1E4FA),
    (0x1E5D0, 0x1E600), (0x1E6C0, 0x1E700), (0x1E7E0, 0x1E7FF), (0x2A6DD, 0x2A6E0),
    (0x2B735, 0x2B73A), (0x2EBF0, 0x2EBF2), (0x31350, 0x31352), (0x323B0, 0x323B2),
    (0x33478, 0x3347A),
)  # fmt: skip
_STRIDE = 61  # every 61st character of Plane 0 is used, so that each block is represented


@functools.cache
def build_probe_texts() -> list[str]:
    """Return the texts, about 115,000 generated characters in all."""
    late = [chr(code) for begin, end in _LATE_BLOCKS for code in range(begin, end)]
    low = [chr(code) for code in range(0x600)]
    spread = [chr(code) for code in range(0x600, 0xD800, _STRIDE)]
    emoji = ["👩🏽‍🚀", "🏳️‍🌈", "🇳🇱", "e\u0301", "\u200d", "\ufeff", "\U0010ffff", "\ue000"]
    texts = []
    for characters in (low, spread, late, emoji):
        # Each character between letters, digits, marks and spaces, repeated, and after apostrophes.
        for pattern in ("a{0}a {0} ", "1{0}!{0}\n", "{0}", "'{0}' ", " {0}\r\n\t", "'r{0} '{0}l "):
            texts.append("".join(pattern.format(character) for character in characters))
    spaces = ["".join(pair) * count for pair in zip(" \t\n\r\x85\u3000", "\n \r ab", strict=True)
              for count in (1, 2, 3, 8, 33)]  # fmt: skip
    texts += ["x" + run + "y" + run for run in spaces] + spaces
    texts += ["0123456789" * 9, "3.14e-10, 1,000,000 १२३ ²³½ Ⅻ", "'S'll'VE 'ſ don't DON'T"]
    texts += ["def f(x):\n    return x  # ok\n\n\nif a<=b && c!=d: {[(-->)]} \\n\\t /*…*/ ;;;\n"]
    return texts
