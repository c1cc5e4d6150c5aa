"""A reward that a language model gives when it is asked for a verdict."""

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
from trainrig.tokens.chat.messages import Message
from trainrig.train import checkpoint

if TYPE_CHECKING:  # torch takes seconds to import
    from trainrig.posttrain.text_generator import TextGenerator


class JudgeModel(RewardPart):
    """What a language model says of a completion, read as a number (Zheng et al. 2023,
    arXiv:2306.05685, section 3.1: grading of single answers)."""

    kind: Literal["JudgeModel"] = "JudgeModel"
    name: str = "judge"  # of the part in metrics
    # The model: a run folder, or a checkpoint in it.
    checkpoint: Annotated[str, NOT_IDENTITY]
    # Template of what it is asked, over the row's columns, `prompt` and `completion`.
    question: str
    chat: bool = True  # whether it is asked by its chat template; else it goes on from the text
    # Regular expression that finds the verdict in what it says: its first group, else all that
    # matches; the last match counts.
    verdict: str = r"-?\d+(?:\.\d+)?"
    # What each verdict is worth, as { yes = 1.0, no = 0.0 }; empty: verdicts are numbers.
    worth: dict[str, float] = Field(default_factory=dict)
    maximum_tokens: int = Field(default=64, ge=1)  # that it may say
    # Completions that are judged together. Another number may give other last digits.
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
        """With the checkpoint that is the newest now."""
        path = checkpoint.resolve(storage.make_absolute(self.checkpoint))
        return self.model_copy(update={"checkpoint": path})

    def hash_inputs(self) -> Mapping[str, str]:
        """The checkpoint's contents."""
        return {"checkpoint": checkpoint.compute_content_key(checkpoint.resolve(self.checkpoint))}

    def open(self) -> "JudgeScorer":
        """What asks it. Raises DataError if there is none, ConfigError for a reward model."""
        path = checkpoint.resolve(self.checkpoint)
        if (found := checkpoint.describe(path)[0]).head != "tokens":
            raise ConfigError(
                f"rewards: '{self.name}': {path} is {found.description}, which does not "
                'speak; set kind = "RewardModel"'
            )
        return JudgeScorer(self)

    def read(self, said: str) -> Score:
        """What the verdict in `said` is worth; a Fault where there is none."""
        found = [each.group(each.re.groups and 1) for each in re.finditer(self.verdict, said)]
        if not found or found[-1] is None:
            return Fault("no_verdict", f"said {said!r:.60}")
        if self.worth:
            if found[-1] in self.worth:
                return self.worth[found[-1]]
            return Fault("no_verdict", f"'{found[-1]:.40}' is none of {', '.join(self.worth)}")
        try:
            return float(found[-1])
        except ValueError:
            return Fault("no_verdict", f"'{found[-1]:.40}' is no number")


@dataclass
class JudgeScorer:
    """Asks a judge, which is loaded when the first completion is there."""

    settings: JudgeModel
    _judge: "TextGenerator | None" = field(default=None)

    @property
    def name(self) -> str:
        """That of the part."""
        return self.settings.name

    def score(self, completions: Sequence[Completion]) -> list[Score]:
        """What each is worth; a Fault where the judge cannot be asked, or gives no verdict."""
        size, scores = self.settings.batch, list[Score]()
        for begin in range(0, len(completions), size):
            scores += self._score(completions[begin : begin + size])
        return scores

    def _score(self, completions: Sequence[Completion]) -> list[Score]:
        from trainrig.models.generation.sampling import Sampling
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
                detail = f"a question of {length} tokens, of {room} that the judge can read"
                scores.append(Fault("unreadable", detail))
        said = iter(judge.speak_all(requests))
        return [self.settings.read(next(said).text) if s is None else s for s in scores]
