"""What embedding is told."""

from typing import Annotated, ClassVar, Literal

from trainrig.config import (
    NOT_IDENTITY,
    OUTPUT,
    Field,
    ProgressUnit,
    ResourceRequest,
    RunFile,
)
from trainrig.tokens.documents.document_set import Documents

SPLIT_BYTES = 2**22  # of text: a minute of a core by a model of 100 million parameters


class DocumentEmbedding(RunFile):
    """`trainrig embed`: a vector for each document, as Parquet."""

    verb: ClassVar[str] = "embed"
    resumes: ClassVar[bool] = True
    progress: ClassVar[ProgressUnit] = "splits"

    stage: Literal["embed"] = "embed"
    checkpoint: Annotated[str, NOT_IDENTITY]  # run folder or checkpoint of the model, an encoder's
    # Documents to embed: the folder of `curate`, or files as `[[documents]]` tables.
    documents: Documents
    output: Annotated[str, OUTPUT]  # folder to write, on disk or s3://
    # What of the last hidden states is the vector: their mean over the tokens of the text, or that
    # of the first token (of a tokenizer that puts one before each text: that one).
    pooling: Literal["mean", "first"] = "mean"
    normalise: bool = True  # whether vectors are of length 1, so that products are cosines
    # Tokens that are read together; longer texts are read in pieces of it. None: the model's
    # positions.
    sequence_length: int | None = Field(default=None, ge=2)
    # Pieces of one text to read, the first ones; None: all. "first" takes the first alone.
    pieces: int | None = Field(default=None, ge=1)
    # Pieces of a forward pass. Another number may give other last digits.
    batch: int = Field(default=16, ge=1)
    # Threads of a worker on a CPU. Another number may give other last digits.
    threads: int = Field(default=1, ge=1)
    # Worker processes, on Ray; 0: work in this process, without Ray.
    workers: Annotated[int, NOT_IDENTITY] = Field(default=2, ge=0)
    # Bytes of text of an output file, about; also what one worker does at a time.
    shard_bytes: int = Field(default=SPLIT_BYTES, ge=1_024)

    def request_resources(self, there_are_gpus: bool) -> ResourceRequest:
        """Its workers, on cores."""
        return ResourceRequest.on_cores(self.workers)
