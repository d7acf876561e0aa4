"""Exercise 8: a guesser of the learner's own, on texts that repeat with changes.

The model is left out: each text is written down to its end, so a guess is right if it is what
comes next in the text. A guesser is measured by what the steps give.
"""

from __future__ import annotations

import functools
import random
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from matplotlib.figure import Figure

from utils.checks.kit.contracts import Raised
from utils.checks.kit.contracts.faults import attempt
from utils.checks.kit.contracts.guards import as_at_first, held_output
from utils.checks.kit.contracts.int_lists import not_ints
from utils.checks.kit.patience import watching
from utils.checks.kit.runner import Mismatch, Passed
from utils.checks.lab_07 import answers
from utils.checks.lab_07.lookups import few
from utils.hub import load_tokenizer

Guesser = Callable[[list[int], int], Any]  # token_ids, num_speculative_tokens
NUM_SPECULATIVE_TOKENS = 4
TEXTS = 4  # of each kind
PATIENCE_S = 60  # of computing, for all texts
BETTER = 1.04  # times as many tokens per step as `propose` gives
WORDS = (
    *("amber", "basil", "candle", "delta", "ember", "fable", "garnet", "harbor", "island"),
    *("jasmine", "kettle", "lantern", "meadow", "nickel", "orchid", "pepper", "quartz"),
    *("ribbon", "saffron", "timber", "umbrella", "velvet", "willow", "zebra"),
)
FORM = {
    "Color": ("red", "green", "blue"),
    "Size": ("small", "medium", "large"),
    "Wood": ("oak", "pine", "birch"),
    "Finish": ("oil", "wax", "paint"),
    "Paid": ("yes", "no", "later"),
}
WHICH = (
    "When the last tokens stand at several places of the text, which place tells you the most? "
    "Try the last one, or what follows most often."
)
MORE = (
    "Few of your guesses are wrong, so guess more: up to `num_speculative_tokens` at a time, and "
    "whenever the last two tokens also stand earlier."
)
Pages = tuple[list[str], int]  # pages of a text, and how many of them are the prompt


def versions(dice: random.Random) -> Pages:
    """A list that is written again and again; each time two of its words are new."""
    lines = [[dice.choice(WORDS) for _ in range(5)] for _ in range(6)]
    pages = []
    for number in range(1, 9):
        text = "\n".join(" ".join(line) for line in lines)
        pages.append(f"Version {number}\n{text}\n")
        for _ in range(2):
            dice.choice(lines)[dice.randrange(5)] = dice.choice(WORDS)
    return pages, 3


def forms(dice: random.Random) -> Pages:
    """An empty form, then nine that are filled in: three answers of four are the usual ones."""
    usual = {field: dice.choice(words) for field, words in FORM.items()}
    pages = ["\n".join(f"{field}: to be filled in" for field in FORM) + "\n\n"]
    for _ in range(9):
        filled = {
            field: usual[field] if dice.random() < 0.75 else dice.choice(words)
            for field, words in FORM.items()
        }
        pages.append("\n".join(f"{field}: {word}" for field, word in filled.items()) + "\n\n")
    return pages, 2


KINDS = {"lists that change": versions, "forms": forms}


@functools.cache
def texts(kind: str) -> tuple[tuple[list[int], list[int]], ...]:
    """The token ids of each text of a kind: its prompt, and what is written after it."""
    tokenizer, found = load_tokenizer(), []
    for seed in range(TEXTS):
        pages, first = KINDS[kind](random.Random(700 + seed))
        parts = "".join(pages[:first]), "".join(pages[first:])
        prompt, rest = (tokenizer.encode(part, add_special_tokens=False) for part in parts)
        found.append((prompt, rest))
    return tuple(found)


class Played(NamedTuple):
    """What a guesser achieves: steps, tokens that they give, guesses that are rejected.

    Args:
        missed: the text before the first step that gives no accepted guess, the guesses, what came
    """

    steps: int
    tokens: int
    wasted: int
    missed: tuple[list[int], list[int], list[int]] | None

    @property
    def tokens_per_step(self) -> float:
        return self.tokens / self.steps


def play(guesser: Guesser, kind: str) -> Played:
    """Write the texts of a kind, a step at a time: accepted guesses, then one token more."""
    steps = tokens = wasted = 0
    missed = None
    for prompt, rest in texts(kind):
        text, end = list(prompt), len(prompt) + len(rest)
        whole = [*prompt, *rest]
        while len(text) < end:
            guesses = guesser(list(text), NUM_SPECULATIVE_TOKENS)
            coming = whole[len(text) : len(text) + len(guesses)]
            pairs = zip(guesses, coming, strict=False)
            right = next((n for n, pair in enumerate(pairs) if pair[0] != pair[1]), len(coming))
            if guesses and not right and missed is None:
                missed = text, guesses, coming
            steps, wasted = steps + 1, wasted + len(guesses) - right
            text = whole[: len(text) + right + 1]
        tokens += len(rest)
    return Played(steps, tokens, wasted, missed)


@functools.cache
def of_exercise_1(kind: str) -> Played:
    """What `propose` achieves with the sizes of `my_parts`."""
    return play(lambda token_ids, k: answers.propose(token_ids, 2, 4, k), kind)


class Asked:
    """A learner's guesser: each answer must have the right form, now and when asked again."""

    def __init__(self, guesser: Any) -> None:
        self._guesser, self._began = guesser, time.process_time()
        self._first: list[tuple[list[int], list[int]]] = []

    def __call__(self, token_ids: list[int], num_speculative_tokens: int) -> list[int]:
        given = list(token_ids)
        got = attempt(self._guesser, given, num_speculative_tokens)
        told = f"token_ids {few(token_ids)} ({len(token_ids)} of them), "
        told += f"num_speculative_tokens {num_speculative_tokens}"
        if isinstance(got, Raised):
            raise Mismatch(got.says, input=told, look=got.look)
        if not_ints(got):
            says = f"`guess_better` returned {str(got)[:80]}. Expected a list of ints."
            look = "If you have nothing to guess from, return an empty list."
            raise Mismatch(says, input=told, look=look)
        if given != token_ids:
            look = "`append`, `pop` and `+=` change a list. Begin with `text = list(token_ids)`."
            says = "Your function changes the list that it was given. The engine still needs it."
            raise Mismatch(says, input=told, look=look)
        if len(got) > num_speculative_tokens:
            look = "Cut your answer: `guesses[:num_speculative_tokens]`."
            says = f"You guess {len(got)} tokens, which is more than `num_speculative_tokens`."
            raise Mismatch(says, input=told, look=look)
        if time.process_time() - self._began > PATIENCE_S:
            look = "Go through the text once or twice. Don't compare every place with every other."
            raise Mismatch("Your guesses take longer than the model would.", input=told, look=look)
        if len(self._first) < 20:
            self._first.append((list(token_ids), list(got)))
        return list(got)

    def again(self) -> None:
        for token_ids, before in list(self._first):
            if (got := self(token_ids, NUM_SPECULATIVE_TOKENS)) != before:
                raise Mismatch(
                    "Asked twice about the same text, your function gives two different answers.",
                    input=f"token_ids {few(token_ids)}",
                    expected=f"`{before}`, as at first",
                    got=f"`{got}`",
                    look="Guess from `token_ids` alone: no random numbers, and nothing that is "
                    "kept from call to call.",
                )


def judge(guesser: Guesser) -> Passed:
    """More tokens per step than exercise 1's, and no more rejected guesses, on all texts."""
    as_at_first(guesser)
    with held_output(), watching():
        asked = Asked(guesser)
        for short in ([], [5], [5, 5], [7, 8, 9, 7]):
            for k in (0, 1, NUM_SPECULATIVE_TOKENS):
                asked(short, k)
        asked = Asked(guesser)
        mine = {kind: play(asked, kind) for kind in KINDS}
        asked.again()
    theirs = {kind: of_exercise_1(kind) for kind in KINDS}
    ours, before = (_in_all(list(all_of.values())) for all_of in (mine, theirs))
    need = BETTER * before.tokens_per_step
    title = f"Your guesses: {ours.tokens_per_step:.2f} tokens per step, {ours.wasted} rejected"
    figure, alt = draw(theirs, mine, title), "Tokens per step for each kind of text."
    told = f"{ours.tokens_per_step:.2f} tokens per step, {ours.wasted} guesses rejected"
    want = f"at least {need:.2f} tokens per step, at most {before.wasted} guesses rejected"
    if ours.tokens_per_step >= need and ours.wasted <= before.wasted:
        return Passed(
            f"Your guesser is better than exercise 1's: {ours.tokens_per_step:.2f} tokens per step "
            f"instead of {before.tokens_per_step:.2f}, and {ours.wasted} rejected guesses instead "
            f"of {before.wasted}. In the picture you see both kinds of text.",
            figure,
            alt,
        )
    kind = min(KINDS, key=lambda kind: mine[kind].tokens_per_step / theirs[kind].tokens_per_step)
    if ours.tokens_per_step < need:
        says = (
            f"Your guesses give {ours.tokens_per_step:.2f} tokens per step. Exercise 1's give "
            f"{before.tokens_per_step:.2f}."
        )
        look = WHICH if ours.wasted > before.wasted / 2 else MORE
    else:
        kind = max(KINDS, key=lambda kind: mine[kind].wasted - theirs[kind].wasted)
        says = (
            f"You gain enough, {ours.tokens_per_step:.2f} tokens per step, but {ours.wasted} of "
            f"your guesses are rejected. Exercise 1 wastes {before.wasted}, and each guess costs "
            "time."
        )
        look = (
            "Guess fewer tokens, or none, where you have little to go by. A single token that "
            "stood in the text before is a weak sign; two or three in a row are a better one."
        )
    if shown := _told(mine[kind]):
        shown = f"On {kind}, for example: {shown}"
    raise Mismatch(says, input=shown, expected=want, got=told, look=look, figure=figure, alt=alt)


def _in_all(played: Sequence[Played]) -> Played:
    return Played(
        sum(one.steps for one in played),
        sum(one.tokens for one in played),
        sum(one.wasted for one in played),
        None,
    )


def _told(played: Played) -> str:
    """The first step whose guesses were all rejected, in the words of the text."""
    if played.missed is None:
        return ""
    tokenizer = load_tokenizer()
    before, guesses, came = played.missed
    parts = (before[-12:], guesses, came)
    end, guessed, right = (repr(tokenizer.decode(part)) for part in parts)
    return f"after {end} you guess {guessed}, but {right} comes"


def draw(theirs: dict[str, Played], mine: dict[str, Played], title: str) -> Figure:
    """Tokens per step of each kind: without guesses, with exercise 1's, with the learner's."""
    figure = Figure(figsize=(6.4, 3.0), layout="constrained")
    ax = figure.subplots()
    rows: tuple[tuple[str, list[float], str, str], ...] = (
        ("without guesses", [1.0] * len(KINDS), "#c9c9c9", ""),
        ("`propose`", [theirs[kind].tokens_per_step for kind in KINDS], "#1f5fa8", ""),
        ("`guess_better`", [mine[kind].tokens_per_step for kind in KINDS], "#f2a65a", "//"),
    )
    for place, (label, heights, color, hatch) in enumerate(rows):
        x = [group + 0.27 * (place - 1) for group in range(len(KINDS))]
        style: dict[str, Any] = {"color": color, "hatch": hatch, "edgecolor": "#1b1b1b"}
        bars = ax.bar(x, heights, 0.25, label=label.strip("`"), linewidth=0.5, **style)
        ax.bar_label(bars, fmt="%.2f", size=8)
    ax.set_xticks(range(len(KINDS)), list(KINDS))
    ax.set_ylabel("tokens per step", size=9)
    ax.margins(y=0.12)
    ax.set_title(title, size=11)
    figure.legend(loc="outside lower center", ncols=3, fontsize=8, frameon=False)
    return figure
