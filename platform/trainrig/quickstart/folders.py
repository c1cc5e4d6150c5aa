"""Paths of the quickstart's files and folders."""

from dataclasses import dataclass

from trainrig import storage


@dataclass(frozen=True)
class Folders:
    """The paths of one quickstart, below the folder `out`."""

    out: str

    def _build_path(self, *names: str) -> str:
        return storage.join(self.out, *names)

    @property
    def pages(self) -> str:
        """The folder of web archives, injected faults, questions and answers."""
        return self._build_path("pages")

    @property
    def docs(self) -> str:
        """The pattern of the archives of HTML pages."""
        return self._build_path("pages", "docs-*.warc.gz")

    @property
    def code(self) -> str:
        """The pattern of the archives of Python sources."""
        return self._build_path("pages", "code-*.warc.gz")

    @property
    def planted(self) -> str:
        """The JSON list of injected faults."""
        return self._build_path("pages", "planted.json")

    @property
    def lessons(self) -> str:
        """The questions and answers for fine-tuning."""
        return self._build_path("pages", "instructions-train.jsonl")

    @property
    def questions(self) -> str:
        """The held-out questions and answers for evaluation."""
        return self._build_path("pages", "instructions-held-out.jsonl")

    @property
    def right_and_wrong(self) -> str:
        """The preference pairs for training."""
        return self._build_path("pages", "pairs-train.jsonl")

    @property
    def right_and_wrong_held_out(self) -> str:
        """The held-out preference pairs."""
        return self._build_path("pages", "pairs-held-out.jsonl")

    @property
    def conversations(self) -> str:
        """The output of `conversations` for questions and answers."""
        return self._build_path("conversations")

    @property
    def pairs(self) -> str:
        """The output of `conversations` for preference pairs."""
        return self._build_path("pairs")

    @property
    def documents(self) -> str:
        """The output of `curate`."""
        return self._build_path("documents")

    @property
    def tokenizer(self) -> str:
        """The output of `tokenizer`."""
        return self._build_path("tokenizer")

    @property
    def tokens(self) -> str:
        """The output of `tokenize`."""
        return self._build_path("tokens")

    @property
    def model(self) -> str:
        """The run folder of `pretrain`."""
        return self._build_path("model")

    @property
    def tuned(self) -> str:
        """The run folder of `posttrain` on conversations."""
        return self._build_path("tuned")

    @property
    def aligned(self) -> str:
        """The run folder of `posttrain` on pairs."""
        return self._build_path("aligned")

    @property
    def scores_early(self) -> str:
        """The scorecard of the first checkpoint."""
        return self._build_path("scores-early")

    @property
    def scores_model(self) -> str:
        """The scorecard of the pretrained model."""
        return self._build_path("scores-model")

    @property
    def scores_tuned(self) -> str:
        """The scorecard of the tuned model."""
        return self._build_path("scores-tuned")

    @property
    def scores_aligned(self) -> str:
        """The scorecard of the model after preference learning."""
        return self._build_path("scores-aligned")

    @property
    def sweep(self) -> str:
        """The output of `sweep`, with its fitted scaling law."""
        return self._build_path("sweep")

    @property
    def planned(self) -> str:
        """The run file of the training run that the scaling law plans."""
        return self._build_path("planned.toml")

    @property
    def report(self) -> str:
        """The HTML report."""
        return self._build_path("report.html")

    def list_scored(self) -> dict[str, str]:
        """Return the scorecard folders by checkpoint: the first checkpoint and each final model."""
        first = sorted(
            storage.list_files(self._build_path("model", "checkpoints"), "/manifest.json")
        )[0]
        return {
            first.removesuffix("/manifest.json"): self.scores_early,
            self.model: self.scores_model,
            self.tuned: self.scores_tuned,
            self.aligned: self.scores_aligned,
        }
