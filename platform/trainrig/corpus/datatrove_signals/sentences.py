"""Count spaCy's sentences (its `sentencizer`) in the lines that datatrove's C4 filter keeps."""

import numpy as np
from numpy.typing import NDArray

from trainrig.corpus.compiled import compile_nogil
from trainrig.corpus.datatrove_signals.chunk_cache import Tokens
from trainrig.corpus.datatrove_signals.chunks import Chunks
from trainrig.corpus.datatrove_signals.token_flags import ENDS_SENTENCE, PUNCTUATION
from trainrig.corpus.signals.line_ends import ends_in_dots
from trainrig.corpus.signals.text_arrays.batch import TextBatch

_NEW_LINE = 0x0A
_SPACE = 0x20
_END_MARKS = tuple(map(ord, ".?!\"'"))


def count_sentences(batch: TextBatch, chunks: Chunks, tokens: Tokens) -> NDArray[np.int64]:
    """Count each text's sentences, [2, texts]: of all lines, and of lines with a C4 line end."""
    found = np.zeros((2, len(batch.starts_D1) - 1), np.int64)
    _count(
        batch.codes_C,
        batch.starts_D1,
        *(chunks.starts_K, chunks.ends_K, chunks.firsts_D1),
        *(tokens.flags_T, tokens.firsts_K1),
        found,
    )
    return found


@compile_nogil
def _count(
    codes: NDArray[np.uint32],
    texts: NDArray[np.int64],
    starts: NDArray[np.int64],
    ends: NDArray[np.int64],
    first_chunks: NDArray[np.int64],
    flags: NDArray[np.uint8],
    first_tokens: NDArray[np.int64],
    found: NDArray[np.int64],
) -> None:
    for text in range(len(texts) - 1):
        # sentences of this line, and whether the last one has ended
        sentences = 0
        ended = False
        for chunk in range(first_chunks[text], first_chunks[text + 1]):
            if sentences == 0:
                sentences = 1
                line = starts[chunk]
            for token in range(first_tokens[chunk], first_tokens[chunk + 1]):
                if flags[token] & ENDS_SENTENCE:
                    ended = True
                elif ended and flags[token] & PUNCTUATION == 0:
                    sentences += 1
                    ended = False
            end = ends[chunk]
            is_last = chunk + 1 == first_chunks[text + 1]
            after = texts[text + 1] if is_last else starts[chunk + 1]
            if is_last or _NEW_LINE in codes[end:after]:
                found[0, text] += sentences
                if codes[end - 1] in _END_MARKS and not ends_in_dots(codes, line, end):
                    found[1, text] += sentences
                sentences = 0
                ended = False
            elif ended and (after - end > 1 or codes[end] != _SPACE):
                # White space other than one space is a token, and so starts a sentence.
                sentences += 1
                ended = False
