"""A checkpoint that continues texts and answers questions."""

from dataclasses import dataclass

from trainrig.models.decoder import Decoder
from trainrig.models.generate import Sampling, generate
from trainrig.posttrain.chat import Message, prompt_ids
from trainrig.tokens.encoding.encode import Encoder
from trainrig.tokens.special import END_OF_TURN
from trainrig.train import checkpoint


@dataclass(frozen=True)
class Spoken:
    """What a model said, and why it stopped: "end", "length" or "positions"."""

    text: str
    stopped: str


@dataclass(frozen=True)
class TextGenerator:
    """A model with its tokenizer."""

    model: Decoder
    encoder: Encoder
    tuned: bool | None = None  # whether conversations taught it; None: not known

    @classmethod
    def open(cls, path: str) -> "TextGenerator":
        """The newest checkpoint at `path`. Raises DataError if there is none."""
        opened = checkpoint.open_model(path)
        return cls(opened.build(), Encoder(opened.tokenizer, opened.path), opened.tuned)

    def speak(self, prompt: str, sampling: Sampling, chat: bool = False) -> Spoken:
        """Go on from `prompt`; with `chat`, answer it as the assistant."""
        encoder = self.encoder
        if chat:
            ids = prompt_ids([Message("user", prompt)], encoder)
        else:
            ids = [encoder.end_of_text, *(int(i) for i in encoder.encode_batch([prompt])[0])]
        stop = {encoder.end_of_text, encoder.special(END_OF_TURN)}
        made = generate(self.model, ids, sampling, stop, encoder.vocabulary_size)
        return Spoken(encoder.decode(made.ids), made.stopped)
