"""Writing of one shard at once."""

from collections.abc import Iterable

from trainrig.tokens.shards import shard_files
from trainrig.tokens.shards.shard_writer import EncodedDocument, ShardBuilder, ShardSummary


def write_shard(
    folder: str,
    name: str,
    vocabulary: shard_files.ShardVocabulary,
    documents: Iterable[EncodedDocument],
) -> ShardSummary:
    """Write `documents` as the shard `name` in `folder`; raises as `ShardBuilder.add` does."""
    shard = ShardBuilder(vocabulary)
    for document in documents:
        shard.add(document)
    return shard.write(folder, name)
