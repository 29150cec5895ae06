"""Detokenizer: whole characters, exact text, and nothing of a stop string, however tokens are cut."""

import random

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from engine.text import Detokenizer

HARD = [
    "Hello, world!",
    "  two  spaces,\ttab,\n\n  lines ",
    "naïve café, Ünïcödé, ß",
    "你好，世界。日本語のテキスト。한국어",
    "😀👩‍👩‍👧‍👦🇩🇪👍🏽 é́ ﷽ 𝔘𝔫𝔦",
    "a replacement \ufffd in the text",
    "x" * 50,
]


def byte_level() -> PreTrainedTokenizerFast:
    """Every byte is a token, plus a few words: characters are cut wherever they can be."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = ["Ġworld", "Ġtwo", "He", "ll", "<|end|>"]
    vocab = {token: id for id, token in enumerate([*letters, *words])}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[("H", "e"), ("l", "l")]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken("<|end|>", special=True)])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|end|>")


def sentencepiece() -> PreTrainedTokenizerFast:
    """Words that begin with a space mark, single bytes for the rest, leading space dropped: as Llama 2."""
    pieces = ["<unk>", "<s>", "</s>", *[f"<0x{byte:02X}>" for byte in range(256)]]
    pieces += ["▁", "▁Hello", "▁world", "lo", "▁▁", "!", "▁Paris", "a", "▁a", "b"]
    vocab = {piece: id for id, piece in enumerate(pieces)}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[], unk_token="<unk>", byte_fallback=True))
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.add_special_tokens([AddedToken(name, special=True) for name in ("<unk>", "<s>", "</s>")])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token="<unk>", bos_token="<s>", eos_token="</s>"
    )


BYTES = byte_level()
PIECES = sentencepiece()


def whole(tokenizer: PreTrainedTokenizerFast, ids: list[int]) -> str:
    return tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)


def streamed(detokenizer: Detokenizer, ids: list[int], size: int = 1) -> tuple[list[str], str]:
    pieces = [detokenizer.push(ids[at : at + size]).text for at in range(0, len(ids), size)]
    return pieces, detokenizer.flush()


def byte_ids(text: str) -> list[int]:
    return BYTES(text)["input_ids"]


def piece_ids(*pieces: str) -> list[int]:
    return [PIECES.convert_tokens_to_ids(piece) for piece in pieces]


@pytest.mark.parametrize("text", HARD)
@pytest.mark.parametrize("size", [1, 2, 3, 100])
def test_pieces_add_up_to_the_text_and_show_no_half_character(text: str, size: int):
    pieces, rest = streamed(Detokenizer(BYTES), byte_ids(text), size)
    assert "".join(pieces) + rest == text
    assert "".join(pieces).count("\ufffd") == text.count("\ufffd")


@pytest.mark.parametrize("character", ["é", "你", "😀"])
def test_a_character_is_held_until_its_last_byte_and_shown_with_it(character: str):
    ids = byte_ids(character)
    assert len(ids) == len(character.encode())
    detokenizer = Detokenizer(BYTES)
    assert [detokenizer.push([id]).text for id in ids] == [""] * (len(ids) - 1) + [character]
    assert detokenizer.flush() == ""


def test_text_before_half_a_character_is_not_held_with_it():
    detokenizer = Detokenizer(BYTES)
    piece = detokenizer.push(byte_ids("ab") + byte_ids("😀")[:2])
    assert piece.text == "ab"


def test_half_a_character_at_the_end_is_flushed_as_the_tokenizer_decodes_it():
    ids = byte_ids("ab😀")[:-1]
    pieces, rest = streamed(Detokenizer(BYTES), ids)
    assert "".join(pieces) == "ab"
    assert rest == "\ufffd"
    assert "".join(pieces) + rest == whole(BYTES, ids)


@pytest.mark.parametrize("tokenizer", [BYTES, PIECES], ids=["byte level", "sentencepiece"])
def test_random_ids_give_the_tokenizers_own_text(tokenizer: PreTrainedTokenizerFast):
    rng = random.Random(5)
    byte_tokens = set(range(3, 259)) if tokenizer is PIECES else set()
    for _ in range(300):
        ids = [rng.randrange(len(tokenizer)) for _ in range(rng.randrange(1, 60))]
        # A run of byte tokens that is no text as a whole decodes to nothing but U+FFFD, also where
        # its beginning was shown already; that much no stream can know.
        ids = [id for id in ids if id not in byte_tokens]
        pieces, rest = streamed(Detokenizer(tokenizer), ids)
        assert "".join(pieces) + rest == whole(tokenizer, ids)


def test_bytes_of_a_sentencepiece_character_are_held_until_whole():
    fire = [f"<0x{byte:02X}>" for byte in "🔥".encode()]
    ids = piece_ids("▁Hello", *fire, "▁world", *fire, *fire, "!")
    pieces, rest = streamed(Detokenizer(PIECES), ids)
    assert "".join(pieces) + rest == "Hello🔥 world🔥🔥!" == whole(PIECES, ids)
    assert not any("\ufffd" in piece for piece in pieces)


def test_spaces_between_words_are_kept_and_the_first_one_is_the_tokenizers_choice():
    ids = piece_ids("▁Hello", "▁world", "▁", "▁Paris", "▁▁", "a") * 8
    pieces, rest = streamed(Detokenizer(PIECES), ids)
    assert "".join(pieces) + rest == whole(PIECES, ids)
    assert pieces[0] == "Hello"
    assert pieces[1] == " world"


def test_special_tokens_are_never_shown_and_do_not_eat_the_space_after_them():
    end = BYTES.eos_token_id
    ids = [end, *byte_ids("a b"), end, *byte_ids(" c"), end]
    pieces, rest = streamed(Detokenizer(BYTES), ids)
    assert "".join(pieces) + rest == "a b c"
    ids = piece_ids("▁Hello", "</s>", "▁world", "<s>", *["</s>"] * 40, "▁a")
    pieces, rest = streamed(Detokenizer(PIECES), ids)
    assert "".join(pieces) + rest == "Hello world a" == whole(PIECES, ids)


def test_an_end_token_that_the_tokenizer_does_not_call_special_is_hidden_when_told():
    pieces, rest = streamed(Detokenizer(PIECES, hidden=piece_ids("!")), piece_ids("▁Hello", "!"))
    assert "".join(pieces) + rest == "Hello"


@pytest.mark.parametrize("size", [1, 2, 5])
@pytest.mark.parametrize(
    ("text", "stops", "shown"),
    [
        ("one STOP two", ("STOP",), "one "),
        ("one STO two STOP", ("STOP",), "one STO two "),
        ("aab", ("ab",), "a"),
        ("ababac", ("abac",), "ab"),
        ("say END or STOP", ("STOP", "END"), "say "),
        ("ab abc", ("abc", "b"), "a"),
        ("x\n\nUser: hi", ("\nUser:", "\n\nUser"), "x"),
        ("你好😀世界", ("😀",), "你好"),
        ("😀", ("😀",), ""),
        ("no stop here ST", ("STOP",), "no stop here ST"),
    ],
)
def test_a_stop_string_ends_the_text_and_nothing_of_it_is_shown(
    text: str, stops: tuple[str, ...], shown: str, size: int
):
    detokenizer = Detokenizer(BYTES, stops)
    ids = byte_ids(text)
    out, stopped = "", False
    for at in range(0, len(ids), size):
        piece = detokenizer.push(ids[at : at + size])
        out += piece.text
        assert shown.startswith(out), "the start of a stop string leaked"
        stopped = stopped or piece.stopped
    out += detokenizer.flush()
    assert out == shown
    assert stopped == (text != shown)


def test_only_what_can_still_become_a_stop_string_is_held_back():
    detokenizer = Detokenizer(BYTES, ("STOP",))
    assert detokenizer.push(byte_ids("go ST")).text == "go "
    assert detokenizer.push(byte_ids("A")).text == "STA"
    assert detokenizer.push(byte_ids("SS")).text == "S"
    assert detokenizer.push(byte_ids("x")).text == "Sx"


def test_after_a_stop_nothing_more_comes():
    detokenizer = Detokenizer(BYTES, ("b",))
    assert detokenizer.push(byte_ids("abc")) == ("a", True)
    assert detokenizer.push(byte_ids("def")) == ("", True)
    assert detokenizer.flush() == ""


def test_a_token_decodes_a_bounded_window():
    longest = 0

    class Counting:
        backend_tokenizer = None
        all_special_ids = ()
        added_tokens_decoder: dict = {}

        def decode(self, ids: list[int], **options) -> str:
            nonlocal longest
            longest = max(longest, len(ids))
            return BYTES.decode(ids, **options)

    for ids in (byte_ids("word " * 400), [byte_ids("é")[0]] * 1000, byte_ids("😀")[:3] * 300):
        pieces, rest = streamed(Detokenizer(Counting()), ids)
        assert "".join(pieces) + rest == whole(BYTES, ids)
    assert longest <= 24
