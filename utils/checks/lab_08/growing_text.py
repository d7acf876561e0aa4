"""Text that grows token by token: what is drawn for exercise 4 of lab 08, and what is right."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from utils.checks.kit.contracts import Choices, Raised, Stage
from utils.checks.kit.contracts.guards import as_at_first
from utils.checks.kit.contracts.plays import Over
from utils.checks.lab_08.texts import INCOMPLETE, Text, long_text, real_text, toy_text

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
        kind = c.pick(("words", "emoji", "special", "inside"))
        return Story((long_text(kind, *c.pick(((1, 400), (2000, 400), (2000, 20)))),), True)
    drops = c.pick((False, True))
    real = c.rarely(8)
    count = 2 if c.rarely(4) else 1
    return Story(tuple(real_text(c) if real else toy_text(c, drops) for _ in range(count)))


def play(stage: Stage, detokenizer_class: Callable[..., Any], story: Story) -> None:
    """Token by token, in turns. What is wrong only in company is told as that."""
    try:
        _play(stage, detokenizer_class, story)
    except Over:
        alone = [Story((text,)) for text in story.texts] if len(story.texts) > 1 else []
        if alone and not any(_is_wrong(detokenizer_class, one) for one in alone):
            assert stage.fault is not None
            stage.fault = replace(stage.fault, clause="company")
        raise


def _is_wrong(detokenizer_class: Callable[..., Any], story: Story) -> bool:
    as_at_first(detokenizer_class)
    stage = Stage()
    with contextlib.suppress(Over):
        _play(stage, detokenizer_class, story)
    return stage.fault is not None


def _play(stage: Stage, detokenizer_class: Callable[..., Any], story: Story) -> None:
    """After each token, all that is shown is compared with the truth."""
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
        if (
            shown[which]
            != text.decode([*text.prompt, *text.answer])[len(text.decode(text.prompt)) :]
        ):
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
