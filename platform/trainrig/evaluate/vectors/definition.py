"""Task files of embedding tasks: TOML that names the texts to embed and how they are scored."""

from typing import Annotated, Literal

from pydantic import Field

from trainrig import config, storage
from trainrig.config import Settings
from trainrig.errors import ConfigError


class _VectorTask(Settings):
    """Keys of both kinds of tasks: the name, and how a text becomes a vector, as in `embed`."""

    name: str = Field(pattern=r"^[A-Za-z0-9_.-]+$")  # name of the task in scorecards
    description: str = ""  # description of the task, for reports
    source: str = ""  # paper of the task, or its publisher's page
    # How the last hidden states become one vector: their mean over the text, or the first token's.
    pooling: Literal["mean", "first"] = "mean"
    normalise: bool = True  # scale vectors to length 1, so that products are cosines
    # Tokens of one piece; longer texts are read in several pieces. None: all positions of the
    # model.
    sequence_length: int | None = Field(default=None, ge=2)
    # Most pieces of one text to read, from its beginning; None: all.
    pieces: int | None = Field(default=None, ge=1)
    # Pieces in one forward pass. Changing it may change the last digits of vectors.
    batch: int = Field(default=16, ge=1)


class LinearProbe(_VectorTask):
    """A linear probe: the accuracy of logistic regression on frozen vectors.

    It is fitted on `train` and measured on `rows` (Alain and Bengio 2016, arXiv:1610.01644).
    """

    kind: Literal["LinearProbe"] = "LinearProbe"
    train: str  # file of the rows to fit; JSON Lines (plain or .gz) or Parquet
    rows: str  # file of the rows to measure
    text: str = "text"  # field of a row with its text
    label: str = "label"  # field with its label: a text or a whole number
    # L2 penalty: half the squared coefficients times this is added to the sum of the losses. It
    # equals 1 / C in scikit-learn, and 2 / C for two classes.
    penalty: float = Field(default=1.0, gt=0, allow_inf_nan=False)
    # Scale each channel to mean 0 and standard deviation 1 over the rows to fit.
    standardise: bool = True


class Retrieval(_VectorTask):
    """A retrieval task: the ranks of a query's relevant documents, by the product of vectors."""

    kind: Literal["Retrieval"] = "Retrieval"
    queries: str  # file of queries; JSON Lines (plain or .gz) or Parquet
    documents: str  # file of documents
    # File of relevance judgements: a row for a query and a document, with a grade above 0 if the
    # document is relevant to the query.
    relevance: str
    id: str = "id"  # field of queries and documents with their names
    text: str = "text"  # field with their texts
    query: str = "query"  # field of `relevance` with the query's name
    document: str = "document"  # field of `relevance` with the document's name
    grade: str = "relevance"  # field of `relevance` with the grade; rows without it have 1
    # Numbers of documents from the top at which recall is measured.
    recall_at: tuple[Annotated[int, Field(ge=1)], ...] = (1, 10, 100)


FILES = {"LinearProbe": ("train", "rows"), "Retrieval": ("queries", "documents", "relevance")}


def load_vector_task(path: str, folder: str | None) -> LinearProbe | Retrieval:
    """Read the embedding task in the task file at `path`; relative row files are below `folder`.

    Raises ConfigError if the file is missing, or is not an embedding task.
    """
    text = config.read_text(path, "task file")
    tables = dict(config.parse(text, path))
    kind = tables.get("kind")
    task: LinearProbe | Retrieval
    if kind == "LinearProbe":
        task = config.build(LinearProbe, tables, path, text)
    elif kind == "Retrieval":
        task = config.build(Retrieval, tables, path, text)
    else:
        raise ConfigError(
            f"{path}: kind is {kind!r}, but a task of vectors must be {' or '.join(FILES)}"
        )
    placed = {name: _place_file(getattr(task, name), folder, path) for name in FILES[task.kind]}
    return task.model_copy(update=placed)


def _place_file(file: str, folder: str | None, where: str) -> str:
    if file.startswith(("/", storage.S3)):
        return file
    if folder is None:
        raise ConfigError(f"{where}: the path {file} is relative; set `task_rows` to its folder")
    return storage.join(folder, file)
