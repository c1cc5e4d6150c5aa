"""Where the quickstart puts things."""

from dataclasses import dataclass

from trainrig import storage


@dataclass(frozen=True)
class Folders:
    """The folders of one quickstart, below `out`."""

    out: str

    def _build_path(self, *names: str) -> str:
        return storage.join(self.out, *names)

    @property
    def pages(self) -> str:
        """Archives, the list of what was planted, questions and answers."""
        return self._build_path("pages")

    @property
    def docs(self) -> str:
        """The archives of HTML pages."""
        return self._build_path("pages", "docs-*.warc.gz")

    @property
    def code(self) -> str:
        """The archives of Python sources."""
        return self._build_path("pages", "code-*.warc.gz")

    @property
    def planted(self) -> str:
        """The list of what was planted."""
        return self._build_path("pages", "planted.json")

    @property
    def lessons(self) -> str:
        """Questions and answers to tune on."""
        return self._build_path("pages", "instructions-train.jsonl")

    @property
    def questions(self) -> str:
        """Questions and answers kept apart to judge by."""
        return self._build_path("pages", "instructions-held-out.jsonl")

    @property
    def right_and_wrong(self) -> str:
        """Right answers beside wrong ones, to learn preferences from."""
        return self._build_path("pages", "pairs-train.jsonl")

    @property
    def right_and_wrong_held_out(self) -> str:
        """The same of questions kept apart."""
        return self._build_path("pages", "pairs-held-out.jsonl")

    @property
    def conversations(self) -> str:
        """What `conversations` wrote of questions and answers."""
        return self._build_path("conversations")

    @property
    def pairs(self) -> str:
        """What `conversations` wrote of right and wrong answers."""
        return self._build_path("pairs")

    @property
    def documents(self) -> str:
        """What `curate` wrote."""
        return self._build_path("documents")

    @property
    def tokenizer(self) -> str:
        """What `tokenizer` wrote."""
        return self._build_path("tokenizer")

    @property
    def tokens(self) -> str:
        """What `tokenize` wrote."""
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
        """The scorecard of the model that learnt preferences."""
        return self._build_path("scores-aligned")

    @property
    def sweep(self) -> str:
        """What `sweep` wrote, and the law of it."""
        return self._build_path("sweep")

    @property
    def planned(self) -> str:
        """The run file of the plan made by that law."""
        return self._build_path("planned.toml")

    @property
    def report(self) -> str:
        """The page that tells all of it."""
        return self._build_path("report.html")

    def list_scored(self) -> dict[str, str]:
        """Checkpoints, and where their scorecards go: the first one, and each model."""
        first = sorted(
            storage.list_files(self._build_path("model", "checkpoints"), "/manifest.json")
        )[0]
        return {
            first.removesuffix("/manifest.json"): self.scores_early,
            self.model: self.scores_model,
            self.tuned: self.scores_tuned,
            self.aligned: self.scores_aligned,
        }
