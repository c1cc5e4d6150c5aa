"""Task files of vectors: TOML that says which texts become vectors, and what is asked of those."""

from typing import Annotated, Literal

from pydantic import Field

from trainrig import config, storage
from trainrig.config import Settings
from trainrig.errors import ConfigError


class _VectorTask(Settings):
    """What both kinds have: a name, and how a text becomes a vector, as in `embed`."""

    name: str = Field(pattern=r"^[A-Za-z0-9_.-]+$")  # what scorecards call it
    description: str = ""  # what it asks, for reports
    source: str = ""  # paper, or page of its publisher
    # What of the last hidden states is the vector: their mean over the text, or that of the first.
    pooling: Literal["mean", "first"] = "mean"
    normalise: bool = True  # whether vectors are of length 1, so that products are cosines
    # Tokens that are read together; longer texts are read in pieces of it. None: the positions.
    sequence_length: int | None = Field(default=None, ge=2)
    # Pieces of one text to read, the first ones; None: all.
    pieces: int | None = Field(default=None, ge=1)
    # Pieces of a forward pass. Another number may give other last digits.
    batch: int = Field(default=16, ge=1)


class LinearProbe(_VectorTask):
    """How well a linear classifier tells labels from vectors that stay as they are (Alain and
    Bengio 2016, arXiv:1610.01644): logistic regression on `train`, measured on `rows`."""

    kind: Literal["LinearProbe"] = "LinearProbe"
    train: str  # file of the rows to fit; JSON Lines (plain or .gz) or Parquet
    rows: str  # file of the rows to measure
    text: str = "text"  # field of a row with its text
    label: str = "label"  # field with its label: a text or a whole number
    # Weight of half the squared coefficients beside the sum of the losses; scikit-learn's 1 / C, of
    # two classes its 2 / C.
    penalty: float = Field(default=1.0, gt=0, allow_inf_nan=False)
    # Whether each channel is brought to mean 0 and deviation 1 over the rows to fit.
    standardise: bool = True


class Retrieval(_VectorTask):
    """How far up the documents are that belong to a query, when all are ordered by the product of
    vectors."""

    kind: Literal["Retrieval"] = "Retrieval"
    queries: str  # file of queries; JSON Lines (plain or .gz) or Parquet
    documents: str  # file of documents
    # File of which document belongs to which query, a row each, with a grade above 0 if it does.
    relevance: str
    id: str = "id"  # field of queries and documents with their names
    text: str = "text"  # field with their texts
    query: str = "query"  # field of `relevance` with the query's name
    document: str = "document"  # field of `relevance` with the document's name
    grade: str = "relevance"  # field of `relevance` with the grade; rows without it have 1
    # Places from the top at which recall is measured.
    recall_at: tuple[Annotated[int, Field(ge=1)], ...] = (1, 10, 100)


FILES = {"LinearProbe": ("train", "rows"), "Retrieval": ("queries", "documents", "relevance")}


def load_vector_task(path: str, folder: str | None) -> LinearProbe | Retrieval:
    """The task of the task file at `path`, its files looked for in `folder` if relative.

    Raises ConfigError for a file that is not there, or holds something else.
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
        raise ConfigError(f"{path}: kind is {kind!r}; a task of vectors is {' or '.join(FILES)}")
    placed = {name: _place_file(getattr(task, name), folder, path) for name in FILES[task.kind]}
    return task.model_copy(update=placed)


def _place_file(file: str, folder: str | None, where: str) -> str:
    if file.startswith(("/", storage.S3)):
        return file
    if folder is None:
        raise ConfigError(f"{where}: {file} is relative; name the folder of it as `task_rows`")
    return storage.join(folder, file)
