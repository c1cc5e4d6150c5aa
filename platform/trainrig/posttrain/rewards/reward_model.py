"""A reward that a trained reward model gives."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Literal, Self

from pydantic import Field

from trainrig import storage
from trainrig.config import NOT_IDENTITY
from trainrig.errors import ConfigError
from trainrig.posttrain.rewards.contract import Completion, Fault, RewardPart, Score
from trainrig.tokens.chat.messages import BadRow, Conversation, Message, adapt_roles
from trainrig.train import checkpoint

if TYPE_CHECKING:  # torch takes seconds to import
    from trainrig.posttrain.score.answer_scorer import AnswerScorer
    from trainrig.tokens.chat.chat_tokenizer import ChatTokenizer
    from trainrig.tokens.chat.rendering import ChatRenderer


class RewardModel(RewardPart):
    """The score of a reward model, which `posttrain` makes with the objective Reward.

    It reads prompt and completion as a conversation, by its own tokenizer and chat template, as it
    was taught. Its score is of no fixed scale: show a true verifier beside it, with `weight = 0`.
    """

    kind: Literal["RewardModel"] = "RewardModel"
    name: str = "reward_model"  # of the part in metrics
    # The model: a run folder of `posttrain`, also of an adapter, or a checkpoint in it.
    checkpoint: Annotated[str, NOT_IDENTITY]
    # Completions of a forward pass. Another number may give other last digits.
    batch: int = Field(default=8, ge=1)

    def resolve_paths(self) -> Self:
        """With the checkpoint that is the newest now."""
        path = checkpoint.resolve(storage.make_absolute(self.checkpoint))
        return self.model_copy(update={"checkpoint": path})

    def hash_inputs(self) -> Mapping[str, str]:
        """The checkpoint's contents."""
        return {"checkpoint": checkpoint.compute_content_key(checkpoint.resolve(self.checkpoint))}

    def open(self) -> "ModelScorer":
        """What asks it. Raises DataError if there is none, ConfigError for a model that does not
        score, or has no chat template."""
        path = checkpoint.resolve(self.checkpoint)
        if (found := checkpoint.describe(path)[0]).head != "score":
            raise ConfigError(
                f"rewards: '{self.name}': {path} is {found.description}, which scores nothing; "
                'train one that does by `trainrig posttrain` with objective.kind = "Reward"'
            )
        chat = open_chat(path)
        return ModelScorer(self.name, path, self.batch, chat.build_renderer(), chat.template)


@dataclass
class ModelScorer:
    """Asks a reward model, which is loaded when the first completion is there."""

    name: str
    path: str
    batch: int
    renderer: "ChatRenderer"
    template: str  # that the renderer renders by
    _model: "AnswerScorer | None" = field(default=None)

    def score(self, completions: Sequence[Completion]) -> list[Score]:
        """The model's score of each; a Fault where it cannot read one."""
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
                scores.append(0.0)  # its place
        found = iter(model.score(answers) if answers else [])
        return [each if isinstance(each, Fault) else next(found)[0] for each in scores]


def open_chat(path: str) -> "ChatTokenizer":
    """Return the tokenizer of the checkpoint at `path`, with its chat template."""
    from trainrig.tokens.chat.chat_tokenizer import ChatTokenizer

    return ChatTokenizer(checkpoint.read_tokenizer_files(path))
