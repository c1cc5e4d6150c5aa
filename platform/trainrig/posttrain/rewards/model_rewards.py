"""Rewards from models: the score of a reward model, or the verdict of a language model as judge."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Literal, Self

from pydantic import Field

from trainrig import storage
from trainrig.config import NOT_IDENTITY
from trainrig.errors import ConfigError, DataError
from trainrig.evaluate.tasks.task_templates import Template, compile_template
from trainrig.posttrain.rewards.reward_contract import Completion, Fault, RewardPart, Score
from trainrig.posttrain.rewards.rule_rewards import Pattern
from trainrig.tokens.chat.chat_messages import BadRow, Conversation, Message, adapt_roles
from trainrig.train import checkpoint

if TYPE_CHECKING:
    from trainrig.posttrain.row_scorers import AnswerScorer
    from trainrig.posttrain.text_generator import TextGenerator
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
        from trainrig.posttrain.row_scorers import AnswerScorer

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


class JudgeModel(RewardPart):
    """Reward that is the verdict of a language model on a completion, read as a number.

    This is the grading of single answers in Zheng et al. 2023 (arXiv:2306.05685, section 3.1).
    """

    kind: Literal["JudgeModel"] = "JudgeModel"
    name: str = "judge"  # name of this reward in metrics
    # Judge model: a run folder, or a checkpoint in it.
    checkpoint: Annotated[str, NOT_IDENTITY]
    # Template of the question to the judge. It may use the row's columns, `prompt` and
    # `completion`.
    question: Template
    chat: bool = True  # ask with the judge's chat template; false: the judge continues the text
    # Regular expression that finds the verdict in the judge's answer: the first group of the last
    # match, or the whole match if the expression has no group.
    verdict: Pattern = r"-?\d+(?:\.\d+)?"
    # Reward of each verdict, such as { yes = 1.0, no = 0.0 }; empty: the verdict is a number.
    worth: dict[str, float] = Field(default_factory=dict)
    maximum_tokens: int = Field(default=64, ge=1)  # longest answer of the judge
    # Completions that are judged in one batch. Another number may change the last digits.
    batch: int = Field(default=8, ge=1)

    def resolve_paths(self) -> Self:
        """Return a copy whose `checkpoint` is the absolute path of the newest checkpoint now."""
        path = checkpoint.resolve(storage.make_absolute(self.checkpoint))
        return self.model_copy(update={"checkpoint": path})

    def hash_inputs(self) -> Mapping[str, str]:
        """Return the content key of the judge's checkpoint."""
        return {"checkpoint": checkpoint.compute_content_key(checkpoint.resolve(self.checkpoint))}

    def open(self) -> "JudgeScorer":
        """Return the scorer that asks the judge.

        Raises DataError if there is no checkpoint, ConfigError if it is no language model.
        """
        path = checkpoint.resolve(self.checkpoint)
        if (found := checkpoint.describe(path)[0]).head != "tokens":
            raise ConfigError(
                f"rewards: '{self.name}': {path} is {found.description}, which generates no "
                'text; name a language model, or set kind = "RewardModel"'
            )
        return JudgeScorer(self)

    def read(self, said: str) -> Score:
        """Return the reward of the verdict in the judge's answer `said`, or a Fault without one."""
        found = [match.group(match.re.groups and 1) for match in re.finditer(self.verdict, said)]
        if not found or found[-1] is None:
            return Fault("no_verdict", f"no verdict in {said!r:.60}")
        if self.worth:
            if found[-1] in self.worth:
                return self.worth[found[-1]]
            return Fault("no_verdict", f"'{found[-1]:.40}' is none of {', '.join(self.worth)}")
        try:
            return float(found[-1])
        except ValueError:
            return Fault("no_verdict", f"'{found[-1]:.40}' is not a number")


@dataclass
class JudgeScorer:
    """Scorer that asks a judge model, which is loaded at the first call of `score`."""

    settings: JudgeModel
    _judge: "TextGenerator | None" = field(default=None)

    @property
    def name(self) -> str:
        """Name of the reward in metrics."""
        return self.settings.name

    def score(self, completions: Sequence[Completion]) -> list[Score]:
        """Return the judge's score of each completion.

        The score is a Fault if the question cannot be built or is too long for the judge, or if
        the answer has no valid verdict.
        """
        size = self.settings.batch
        scores = list[Score]()
        for begin in range(0, len(completions), size):
            scores += self._score(completions[begin : begin + size])
        return scores

    def _score(self, completions: Sequence[Completion]) -> list[Score]:
        from trainrig.models.token_sampling import Sampling
        from trainrig.posttrain.text_generator import TextGenerator, TextRequest

        judge = self._judge = self._judge or TextGenerator.open(self.settings.checkpoint)
        sampling = Sampling(temperature=0.0, maximum_tokens=self.settings.maximum_tokens)
        scores: list[Score | None] = []
        requests = []
        make = compile_template(self.settings.question, f"reward '{self.name}': question")
        for completion in completions:
            about = {**completion.row, "prompt": completion.prompt, "completion": completion.text}
            try:
                text = make(about, "a row")
                prompt = (Message("user", text),) if self.settings.chat else text
                length = len(judge.encode_prompt(prompt))
            except DataError as error:
                scores.append(Fault("no_target", str(error)))
                continue
            room = judge.model.config.positions
            if 1 <= length < room:
                requests.append(TextRequest(prompt, sampling))
                scores.append(None)
            else:
                detail = (
                    f"the question has {length} tokens, more than the {room} that the judge "
                    "can read"
                )
                scores.append(Fault("unreadable", detail))
        said = iter(judge.speak_all(requests))
        return [self.settings.read(next(said).text) if s is None else s for s in scores]
