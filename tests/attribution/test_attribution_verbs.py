from pathlib import Path

import pytest
from support.token_folders import encode_texts, make_encoder, write_token_folder

from trainrig.attribution import attribution_verbs, open_index
from trainrig.attribution.attributed_text import AttributionLimits
from trainrig.attribution.index_run_file import CorpusIndexing
from trainrig.attribution.index_stage import index_tokens


def test_sources_of_a_chat_cannot_clear_the_screen(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = "the cat sat on the mat"
    encoder = make_encoder()
    shards = [encode_texts({"web\x1b[2J": [text]}, encoder)]  # a URL has the source's name here
    tokens = write_token_folder(tmp_path / "tokens", shards, encoder.vocabulary_size)
    output = str(tmp_path / "index")
    index_tokens(CorpusIndexing(tokens=(tokens,), output=output, workers=0))
    limits = AttributionLimits(minimum=3, spans=5, documents=1, context=10)
    capsys.readouterr()
    attribution_verbs._show_sources(text, open_index(output), limits)
    shown = capsys.readouterr().out
    assert "[1] https://web\u27e8U+001B\u27e9[2J.example/0/0" in shown and "\x1b[2J" not in shown
