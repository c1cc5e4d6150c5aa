"""Special tokens: those that no text makes, only code that means to."""

END_OF_TEXT = "<|end_of_text|>"
PAD = "<|pad|>"
USER = "<|user|>"
ASSISTANT = "<|assistant|>"
END_OF_TURN = "<|end_of_turn|>"
SPECIAL_TOKENS = (END_OF_TEXT, PAD, USER, ASSISTANT, END_OF_TURN)  # their ids are 0, 1, 2, 3, 4
