"""Reward from a language model that is asked to judge each completion."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Literal, Self

from pydantic import Field, field_validator

from trainrig import storage
from trainrig.config import NOT_IDENTITY
from trainrig.errors import ConfigError, DataError
from trainrig.evaluate.tasks.templates import compile_template
from trainrig.posttrain.rewards.contract import Completion, Fault, RewardPart, Score
from trainrig.posttrain.rewards.verifier import check_pattern
from trainrig.tokens.chat.chat_messages import Message
from trainrig.train import checkpoint

if TYPE_CHECKING:  # torch takes seconds to import
    from trainrig.posttrain.text_generator import TextGenerator


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
    question: str
    chat: bool = True  # ask with the judge's chat template; false: the judge continues the text
    # Regular expression that finds the verdict in the judge's answer: the first group of the last
    # match, or the whole match if the expression has no group.
    verdict: str = r"-?\d+(?:\.\d+)?"
    # Reward of each verdict, such as { yes = 1.0, no = 0.0 }; empty: the verdict is a number.
    worth: dict[str, float] = Field(default_factory=dict)
    maximum_tokens: int = Field(default=64, ge=1)  # longest answer of the judge
    # Completions that are judged in one batch. Another number may change the last digits.
    batch: int = Field(default=8, ge=1)

    @field_validator("question")
    @classmethod
    def _is_a_template(cls, given: str) -> str:
        try:
            compile_template(given, "question")
        except ConfigError as error:
            raise ValueError(str(error)) from None
        return given

    @field_validator("verdict")
    @classmethod
    def _compiles(cls, given: str) -> str:
        return check_pattern(given)

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
