"""Text grows token by token to what decoding everything at once gives.

With two tokenizers. The bundled model's is *byte-level*: its tokens are strings of bytes. Llama 2's
and Mistral's have a *byte fallback*: characters outside of the vocabulary are tokens of one byte.
What is right is told from the bytes of the tokens, without any decoder.
"""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, normalizers
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from utils.engine.detokenizer import CONTEXT_TOKENS, IncrementalDetokenizer

TEXTS = """\
Party: 🎉🎉🎉 yes|Faces: 😀😁😂🤣 ok|x 𝄞𝄞𝄞 y|👩‍👩‍👧‍👦 is a family|Hello 🌶 and the end|語語 and
今日は天気がいい|नमस्ते दुनिया, hello|สวัสดีชาวโลก|한국어 문장은 길다|Привет, как дела?|مرحبا بالعالم
Ελληνικά: η Αθήνα|שלום עולם|naïve café résumé|Übermäßig große Straßen|x² + y² = z² √2
“Curly” — and dashes…|🇫🇷🇩🇪 flags|☀️🌧️⛈️|✈️ to 東京, then 🍣|I ♥ 数学 😀|𐍈𐍈 Gothic|𓀀𓁐 signs
1️⃣2️⃣3️⃣|👍🏽👍🏿 tones|emoji🎉in🎉words|tab\tand 語|🎉|語|é|👩🏽‍🚀|🏴‍☠️ pirates|ไทย and 日本語|ñandú 🐦
Zażółć gęślą jaźń|İstanbul ışık|ქართული ენა|አማርኛ ቋንቋ|ᚠᚢᚦ runes|€5 or £4 or ¥3|½ cup ⅓ full|α→β→γ
∀x∃y: x∈y|♔♕♖ chess|中文English混合|🫠🫡🫢 new|𝒜𝓑𝔠 letters|½🎉½🎉½
a\u0301b\u0301c""".replace("\n", "|").split("|")


@pytest.fixture(scope="module")
def byte_fallback() -> PreTrainedTokenizerBase:
    """ASCII letters are tokens; all other characters are written as bytes."""
    vocab = ["<unk>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁"]
    vocab += map(chr, range(33, 127))
    model = models.BPE(
        {token: i for i, token in enumerate(vocab)}, [], unk_token="<unk>", byte_fallback=True
    )
    tokenizer = Tokenizer(model)
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
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="</s>")


@pytest.fixture(params=["byte-level", "byte fallback"])
def either(request: pytest.FixtureRequest, tokenizer, byte_fallback) -> PreTrainedTokenizerBase:
    return tokenizer if request.param == "byte-level" else byte_fallback


def whole_characters(tokenizer: PreTrainedTokenizerBase, ids: list[int]) -> str:
    """The text of tokens without a half character at its end, from their bytes."""
    tokens = tokenizer.convert_ids_to_tokens(ids)
    if tokenizer.convert_tokens_to_ids("<0x00>") not in (None, tokenizer.unk_token_id):
        raw = b"".join(
            bytes([int(token[3:5], 16)]) if token.startswith("<0x") else token.encode()
            for token in tokens
        ).replace("▁".encode(), b" ")[1:]
    else:
        raw = bytes(BYTE_OF[character] for token in tokens for character in token)
    return raw.decode("utf-8", "ignore")  # what is ignored stands at the end, in the tests' texts


def _byte_of() -> dict[str, int]:
    """GPT-2's writing of bytes as visible characters: those without one are counted from 256 on."""
    visible = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in visible]
    return {chr(byte): byte for byte in visible} | {
        chr(256 + place): byte for place, byte in enumerate(others)
    }


BYTE_OF = _byte_of()


def steps(
    tokenizer: PreTrainedTokenizerBase, ids: list[int], prompt: list[int]
) -> tuple[list[str], str]:
    detokenizer = IncrementalDetokenizer(tokenizer, prompt)
    return [detokenizer.append(token) for token in ids], detokenizer.text


@settings(
    max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
# A text that ends in a replacement character looks like one that ends in half a character.
@given(
    text=st.text(st.characters(codec="utf-8", exclude_characters="\ufffd"), min_size=1, max_size=40)
)
def test_any_text_comes_back_whole(tokenizer: PreTrainedTokenizerBase, text: str) -> None:
    ids = tokenizer(text).input_ids
    assume(tokenizer.decode(ids) == text)  # a few bytes are missing in the vocabulary
    parts, whole = steps(tokenizer, ids, tokenizer("The prompt:").input_ids)
    assert "".join(parts) == whole == text


@pytest.mark.parametrize("text", ["🎉🎉", "👩‍👩‍👧‍👦!", "今日は天気", "naïve", "a\u0301b"])
def test_no_half_characters(tokenizer: PreTrainedTokenizerBase, text: str) -> None:
    ids = tokenizer(text).input_ids
    for end in range(1, len(ids) + 1):
        _, so_far = steps(tokenizer, ids[:end], [1])
        assert text.startswith(so_far)
    assert so_far == text


def test_some_tokens_hold_half_a_character(tokenizer: PreTrainedTokenizerBase) -> None:
    """Else the test above would prove nothing."""
    assert any(tokenizer.decode([token]) == "\ufffd" for token in tokenizer("🎉").input_ids)


def test_bytes_that_never_become_a_character(tokenizer: PreTrainedTokenizerBase) -> None:
    """They show as the replacement character as soon as something readable follows."""
    half = tokenizer("🎉").input_ids[:-1]
    ids = half + tokenizer("ok").input_ids
    assert steps(tokenizer, ids, [1])[1] == tokenizer.decode(ids)


def test_special_tokens_are_skipped(tokenizer: PreTrainedTokenizerBase) -> None:
    ids = tokenizer("Hi<|im_end|> there").input_ids
    assert tokenizer.eos_token_id in ids
    assert steps(tokenizer, ids, [1])[1] == "Hi there"


@pytest.mark.parametrize("text", TEXTS)
def test_prompt_and_answer_share_a_text_wherever_it_is_cut(either, text: str) -> None:
    """Nothing is lost and nothing repeated, though a cut may go through a character."""
    ids = either(text).input_ids
    assert either.decode(ids) == text
    for cut in range(len(ids) + 1):
        known = whole_characters(either, ids[:cut])
        detokenizer, shown = IncrementalDetokenizer(either, ids[:cut]), known
        for end in range(cut, len(ids)):
            shown += detokenizer.append(ids[end])
            now = whole_characters(either, ids[: end + 1])
            assert now.startswith(shown) and text.startswith(shown)
            # A token may hold a space and half a character: the space may come with the rest.
            assert shown == now or either.decode(ids[cut : end + 1]).endswith("\ufffd")
        assert shown == text
        assert known + detokenizer.text == text


def test_a_long_row_of_emoji_before_the_answer(byte_fallback) -> None:
    """The few tokens of context would begin inside one of them."""
    for count in range(1, 12):
        prompt = byte_fallback("Party: " + "🎉" * count).input_ids
        assert len(prompt) > CONTEXT_TOKENS
        answer = byte_fallback("🎊 yes").input_ids[1:]
        for special in ([], [byte_fallback.eos_token_id]):  # as at the end of a chat's turn
            assert steps(byte_fallback, answer, prompt + special)[1] == "🎊 yes"


def test_half_a_character_that_the_answer_does_not_complete(either) -> None:
    """It is the prompt's, however many replacement characters a decoder makes of it."""
    party, ok = either("🎉🎉").input_ids, either(" ok").input_ids[-3:]
    for cut in range(len(party)):
        prompt = [*either("So ").input_ids, *party[:cut]]
        assert steps(either, ok, prompt)[1].strip() == "ok"


def test_a_prompt_that_ends_in_a_replacement_character(either) -> None:
    for text in ("a \ufffd", "\ufffd\ufffd", "🎉\ufffd"):
        assert steps(either, either("!b").input_ids[-2:], either(text).input_ids)[1] == "!b"


def test_half_a_character_spoils_no_whole_one_before_it(byte_fallback) -> None:
    """The decoder makes replacement characters of the whole row; what was shown is kept."""
    party = byte_fallback("🎉").input_ids[1:]
    ids = [*party, *party[:2], *byte_fallback("a ok").input_ids[1:]]
    assert steps(byte_fallback, ids, [1])[1] == "🎉\ufffd\ufffda ok"
