import json

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers

from trainrig import storage
from trainrig.errors import DataError
from trainrig.tokens.special_tokens import END_OF_TEXT, PAD, SPECIAL_TOKENS, find_role_id
from trainrig.tokens.tokenizers.entry_bytes import BYTE_ENTRIES, list_entry_bytes
from trainrig.tokens.tokenizers.imported import Imported
from trainrig.tokens.tokenizers.tokenizer_kinds import make_word_splitter

TEXTS = [f"the cat {n} sat on the  mat, naïve 猫\n" for n in range(50)]


def make_gpt_2_like() -> tokenizers.Tokenizer:
    """Return byte-level BPE, with its one special token last."""
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = make_word_splitter("gpt2")
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(TEXTS, trainer)
    tokenizer.add_special_tokens(["<|endoftext|>"])
    return tokenizer


def make_llama_3_like() -> tokenizers.Tokenizer:
    """Return a tokenizer like GPT-2's, with a token before each text and other roles."""
    tokenizer = make_gpt_2_like()
    tokenizer.pre_tokenizer = make_word_splitter("llama3")
    tokenizer.add_special_tokens(["<|begin_of_text|>", "<|end_of_text|>", "<|eot_id|>"])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<|begin_of_text|> $A", special_tokens=[("<|begin_of_text|>", 301)]
    )
    return tokenizer


def make_gemma_like() -> tokenizers.Tokenizer:
    """Return SentencePiece's BPE: marks for spaces, byte fallback, nothing before a text."""
    names = ["<pad>", "<eos>", "<bos>", "<unk>"]
    pieces = [*map(chr, range(0x21, 0x7F)), "▁", "▁▁", "▁t", "▁th", "the"[1:], "▁the", "at"]
    entries = [*names, *BYTE_ENTRIES, *pieces]
    merges = [("▁", "▁"), ("▁", "t"), ("▁t", "h"), ("h", "e"), ("▁t", "he"), ("a", "t")]
    tokenizer = tokenizers.Tokenizer(
        models.BPE(
            {entry: number for number, entry in enumerate(entries)},
            merges,
            unk_token="<unk>",
            byte_fallback=True,
            fuse_unk=True,
        )
    )
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    tokenizer.add_special_tokens(names)
    tokenizer.add_tokens([tokenizers.AddedToken("▁▁", normalized=False)])
    return tokenizer


PUBLISHED = {"gpt2": make_gpt_2_like, "llama3": make_llama_3_like, "gemma": make_gemma_like}


def import_tokenizer(tokenizer: tokenizers.Tokenizer, folder, **settings) -> bytes:
    path = folder / "published.json"
    path.write_text(tokenizer.to_str(pretty=True))
    return Imported(path=str(path), **settings).train(iter(["not read"]))


@pytest.fixture(scope="module", params=PUBLISHED)
def pair(request, tmp_path_factory):
    """Return a published tokenizer and its imported copy."""
    theirs = PUBLISHED[request.param]()
    ours = import_tokenizer(theirs, tmp_path_factory.mktemp(request.param))
    tokenizer = tokenizers.Tokenizer.from_str(ours.decode())
    tokenizer.encode_special_tokens = True
    return theirs, tokenizer


def list_special(tokenizer: tokenizers.Tokenizer) -> dict[str, int]:
    added = tokenizer.get_added_tokens_decoder()
    return {token.content: number for number, token in added.items() if token.special}


@given(
    text=st.text(st.characters(exclude_categories=["Cs"], exclude_characters="▁"))
    | st.lists(st.sampled_from([" ", "  ", "the", "at", "t", "h", "e", "猫", "\n"])).map("".join)
)
def test_ids_of_text_equal_the_published_tokenizer(pair, text):
    theirs, ours = pair
    assert (
        ours.encode(text, add_special_tokens=False).ids
        == theirs.encode(text, add_special_tokens=False).ids
    )


@given(text=st.lists(st.sampled_from(["▁", "<|endoftext|>", "<eos>", " ", "a", "猫"])).map("".join))
def test_any_text_comes_back_and_makes_no_special_token(pair, text):
    _, ours = pair
    special = set(list_special(ours).values())
    entries = list_entry_bytes(ours, special, "")
    ids = ours.encode(text, add_special_tokens=False).ids
    assert b"".join(entries[i] for i in ids) == text.encode()
    assert not set(ids) & special


def test_entries_keep_their_ids_and_missing_roles_come_after_the_last(pair):
    theirs, ours = pair
    count = theirs.get_vocab_size()
    missing = [role for role in SPECIAL_TOKENS if find_role_id(list_special(theirs), role) is None]
    for number in range(count):
        name = theirs.id_to_token(number)
        same = ours.id_to_token(number)
        assert same == (name if number in list_special(theirs).values() else same)
        assert same in (name, name.replace("▁", " "))
    assert [ours.id_to_token(i) for i in range(count, ours.get_vocab_size())] == missing
    assert all(find_role_id(list_special(ours), role) is not None for role in SPECIAL_TOKENS)


def test_of_the_mark_for_spaces_nothing_is_left(tmp_path):
    ours = import_tokenizer(make_gemma_like(), tmp_path)
    assert "▁" not in ours.decode()
    assert tokenizers.Tokenizer.from_str(ours.decode()).encode("  the").tokens == ["  ", "t", "he"]


def test_a_published_end_of_text_is_ours(tmp_path):
    ours = tokenizers.Tokenizer.from_str(import_tokenizer(make_gpt_2_like(), tmp_path).decode())
    assert ours.token_to_id(END_OF_TEXT) is None
    assert find_role_id(list_special(ours), END_OF_TEXT) == 300
    assert ours.token_to_id(PAD) == 301


def test_importing_an_imported_tokenizer_changes_nothing(pair, tmp_path):
    _, ours = pair
    assert import_tokenizer(ours, tmp_path) == bytes(ours.to_str(), "utf-8")


def test_a_tokenizer_is_imported_from_a_bucket(s3):
    storage.write(f"{s3}/t.json", make_gpt_2_like().to_str().encode())
    assert b"<|endoftext|>" in Imported(path=f"{s3}/t.json").train([])


def test_lengths_that_the_file_asks_for_are_left_out(tmp_path):
    tokenizer = make_gpt_2_like()
    tokenizer.enable_truncation(3)
    tokenizer.enable_padding(length=8)
    ours = tokenizers.Tokenizer.from_str(import_tokenizer(tokenizer, tmp_path).decode())
    assert ours.truncation is None and ours.padding is None
    assert ours.decode(ours.encode(TEXTS[0]).ids) == TEXTS[0]


def test_a_normalizer_that_changes_text_is_refused_unless_it_may_be_left_out(tmp_path):
    tokenizer = make_gpt_2_like()
    tokenizer.normalizer = normalizers.NFC()
    with pytest.raises(
        DataError, match=r"changes text when decoding: .*drop_normalizer = true .*\(NFC\)"
    ):
        import_tokenizer(tokenizer, tmp_path)
    ours = tokenizers.Tokenizer.from_str(
        import_tokenizer(tokenizer, tmp_path, drop_normalizer=True).decode()
    )
    assert ours.normalizer is None
    assert ours.encode(TEXTS[0]).ids == tokenizer.encode(TEXTS[0]).ids


def make_llama_2_like() -> tokenizers.Tokenizer:
    tokenizer = make_gemma_like()
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    return tokenizer


def make_bert_like() -> tokenizers.Tokenizer:
    tokenizer = tokenizers.Tokenizer(
        models.WordPiece({"[UNK]": 0, "a": 1, "##b": 2}, unk_token="[UNK]")
    )
    tokenizer.decoder = decoders.WordPiece()
    return tokenizer


def make_without_a_byte() -> tokenizers.Tokenizer:
    """Return a byte-level tokenizer without an entry for the first byte of many characters."""
    description = json.loads(make_gpt_2_like().to_str())
    description["model"]["vocab"]["unused"] = description["model"]["vocab"].pop("ð")
    return tokenizers.Tokenizer.from_str(json.dumps(description))


def make_with_a_name_in_its_merges() -> tokenizers.Tokenizer:
    """Return a tokenizer whose special token is an entry that text can merge to."""
    tokenizer = make_gpt_2_like()
    tokenizer.add_special_tokens(["Ġthe"])
    return tokenizer


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (make_llama_2_like, "decoder Strip removes spaces that may be part of the text"),
        (make_bert_like, "decoder WordPiece does not give each entry fixed bytes"),
        (make_without_a_byte, "changes text when decoding"),
        (make_with_a_name_in_its_merges, "is encoded with the special token"),
    ],
)
def test_a_tokenizer_that_loses_text_is_refused_by_one_line(make, message, tmp_path):
    with pytest.raises(DataError) as refused:
        import_tokenizer(make(), tmp_path)
    assert str(refused.value).startswith(str(tmp_path / "published.json"))
    assert message in str(refused.value) and "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "no such file"),
        (b"\xff", "not JSON"),
        (b"[1]", "has no model"),
        (b"{}", "has no model"),
        (b'{"model": {"type": "Wood"}}', "not a tokenizer.json"),
    ],
)
def test_other_files_are_refused_as_tokenizers(content, message, tmp_path):
    path = tmp_path / "t.json"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(DataError) as refused:
        Imported(path=str(path)).train([])
    assert str(path) in str(refused.value) and message in str(refused.value)


@pytest.mark.parametrize(
    "model",
    [
        None,
        "BPE",
        [],
        {"type": "BPE"},
        {"type": "Unigram"},
        {"type": "Unigram", "vocab": [["a"]]},
        {"type": "BPE", "vocab": {"a": 0}, "merges": 5},
    ],
)
@pytest.mark.parametrize("whole", [{}, json.loads(make_gemma_like().to_str())])
def test_a_damaged_model_is_refused_by_one_line_that_names_the_file(model, whole, tmp_path):
    path = tmp_path / "t.json"
    path.write_text(json.dumps(whole | {"model": model}))
    with pytest.raises(DataError) as refused:
        Imported(path=str(path)).train([])
    assert str(refused.value).startswith(f"{path}: not a tokenizer.json: ")
    assert "\n" not in str(refused.value)


def test_damage_next_to_the_model_is_refused_too(tmp_path):
    path = tmp_path / "t.json"
    whole = json.loads(make_gemma_like().to_str())
    for part in ("added_tokens", "normalizer", "decoder", "pre_tokenizer"):
        for damaged in (5, "x", [5], {"type": "Split"}):
            path.write_text(json.dumps(whole | {part: damaged}))
            with pytest.raises(DataError, match=r"t\.json: not a tokenizer\.json"):
                Imported(path=str(path)).train([])


def test_brackets_without_end_are_refused(tmp_path):
    path = tmp_path / "t.json"
    path.write_text("[" * 100_000)
    with pytest.raises(DataError, match=r"t\.json: not JSON"):
        Imported(path=str(path)).train([])


def test_a_vocabulary_that_cannot_encode_every_text_is_refused(tmp_path):
    tokenizer = make_gpt_2_like()
    tokenizer.model = models.Unigram([("a", 0.0)])
    with pytest.raises(DataError, match=r"cannot encode '.*'"):
        import_tokenizer(tokenizer, tmp_path)


def test_merges_written_as_strings_are_read_as_those_written_as_pairs(tmp_path):
    whole = json.loads(make_gemma_like().to_str())
    whole["model"]["merges"] = [" ".join(merge) for merge in whole["model"]["merges"]]
    (tmp_path / "old.json").write_text(json.dumps(whole))
    old = Imported(path=str(tmp_path / "old.json")).train([])
    assert old == import_tokenizer(make_gemma_like(), tmp_path)


def test_a_folder_is_no_tokenizer(tmp_path):
    with pytest.raises(DataError, match=r"folder.*tokenizer.json"):
        Imported(path=str(tmp_path)).train([])
