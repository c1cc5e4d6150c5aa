import pytest
import torch
from support.losses import cross_entropy_sum

from trainrig.errors import DataError
from trainrig.models.decoder import Decoder, initialise
from trainrig.models.token_sampling import Sampling
from trainrig.posttrain.text_generator import TextGenerator
from trainrig.tokens.batches import IGNORE
from trainrig.tokens.chat import Message
from trainrig.tokens.chat.chat_tokenizer import ChatTokenizer
from trainrig.tokens.special_tokens import END_OF_TURN
from trainrig.train.checkpoint import open_model, write_model

LIKELIEST = Sampling(temperature=0.0, maximum_tokens=24)
CHATS = {
    "is the sea grey?": "nobody sleeps, é",
    "two cats": "a mirror and a mirror",
    "free 猫 shipping": "",
    "now": " click\n\nhere ",
}


@pytest.fixture(scope="module")
def tuned(fresh, encoder, tmp_path_factory):
    """Return a run folder of a model that has memorised CHATS."""
    opened = open_model(fresh)
    model = opened.build().train()
    ids = torch.ones(len(CHATS), 40, dtype=torch.int64)
    targets = torch.full_like(ids, IGNORE)
    renderer = ChatTokenizer(encoder.files).build_renderer()
    for row, (question, answer) in enumerate(CHATS.items()):
        asked = renderer.encode_prompt([Message("user", question)])
        told = [*encoder.encode_batch([answer])[0].tolist(), encoder.find_special(END_OF_TURN)]
        whole = torch.tensor(asked + told)
        ids[row, : len(whole) - 1] = whole[:-1]
        targets[row, len(asked) - 1 : len(whole) - 1] = torch.tensor(told)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for _ in range(150):
        optimizer.zero_grad()
        loss = cross_entropy_sum(model(ids).logits, targets)
        loss.backward()
        optimizer.step()
    assert loss.item() < 0.5
    folder = str(tmp_path_factory.mktemp("tuned") / "run")
    write_model(folder, opened.config, opened.tokenizer, model.state_dict())
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("question", CHATS)
def test_a_tuned_model_says_its_answer_and_stops(question, tuned):
    spoken = TextGenerator.open(tuned).speak(question, LIKELIEST, chat=True)
    assert (spoken.text, spoken.stopped) == (CHATS[question], "end")


def test_an_answer_may_be_cut_short(tuned):
    cut = Sampling(temperature=0.0, maximum_tokens=2)
    spoken = TextGenerator.open(tuned).speak("two cats", cut, chat=True)
    assert spoken.stopped == "length"
    assert spoken.text and "a mirror and a mirror".startswith(spoken.text)


def test_a_text_is_gone_on_from_as_a_document_begins(fresh, encoder):
    """The text follows an end-of-text token, without roles."""
    opened = open_model(fresh)
    model = Decoder(opened.config.model_copy(update={"initial_std": 0.3}))
    initialise(model, seed=1)  # a model that depends on its context
    speaker = TextGenerator(model, encoder)
    spoken = speaker.speak("the sea", LIKELIEST)
    ids = [encoder.end_of_text, *encoder.encode_batch(["the sea"])[0].tolist()]
    said = []
    with torch.inference_mode():
        for _ in range(24):
            said.append(int(speaker.model(torch.tensor([ids + said])).logits[0, -1].argmax()))
    assert not {0, 4} & set(said)  # this answer does not end by chance
    assert (spoken.text, spoken.stopped) == (encoder.decode(said), "length")


def test_a_question_beyond_the_positions_is_refused(fresh):
    with pytest.raises(DataError, match="this model reads from 1 to 48"):
        TextGenerator.open(fresh).speak("sea " * 60, LIKELIEST, chat=True)


def test_there_must_be_a_checkpoint(tmp_path):
    with pytest.raises(DataError, match="no valid checkpoint there"):
        TextGenerator.open(str(tmp_path))
