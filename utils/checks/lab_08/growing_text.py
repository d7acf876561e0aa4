"""What lab 08 says of text that grows token by token: exercise 4."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from utils.checks.kit.contracts import Choices, Clause, Contract, InLockstep, Raised, Stage
from utils.checks.lab_08.texts import INCOMPLETE, Text, long_text, real_text, toy_text
from utils.engine.detokenizer import IncrementalDetokenizer

MAX_DECODED_PER_TOKEN = 24  # on average, over a long answer


@dataclass(frozen=True)
class Story:
    """Texts whose detokenizers take turns. `long`: so many tokens that cost would show."""

    texts: tuple[Text, ...]
    long: bool = False

    def __str__(self) -> str:
        return "; and ".join(map(str, self.texts))


def draw(c: Choices) -> Story:
    """One text or two: pieces of characters, tokens without text, bytes that are no character."""
    if c.rarely(25):
        kind = c.pick(("words", "emoji", "special"))
        return Story((long_text(kind, *c.pick(((1, 400), (2000, 400), (2000, 20)))),), True)
    drops = c.pick((False, True))
    real = c.rarely(8)
    count = 2 if c.rarely(4) else 1
    return Story(tuple(real_text(c) if real else toy_text(c, drops) for _ in range(count)))


def play(stage: Stage, detokenizer_class: Callable[..., Any], story: Story) -> None:
    """Token by token, in turns; after each, all that is shown is compared with the truth."""
    decoded = [0] * len(story.texts)

    def counting(which: int) -> Callable[[Sequence[int]], str]:
        def decode(token_ids: Sequence[int]) -> str:
            token_ids = list(token_ids)
            decoded[which] += len(token_ids)
            return story.texts[which].decode(token_ids)

        return decode

    made, prompts = [], [list(text.prompt) for text in story.texts]
    for which in range(len(story.texts)):
        made.append(stage.do(detokenizer_class, counting(which), prompts[which]))
        if isinstance(made[-1], Raised):
            stage.blame("raises", "a detokenizer", made[-1])
    shown, truths = [""] * len(made), [[""]] * len(made)
    if not story.long:
        truths = [text.true_texts() for text in story.texts]
    for place in range(max(len(text.answer) for text in story.texts)):
        for which, text in enumerate(story.texts):
            if place >= len(text.answer):
                continue
            gained = stage.call(made[which], "append", text.answer[place])
            if isinstance(gained, Raised):
                stage.blame("raises", "a text", gained)
            if not isinstance(gained, str):
                stage.blame("form", "a string", gained)
            if prompts[which] != list(text.prompt):
                stage.blame("changes", "the prompt as before", "another prompt")
            shown[which] += gained
            if not story.long:
                _compare(stage, text, truths[which][: place + 2], shown[which])
    for which, text in enumerate(story.texts if story.long else ()):
        stage.now(f"an answer of {len(text.answer)} tokens")
        if shown[which] != text.decode([*text.prompt, *text.answer])[3 * len(text.prompt) :]:
            stage.blame("other", "its text", "another text")
        allowed = MAX_DECODED_PER_TOKEN * len(text.answer)
        if decoded[which] > allowed:
            clause = "prompt's cost" if decoded[which] < 3 * len(text.prompt) else "cost"
            stage.blame(clause, f"at most {allowed:,} tokens decoded in all", f"{decoded[which]:,}")


def _compare(stage: Stage, text: Text, truth: list[str], shown: str) -> None:
    """What is shown must be all whole characters so far, and never the half of one."""
    now = truth[-1]
    whole, waits = now.rstrip(INCOMPLETE), now.endswith(INCOMPLETE)
    settled = max((t for t in truth if not t.endswith(INCOMPLETE)), key=len)
    if shown == now and not waits:
        return
    if waits and len(settled) <= len(shown) <= len(whole) and whole.startswith(shown):
        return  # whether " " may be shown while " 🎉" is half there is up to the learner
    prompt = text.decode(text.prompt)
    clause = "other"
    if prompt and shown.startswith(prompt) and not now.startswith(prompt):
        clause = "prompt"
    elif shown.count(INCOMPLETE) > now.count(INCOMPLETE) or (waits and INCOMPLETE in shown):
        clause = "half"
    elif shown.replace(" ", "") == now.replace(" ", "") and not waits:
        clause = "spaces"
    elif len(shown) > len(now) or (waits and len(shown) > len(whole)):
        clause = "twice"
    elif _is_part(shown, now):
        clause = "missing"
    inside = text.rows and text.decode(text.prompt[-6:]).startswith(INCOMPLETE)
    if inside and clause in ("half", "missing", "other"):
        clause = "row"
    tokens = ", ".join(map(text.token, text.answer[: len(truth) - 1]))
    stage.now(f"the answer's tokens so far: {tokens}")
    stage.blame(clause, repr(settled if waits else now), repr(shown))


def _is_part(shown: str, now: str) -> bool:
    """Whether characters are missing, and nothing else is wrong."""
    rest = iter(now)
    return all(character in rest for character in shown)


class EnginesDetokenizer(IncrementalDetokenizer):
    """The engine's, on any `decode`."""

    def __init__(self, decode: Callable[[list[int]], str], prompt_token_ids: list[int]) -> None:
        self._decode_with = decode
        super().__init__(None, prompt_token_ids)

    def _decode(self, token_ids: list[int]) -> str:
        return self._decode_with(token_ids)


DETOKENIZER = Contract(
    inputs=draw,
    judge=InLockstep(play, EnginesDetokenizer),
    passed="Right for characters in pieces, tokens without text, emoji, Japanese, and tokenizers "
    "that drop the first space, or write rare characters as single bytes. After each token "
    "all whole characters were there, and never "
    "a half one. A long answer costs no more per token than a short one.",
    clauses={
        "changes": Clause(
            "Your class changes the list of the prompt's tokens. The engine still needs it.",
            "Make a list of your own: `list(prompt_token_ids)`.",
        ),
        "form": Clause(
            "`append` returned {got}; expected a string, perhaps an empty one.",
            '`return` what the text has gained; `""` while you wait.',
        ),
        "prompt": Clause(
            "The prompt's text is shown again, as a part of the answer.",
            "Remember, from the start, which text is known: that of the prompt's tokens.",
        ),
        "row": Clause(
            "Your tokens of the prompt begin inside a character. Where a tokenizer "
            "writes rare characters as single bytes, its decoder then makes replacement "
            "marks of the whole row, also of the answer's first characters.",
            "While the text of the prompt's last tokens begins with `\\ufffd`, take more of them.",
        ),
        "half": Clause(
            "Half a character is shown: the user sees a replacement mark that nothing takes back.",
            'While the decoded text ends in `\\ufffd`, return `""` and wait.',
        ),
        "spaces": Clause(
            "Spaces get lost. A token decoded on its own stands at the beginning of a "
            "text, and some tokenizers drop the first space there.",
            "Decode it together with a few tokens before it. Tokens without text are no context.",
        ),
        "twice": Clause(
            "Text is shown twice.",
            "Return only what the text has *gained*: `decoded[len(known):]`.",
        ),
        "missing": Clause(
            "Text is missing, though all its characters are complete.",
            "Wait only while the decoded text ends in `\\ufffd`. Then show all that "
            "is new, the tokens waited for included.",
        ),
        "other": Clause(
            "This is not the text of the tokens.", "Compare with decoding everything at once."
        ),
        "cost": Clause(
            "The text is right, but each token costs more than the one before: you "
            "decode everything again and again.",
            "Once text is shown, its tokens are only needed as context: keep the last "
            "few of them. Of the prompt, six are enough, or a few more.",
        ),
        "prompt's cost": Clause(
            "The text is right, but the whole prompt is decoded, however long it is.",
            "Of the prompt, the last six tokens are enough, or a few "
            "more where they begin inside a character.",
        ),
    },
    examples=250,
)
