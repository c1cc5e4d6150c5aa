"""The run file of `trainrig index`."""

from typing import Annotated, ClassVar, Literal

from trainrig.config import (
    EXTENDABLE,
    NOT_IDENTITY,
    OUTPUT,
    Field,
    ProgressUnit,
    ResourceRequest,
    RunFile,
)

# 67 million tokens: sorting them takes about 0.9 GB with ids of 16 bits, and 1.4 GB with wider ids.
PARTITION_TOKENS = 2**26
# The sorting library numbers bytes by 31 bits, and a token has up to 3 bytes there.
MOST_PARTITION_TOKENS = 2**29


class CorpusIndexing(RunFile):
    """Run file of `trainrig index`, which sorts training tokens so that texts can be found."""

    verb: ClassVar[str] = "index"
    resumes: ClassVar[bool] = True
    extends_finished: ClassVar[bool] = True
    progress: ClassVar[ProgressUnit] = "splits"

    stage: Literal["index"] = "index"
    # Folders that `tokenize` or `conversations` wrote, all with one tokenizer. Their training
    # shards are indexed. A folder may be added to a finished index, which sorts only that folder.
    tokens: Annotated[tuple[str, ...], NOT_IDENTITY, EXTENDABLE] = Field(min_length=1)
    output: Annotated[str, OUTPUT]  # folder to write, on disk or in a bucket
    # Most tokens in a partition, which one worker sorts in memory. Sorting takes 14 bytes of memory
    # a token, or 21 if the vocabulary has more than 65,535 entries. Searches take longer with more
    # partitions. A document with more tokens fills a partition alone.
    partition_tokens: int = Field(default=PARTITION_TOKENS, ge=1, le=MOST_PARTITION_TOKENS)
    # Number of worker processes; 0: work in this process, without Ray.
    workers: Annotated[int, NOT_IDENTITY] = Field(default=2, ge=0)

    def request_resources(self, there_are_gpus: bool) -> ResourceRequest:
        """Return a request for CPU cores, one for each worker."""
        return ResourceRequest.on_cores(self.workers)
