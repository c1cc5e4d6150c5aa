"""Reward that is the score of a trained reward model."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Literal, Self

from pydantic import Field

from trainrig import storage
from trainrig.config import NOT_IDENTITY
from trainrig.errors import ConfigError
from trainrig.posttrain.rewards.contract import Completion, Fault, RewardPart, Score
from trainrig.tokens.chat.chat_messages import (
    BadRow,
    Conversation,
    Message,
    adapt_roles,
)
from trainrig.train import checkpoint

if TYPE_CHECKING:  # torch takes seconds to import
    from trainrig.posttrain.score.answer_scorer import AnswerScorer
    from trainrig.tokens.chat.chat_tokenizer import ChatTokenizer
    from trainrig.tokens.chat.rendering import ChatRenderer


class RewardModel(RewardPart):
    """Reward that is the score of a model trained by `posttrain` with the objective Reward.

    The model reads prompt and completion as a conversation, with its own tokenizer and chat
    template, as in its training. Its score has no fixed scale. To see real progress in the metrics,
    add a verifier with `weight = 0`.
    """

    kind: Literal["RewardModel"] = "RewardModel"
    name: str = "reward_model"  # name of this reward in metrics
    # Reward model: a run folder of `posttrain`, which may hold an adapter, or a checkpoint in it.
    checkpoint: Annotated[str, NOT_IDENTITY]
    # Completions in one forward pass. Another number may change the last digits.
    batch: int = Field(default=8, ge=1)

    def resolve_paths(self) -> Self:
        """Return a copy whose `checkpoint` is the absolute path of the newest checkpoint now."""
        path = checkpoint.resolve(storage.make_absolute(self.checkpoint))
        return self.model_copy(update={"checkpoint": path})

    def hash_inputs(self) -> Mapping[str, str]:
        """Return the content key of the reward model's checkpoint."""
        return {"checkpoint": checkpoint.compute_content_key(checkpoint.resolve(self.checkpoint))}

    def open(self) -> "ModelScorer":
        """Return the scorer that runs the reward model.

        Raises DataError if there is no checkpoint, ConfigError if the model is no reward model or
        has no chat template.
        """
        path = checkpoint.resolve(self.checkpoint)
        if (found := checkpoint.describe(path)[0]).head != "score":
            raise ConfigError(
                f"rewards: '{self.name}': {path} is {found.description}, not a reward model; "
                'train one by `trainrig posttrain` with objective.kind = "Reward"'
            )
        chat = open_chat(path)
        return ModelScorer(self.name, path, self.batch, chat.build_renderer(), chat.template)


@dataclass
class ModelScorer:
    """Scorer that runs a reward model, which is loaded at the first call of `score`."""

    name: str
    path: str
    batch: int
    renderer: "ChatRenderer"
    template: str  # chat template of the renderer
    _model: "AnswerScorer | None" = field(default=None)

    def score(self, completions: Sequence[Completion]) -> list[Score]:
        """Return the model's score of each completion, or a Fault if the model cannot read it."""
        scores: list[Score] = []
        for begin in range(0, len(completions), self.batch):
            scores += self._score(completions[begin : begin + self.batch])
        return scores

    def _score(self, completions: Sequence[Completion]) -> list[Score]:
        from trainrig.posttrain.score.answer_scorer import AnswerScorer

        model = self._model = self._model or AnswerScorer.open(self.path)
        scores: list[Score] = []
        answers = []
        for completion in completions:
            asked = completion.chat or Conversation((Message("user", completion.prompt),))
            turns = (*asked.messages, Message("assistant", completion.text))
            chat = Conversation(adapt_roles(turns, self.template), asked.tools)
            try:
                rendered = self.renderer.render(chat.train_on_last())
                answers.append((rendered, model.find_places(rendered, steps=False)))
            except BadRow as bad:
                scores.append(Fault("unreadable", str(bad)))
            else:
                scores.append(0.0)  # placeholder, replaced by the model's score below
        found = iter(model.score(answers) if answers else [])
        return [score if isinstance(score, Fault) else next(found)[0] for score in scores]


def open_chat(path: str) -> "ChatTokenizer":
    """Return the tokenizer of the checkpoint at `path`, with its chat template."""
    from trainrig.tokens.chat.chat_tokenizer import ChatTokenizer

    return ChatTokenizer(checkpoint.read_tokenizer_files(path))
