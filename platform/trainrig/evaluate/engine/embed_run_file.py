"""The run file of `trainrig embed`."""

import math
from typing import Annotated, ClassVar, Literal

from trainrig.config import (
    EXTENDABLE,
    NOT_IDENTITY,
    OUTPUT,
    Field,
    ProgressUnit,
    ResourceRequest,
    RunFile,
    Settings,
)
from trainrig.config.field_marks import ADDED_LATER
from trainrig.errors import ConfigError
from trainrig.tokens.document_set import Documents

SPLIT_BYTES = 2**22  # bytes of text: about a minute on a core with a model of 100M parameters


class SemanticDuplicates(Settings):
    """Search for documents of similar meaning, by the cosines of their vectors (SemDeDup).

    Vectors are clustered, and only documents of one cluster are compared. The work grows with the
    square of the number of documents over `clusters`.
    """

    # Cosine from which on a document duplicates another. It depends on the model: read some pairs.
    threshold: float = Field(gt=0, le=1)
    # Number of clusters; None: the square root of the number of documents. More clusters take less
    # work, and separate more duplicates.
    clusters: int | None = Field(default=None, ge=1)
    # Which of several duplicates is kept: the one farthest from the centre of its cluster (as in
    # SemDeDup), the one nearest to it, or the first by the hash of the id.
    keep: Literal["farthest", "nearest", "hash"] = "farthest"
    seed: int = 1  # seed of the documents that clustering begins with, and of `keep = "hash"`

    def choose_clusters(self, documents: int) -> int:
        """Return the number of clusters for `documents` documents.

        Raises ConfigError if there are fewer documents than clusters, or none.
        """
        if not documents:
            raise ConfigError(
                "semantic_duplicates: no document has a unique id; name a column of unique ids as "
                "`id` of [[documents]], or drop exact duplicates with `trainrig curate`"
            )
        clusters = self.clusters or max(1, math.isqrt(documents))
        if clusters > documents:
            raise ConfigError(
                f"semantic_duplicates.clusters ({clusters:,}) exceeds the number of documents with "
                f"a unique id ({documents:,}); lower it, or leave it out"
            )
        return clusters


class DocumentEmbedding(RunFile):
    """The run file of `trainrig embed`, which writes a vector for each document as Parquet."""

    verb: ClassVar[str] = "embed"
    resumes: ClassVar[bool] = True
    extends_finished: ClassVar[bool] = True
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
    # Settings to find documents of similar meaning; None: they are not searched for.
    semantic_duplicates: Annotated[SemanticDuplicates | None, EXTENDABLE, ADDED_LATER] = None
    # Approximate bytes of text for an output file, which is also one unit of work for a worker.
    shard_bytes: int = Field(default=SPLIT_BYTES, ge=1_024)

    def request_resources(self, there_are_gpus: bool) -> ResourceRequest:
        """Return the resources of the workers: a GPU each if there are any, otherwise a core."""
        return ResourceRequest.for_models(self.workers, there_are_gpus)
