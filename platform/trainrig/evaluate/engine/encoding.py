"""Prompts and answers as token ids: where the border lies, and what is cut off if they are long."""

from collections.abc import Sequence
from dataclasses import dataclass

from trainrig.tokens.encoding.encode import Encoder


@dataclass(frozen=True)
class LikelihoodRequest:
    """How likely is `continuation` after `context`? Neither is empty."""

    context: tuple[int, ...]
    continuation: tuple[int, ...]
    truncated: bool = False  # tokens of the context were cut off, from the left


@dataclass(frozen=True)
class GenerationRequest:
    """What does the model go on with after `prompt`?"""

    prompt: tuple[int, ...]
    truncated: bool = False


@dataclass(frozen=True)
class RequestEncoder:
    """A tokenizer, and the rules by which texts become requests of a model of `positions`.

    The border is lm-evaluation-harness's: white space at the end of a context belongs to what
    follows, both are encoded as one text, and what lies behind the ids of the context alone is the
    continuation. What does not fit loses tokens from the left; the continuation stays whole as long
    as it fits by itself.
    """

    encoder: Encoder
    positions: int
    document_start: bool  # whether each context begins with the end-of-text token

    def request_continuations(
        self, context: str, following: Sequence[str]
    ) -> list[LikelihoodRequest]:
        """A request for each of `following` after `context`."""
        stripped = context.rstrip()
        moved = context[len(stripped) :]
        whole = [stripped + moved + text for text in following]
        encoded = [tuple(map(int, ids)) for ids in self.encoder.encode_batch([stripped, *whole])]
        before, *wholes = encoded
        return [self.request(self.begin_text(before), ids[len(before) :]) for ids in wholes]

    def request(self, context: Sequence[int], continuation: Sequence[int]) -> LikelihoodRequest:
        """The request, cut to what the model can read."""
        context, continuation = tuple(context), tuple(continuation)
        if not context:
            context = (self.encoder.end_of_text,)
        # The last token is only predicted, so one more than `positions` fits.
        kept = (context + continuation)[-(self.positions + 1) :]
        cut = len(context) + len(continuation) - len(kept)
        if not cut:
            return LikelihoodRequest(context, continuation)
        border = max(1, len(context) - cut)
        return LikelihoodRequest(kept[:border], kept[border:], truncated=True)

    def encode_plain_prompt(self, text: str) -> tuple[int, ...]:
        """The ids of a prompt that the model is to go on from."""
        (ids,) = self.encoder.encode_batch([text])
        return self.begin_text(tuple(map(int, ids)))

    def request_generation(self, prompt: Sequence[int], maximum_tokens: int) -> GenerationRequest:
        """The request, its prompt cut from the left so that the answer has room."""
        prompt = tuple(prompt) or (self.encoder.end_of_text,)
        room = max(1, self.positions - maximum_tokens)
        return GenerationRequest(prompt[-room:], truncated=len(prompt) > room)

    def request_windows(self, text: str) -> list[LikelihoodRequest]:
        """All tokens of `text`, each predicted once, from at most `positions` before it.

        A window begins where the one before ends: lm-evaluation-harness's rolling log-likelihood.
        """
        (ids,) = self.encoder.encode_batch([text])
        tokens = [self.encoder.end_of_text, *map(int, ids)]
        starts = range(1, len(tokens), self.positions)
        return [
            LikelihoodRequest((tokens[at - 1],), tuple(tokens[at : at + self.positions]))
            for at in starts
        ]

    def begin_text(self, ids: tuple[int, ...]) -> tuple[int, ...]:
        """`ids` as training saw texts begin, if that is asked for."""
        return (self.encoder.end_of_text, *ids) if self.document_start else ids
