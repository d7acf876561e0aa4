"""What lab 08 says of text that grows token by token: exercise 4."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from utils.checks.kit.runner import Mismatch, call, describe
from utils.hub import load_tokenizer

INCOMPLETE = "\ufffd"
MAX_DECODED_PER_TOKEN = 24  # on average, over a long answer
TEXTS = (
    "The capital of France is Paris.",
    "Party 🎉 at 8! Bring 🍕, naïve friends, and 12 € each.",
    "今日は天気がいいですね。",
    "👩‍👩‍👧‍👦 is a family. 🇫🇷 is a flag.",
    "def f(x):\n\treturn x  # twice\n\n",
)


class ToyTokenizer:
    """A vocabulary of a few byte strings. As in some real ones, a text loses its first space."""

    def __init__(self, vocabulary: dict[int, bytes], drops_first_space: bool) -> None:
        self.vocabulary, self.drops_first_space = vocabulary, drops_first_space

    def decode(self, token_ids: Sequence[int]) -> str:
        text = b"".join(self.vocabulary[t] for t in token_ids).decode("utf-8", errors="replace")
        return text.removeprefix(" ") if self.drops_first_space else text


PARTY = "🎉".encode()
VOCABULARY = {
    1: b"The", 2: b" sea", 3: b" is", 4: b" blue", 5: PARTY[:1], 6: PARTY[1:3], 7: PARTY[3:],
    8: b" " + PARTY[:2], 9: PARTY[2:] + b"!", 10: "ï".encode()[:1], 11: "ï".encode()[1:],
    12: b"na", 13: b"ve", 14: b"",
}  # fmt: skip
PLAIN, DROPPING = ToyTokenizer(VOCABULARY, False), ToyTokenizer(VOCABULARY, True)


class Story(NamedTuple):
    """A prompt, and the tokens of its answer."""

    decode: Callable[[Sequence[int]], str]
    prompt: list[int]
    answer: list[int]
    words: str


STORIES = (
    Story(PLAIN.decode, [1], [2, 3, 4], "one word per token"),
    Story(PLAIN.decode, [1], [14, 2, 14], "some tokens have no text"),
    Story(PLAIN.decode, [1], [12, 10, 11, 13], "`ï` is two bytes, in two tokens"),
    Story(PLAIN.decode, [1], [3, 5, 6, 7, 4], "an emoji is four bytes, in three tokens"),
    Story(PLAIN.decode, [1], [8, 9, 4], "tokens that hold a half of this and a half of that"),
    Story(PLAIN.decode, [1], [5, 6, 7, 5, 6, 7], "two emoji"),
    Story(DROPPING.decode, [1], [2, 3, 4], "a tokenizer that drops the first space of a text"),
    Story(DROPPING.decode, [1], [14, 2, 3], "the same; the first token has no text"),
    Story(DROPPING.decode, [1, 2], [3, 5, 6, 7, 4, 2], "the same, with an emoji"),
    Story(PLAIN.decode, [1], [5, 2, 3], "a byte that never becomes a character"),
)


def real_stories() -> list[Story]:
    """Texts in the real model's tokens."""
    tokenizer = load_tokenizer()

    def decode(token_ids: Sequence[int]) -> str:
        return str(tokenizer.decode(list(token_ids), skip_special_tokens=True,
                                    clean_up_tokenization_spaces=False))  # fmt: skip

    prompt = tokenizer.encode("The prompt:", add_special_tokens=False)
    dice = random.Random(4)
    stories = [
        Story(decode, prompt, tokenizer.encode(text, add_special_tokens=False), f"{text!r}")
        for text in TEXTS
    ]
    for number in range(12):
        text = "".join(dice.choice("ab é€🎉今\n.") for _ in range(20))
        stories.append(
            Story(decode, prompt, tokenizer.encode(text, add_special_tokens=False),
                  f"random text {number}: {text!r}")
        )  # fmt: skip
    return stories


def true_texts(story: Story) -> list[str]:
    """Brute force: the answer's text after each token, everything decoded anew."""
    before = story.decode(story.prompt)
    texts = [
        story.decode([*story.prompt, *story.answer[:end]])[len(before) :]
        for end in range(len(story.answer) + 1)
    ]
    return texts


def _told(story: Story, end: int) -> str:
    tokens = ", ".join(_token(story, token) for token in story.answer[:end])
    return f"{story.words}; the prompt says {story.decode(story.prompt)!r}; tokens so far: {tokens}"


def _token(story: Story, token: int) -> str:
    """A token as the bytes in it where it has no text of its own."""
    text = story.decode([token])
    if story.decode in (PLAIN.decode, DROPPING.decode):
        data = VOCABULARY[token]
        return repr(data.decode()) if INCOMPLETE not in text else f"bytes {data.hex(' ')}"
    return repr(text) if INCOMPLETE not in text else f"part of a character (token {token})"


def judge_detokenizer(detokenizer_class: Callable[..., Any]) -> str:
    """Check `Detokenizer(decode, prompt_token_ids).append(token_id)`."""
    for story in STORIES:
        _judge(detokenizer_class, story)
    real = real_stories()
    for story in real:
        _judge(detokenizer_class, story)
    _judge_cost(detokenizer_class)
    return (
        f"{len(STORIES) + len(real)} texts, among them emoji, Japanese and a tokenizer that drops "
        "the first space. After each token all whole characters were there, and never a half one. "
        "A long answer costs no more per token than a short one."
    )


def _judge(detokenizer_class: Callable[..., Any], story: Story) -> None:
    truth = true_texts(story)
    shown = ""
    prompt = list(story.prompt)
    detokenizer = call(detokenizer_class, story.decode, prompt, given=_told(story, 0))
    for end, token in enumerate(story.answer, start=1):
        given = _told(story, end)
        gained = call(detokenizer.append, token, given=given)
        if not isinstance(gained, str):
            raise Mismatch(
                f"`append` returned {describe(gained)}; expected a string, perhaps an empty one.",
                input=given, look="`return` what the text has gained; `\"\"` while you wait.",
            )  # fmt: skip
        shown += gained
        if prompt != story.prompt:
            raise Mismatch(
                "Your class changes the list of the prompt's tokens. The engine still needs it.",
                input=given, look="Make a list of your own: `list(prompt_token_ids)`.",
            )  # fmt: skip
        _compare(story, truth[: end + 1], shown, given)


def _compare(story: Story, truth: list[str], shown: str, given: str) -> None:
    """What is shown must be all whole characters so far, and never the half of one."""
    now = truth[-1]
    whole = now.rstrip(INCOMPLETE)
    waits = now.endswith(INCOMPLETE)
    settled = max((t for t in truth if not t.endswith(INCOMPLETE)), key=len)
    if shown == now and not waits:
        return
    if waits and len(settled) <= len(shown) <= len(whole) and whole.startswith(shown):
        return  # whether " " may be shown while " 🎉" is half there is up to the learner
    details: dict[str, Any] = dict(
        input=given, expected=repr(settled if waits else now), got=repr(shown),
    )  # fmt: skip
    prompt_text = story.decode(story.prompt)
    if shown.startswith(prompt_text) and not now.startswith(prompt_text):
        raise Mismatch(
            "The prompt's text is shown again, as a part of the answer.", **details,
            look="Remember, from the start, which text is known: that of the prompt's tokens.",
        )  # fmt: skip
    if shown.count(INCOMPLETE) > now.count(INCOMPLETE) or (waits and INCOMPLETE in shown):
        raise Mismatch(
            "Half a character is shown: the user sees a replacement mark that nothing takes back.",
            **details,
            look="While the decoded text ends in `\\ufffd`, return an empty string and wait.",
        )  # fmt: skip
    if shown.replace(" ", "") == now.replace(" ", "") and not waits:
        raise Mismatch(
            "Spaces get lost. A token decoded on its own stands at the beginning of a text, and "
            "this tokenizer drops the space there.",
            **details,
            look="Decode the new token together with some before it, and take what is new. A token "
            "without text is no context: until text was gained, keep the tokens before it.",
        )  # fmt: skip
    if len(shown) > len(now):
        raise Mismatch(
            "Text is shown twice.", **details,
            look="Return only what the text has *gained*: `decoded[len(known):]`.",
        )  # fmt: skip
    if now.startswith(shown):
        raise Mismatch(
            "Text is missing, though all its characters are complete.", **details,
            look="Wait only while the decoded text ends in `\\ufffd`. Then show all that is new, "
            "the tokens waited for included.",
        )  # fmt: skip
    raise Mismatch("This is not the text of the tokens.", **details,
                   look="Compare with decoding everything at once.")  # fmt: skip


def _judge_cost(detokenizer_class: Callable[..., Any]) -> None:
    decoded = 0

    def counting(token_ids: Sequence[int]) -> str:
        nonlocal decoded
        decoded += len(token_ids)
        return PLAIN.decode(token_ids)

    # A long prompt may be read once, but not with each token.
    for num_prompt, num_answer in ((1, 400), (2000, 400)):
        given = f"a prompt of {num_prompt} tokens, an answer of {num_answer}"
        decoded = 0
        detokenizer = call(detokenizer_class, counting, [1] * num_prompt, given=given)
        for _ in range(num_answer):
            call(detokenizer.append, 2, given=given)
        allowed = MAX_DECODED_PER_TOKEN * num_answer + 2 * num_prompt
        if decoded > allowed:
            raise Mismatch(
                "The text is right, but each token costs more than the one before: you decode "
                "everything again and again.",
                input=given, expected=f"at most {allowed:,} tokens decoded in all",
                got=f"{decoded:,}",
                look="Once text is shown, its tokens are only needed as context: keep the last few "
                "of them. Of the prompt, six are enough.",
            )  # fmt: skip
