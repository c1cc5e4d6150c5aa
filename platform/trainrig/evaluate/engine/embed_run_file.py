"""The run file of `trainrig embed`."""

from typing import Annotated, ClassVar, Literal

from trainrig.config import NOT_IDENTITY, OUTPUT, Field, ProgressUnit, ResourceRequest, RunFile
from trainrig.tokens.document_set import Documents

SPLIT_BYTES = 2**22  # bytes of text: about a minute on a core with a model of 100M parameters


class DocumentEmbedding(RunFile):
    """The run file of `trainrig embed`, which writes a vector for each document as Parquet."""

    verb: ClassVar[str] = "embed"
    resumes: ClassVar[bool] = True
    progress: ClassVar[ProgressUnit] = "splits"

    stage: Literal["embed"] = "embed"
    # Run folder or checkpoint of the model, usually an encoder.
    checkpoint: Annotated[str, NOT_IDENTITY]
    # Documents to embed: the folder of `curate`, or files as `[[documents]]` tables.
    documents: Documents
    output: Annotated[str, OUTPUT]  # folder to write, on disk or in a bucket
    # How the last hidden states become one vector: "mean" is their mean over the tokens of the
    # text, "first" the state of the first token (the one that the tokenizer adds, if it adds one).
    pooling: Literal["mean", "first"] = "mean"
    normalise: bool = True  # scale vectors to length 1, so that products are cosines
    # Tokens of one piece, of which longer texts have several; None: all positions of the model.
    sequence_length: int | None = Field(default=None, ge=2)
    # Most pieces of one text to read, from its beginning; None: all. The pooling "first" reads only
    # the first piece.
    pieces: int | None = Field(default=None, ge=1)
    # Pieces in one forward pass. Changing it may change the last digits of vectors.
    batch: int = Field(default=16, ge=1)
    # CPU threads of a worker. Changing it may change the last digits of vectors.
    threads: int = Field(default=1, ge=1)
    # Worker processes on Ray, each with a GPU if the cluster has some; 0: run in this process.
    workers: Annotated[int, NOT_IDENTITY] = Field(default=2, ge=0)
    # Approximate bytes of text for an output file, which is also one unit of work for a worker.
    shard_bytes: int = Field(default=SPLIT_BYTES, ge=1_024)

    def request_resources(self, there_are_gpus: bool) -> ResourceRequest:
        """Return the resources of the workers: a GPU each if there are any, otherwise a core."""
        return ResourceRequest.for_models(self.workers, there_are_gpus)
