"""Paths of the quickstart's files and folders."""

from trainrig import storage


class Folders:
    """The paths of one quickstart, below the folder `out`."""

    def __init__(self, out: str) -> None:
        def below(*names: str) -> str:
            return storage.join(out, *names)

        self.out = out
        self.pages = below("pages")  # web archives, injected faults, questions and answers
        self.docs = below("pages", "docs-*.warc.gz")  # pattern of the archives of HTML pages
        self.code = below("pages", "code-*.warc.gz")  # pattern of the archives of Python sources
        self.planted = below("pages", "planted.json")  # list of injected faults
        # Questions and answers for fine-tuning, and held-out ones for evaluation.
        self.lessons = below("pages", "instructions-train.jsonl")
        self.questions = below("pages", "instructions-held-out.jsonl")
        # Preference pairs for training, and held-out ones.
        self.right_and_wrong = below("pages", "pairs-train.jsonl")
        self.right_and_wrong_held_out = below("pages", "pairs-held-out.jsonl")
        self.conversations = below("conversations")  # questions and answers, tokenized
        self.pairs = below("pairs")  # preference pairs, tokenized
        self.documents = below("documents")
        self.tokenizer = below("tokenizer")
        self.tokens = below("tokens")
        # Run folders of `pretrain`, of `posttrain` on conversations, and of `posttrain` on pairs.
        self.model = below("model")
        self.tuned = below("tuned")
        self.aligned = below("aligned")
        # Scorecards of the first checkpoint and of the three models.
        self.scores_early = below("scores-early")
        self.scores_model = below("scores-model")
        self.scores_tuned = below("scores-tuned")
        self.scores_aligned = below("scores-aligned")
        self.sweep = below("sweep")  # output of `sweep`, with its fitted scaling law
        self.planned = below("planned.toml")  # run file that the scaling law plans
        self.report = below("report.html")

    def list_scored(self) -> dict[str, str]:
        """Return the scorecard folders by checkpoint: the first checkpoint and each final model."""
        checkpoints = storage.join(self.model, "checkpoints")
        first = sorted(storage.list_files(checkpoints, "/manifest.json"))[0]
        return {
            first.removesuffix("/manifest.json"): self.scores_early,
            self.model: self.scores_model,
            self.tuned: self.scores_tuned,
            self.aligned: self.scores_aligned,
        }
