"""Folders of token shards with given ids, as `tokenize` leaves them."""

import functools
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from support.shards import write_shard
from trainrig import manifest
from trainrig.tokens.prepare import Tokenization
from trainrig.tokens.shards.token_shards import EncodedDocument, ShardVocabulary
from trainrig.tokens.tokenizer import train_tokenizer
from trainrig.tokens.tokenizers.encode import Encoder
from trainrig.tokens.tokenizers.tokenizer_kinds import ByteLevelBPE

Documents = Mapping[str, Sequence[Sequence[int]]]  # ids of each document, by source


@functools.cache
def make_encoder() -> Encoder:
    """Return a small tokenizer of bytes and a few merges."""
    texts = ["the cat sat on the mat " * 2, "the sea is grey and nobody sleeps there at night"]
    return Encoder(train_tokenizer(ByteLevelBPE(vocabulary=270), texts).decode())


def write_token_folder(
    folder: Path, shards: Sequence[Documents], vocabulary: int, encoder: Encoder | None = None
) -> str:
    """Write one training shard for each of `shards`; return the folder.

    Document `n` of a source in shard `s` has the id `source-s-n`, and a URL with the same parts.
    """
    encoder = encoder or make_encoder()
    run = Tokenization(documents="d", tokenizer="t", output=str(folder))
    stage = manifest.claim(str(folder), run, {"documents": str(shards)})
    (folder / "tokenizer.json").write_text(encoder.text)
    for number, documents in enumerate(shards):
        write_shard(
            str(folder / "train"),
            f"documents-{number:05d}",
            ShardVocabulary(vocabulary, encoder.fingerprint),
            [
                EncodedDocument(
                    id=f"{source}-{number}-{row}",
                    source=source,
                    url=f"https://{source}.example/{number}/{row}",
                    ids=np.array(ids, np.uint32),
                    text_bytes=len(ids),
                    corpus_file=f"{source}-{number:05d}.parquet",
                    corpus_row=row,
                )
                for source, texts in documents.items()
                for row, ids in enumerate(texts)
            ],
        )
    names = [str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()]
    files = {
        name: manifest.compute_file_sum(str(folder / name))
        for name in names
        if name != manifest.CLAIM
    }
    stage.finish({}, files)
    return str(folder)


def encode_texts(texts: Mapping[str, Sequence[str]], encoder: Encoder) -> Documents:
    """Return the ids of the texts of each source, each with end-of-text."""
    return {
        source: [[*map(int, encoder.encode_batch([text])[0]), encoder.end_of_text] for text in own]
        for source, own in texts.items()
    }
