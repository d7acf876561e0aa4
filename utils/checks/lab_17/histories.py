"""What a router remembers of its own choices: exercise 3."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from utils.checks.kit.contracts import Choices, Clause, Contract, InLockstep, Raised, Stage, mistake

Step = tuple[Any, ...]


@dataclass(frozen=True)
class Story:
    """Two routers that see the same replicas; each remembers what it sent itself."""

    num_replicas: int
    max_blocks: int
    steps: tuple[Step, ...]

    def __str__(self) -> str:
        return f"two histories of {self.num_replicas} replicas, {self.max_blocks} blocks for each"


PROMPTS = ("abcd", "abce", "abfg", "ax", "y", "", "yzab", "abcdefgh", "x", "z")


def names(prompt: str) -> list[str]:
    """Of blocks of one letter: a name stands for all letters up to the block's end."""
    return [prompt[: i + 1] for i in range(len(prompt))]


SHORT = ("y", "x", "z", "ax")  # only of many short ones some are old, and yet remembered
ASKED = [names(prompt) for prompt in (*PROMPTS[:5], "x", "z")]


def draw_story(c: Choices) -> Story:
    num_replicas = c.size(1, 3)
    max_blocks = c.integer(101, 140) if c.rarely(6) else c.size(1, 9)

    def step() -> Step:
        # Mostly the first of the first: only there so much happens that blocks become old.
        which, prompt = c.pick((0, 0, 0, 1)), c.pick((*PROMPTS, *SHORT, *SHORT))
        replica = c.pick((0, 0, *range(num_replicas)))
        if c.rarely(8):
            return which, "lost", replica
        if c.rarely(6):  # about as long as what is remembered
            prompt = "n" * max(1, max_blocks + c.integer(-2, 2))
        if c.rarely(5):
            return which, "matches", names(prompt)
        return which, "sent", replica, names(prompt)

    return Story(num_replicas, max_blocks, tuple(c.some(step, 0, 30)))


def play(stage: Stage, history_class: Any, story: Story) -> None:
    histories = [stage.do(history_class, story.num_replicas, story.max_blocks) for _ in range(2)]
    for history in histories:
        stage.see("new", history if isinstance(history, Raised) else "a history")
    for which, name, *args in story.steps:
        stage.step(f"history {which + 1}: {name}({', '.join(map(_told, args))})")
        kept = Kept()
        given = [list(part) if isinstance(part, list) else part for part in args]
        got = stage.call(histories[which], name, *given)
        if isinstance(given[-1], list):
            given[-1].clear()  # it is the caller's
        stage.see(name, got)
        kept.keep(got)
        kept.ask(stage, "remembers", histories, which, ASKED)
        kept.compare(stage)


def _told(argument: Any) -> str:
    if not isinstance(argument, list) or len(argument) <= 8:
        return str(argument)
    first, second = map(repr, argument[:2])
    return f"[{first}, {second}, ..., {len(argument)} blocks in all]"


class Kept:
    """Answers that the caller keeps while others are asked for. They belong to the caller."""

    def __init__(self) -> None:
        self.answers: list[tuple[list[Any], list[Any]]] = []

    def keep(self, answer: Any) -> None:
        if isinstance(answer, list):
            self.answers.append((answer, list(answer)))

    def ask(
        self, stage: Stage, clause: str, books: list[Any], which: int, asked: list[Any]
    ) -> None:
        """How much of each prompt the book matches that has just heard something.

        The other one has heard nothing new: one question shows whether it knows that. It is not
        asked in stories about one prompt, which are all about one book.
        """
        other = [(1 - which, asked[0])] if len(asked) > 1 else []
        for book, prompt in [(which, prompt) for prompt in asked] + other:
            got = stage.call(books[book], "matches", list(prompt))
            stage.see(clause, got)
            self.keep(got)

    def compare(self, stage: Stage) -> None:
        """Later calls must not have changed them; and then the caller changes them."""
        for answer, then in self.answers:
            stage.expect("earlier", then, answer)
        for answer, _ in self.answers:
            answer.append(-1)


class PlainHistory:
    """Slow and plain: all that was ever sent, latest last, and of that the latest blocks."""

    def __init__(self, num_replicas: int, max_blocks: int) -> None:
        self.max_blocks = max_blocks
        self.past: list[list[str]] = [[] for _ in range(num_replicas)]

    def sent(self, replica: int, block_names: list[str]) -> None:
        self.past[replica] += reversed(block_names)

    def lost(self, replica: int) -> None:
        self.past[replica] = []

    def matches(self, block_names: list[str]) -> list[int]:
        found = []
        for past in self.past:
            known = self.known(past)
            run = 0
            while run < len(block_names) and block_names[run] in known:
                run += 1
            found.append(run)
        return found

    def known(self, past: list[str]) -> set[str]:
        latest: set[str] = set()
        for name in reversed(past):
            if len(latest) < self.max_blocks:
                latest.add(name)
        return latest


class _HeadFirst(PlainHistory):
    def sent(self, replica: int, block_names: list[str]) -> None:
        self.past[replica] += block_names


class _Endless(PlainHistory):
    def known(self, past: list[str]) -> set[str]:
        return set(past)


class _FirstInFirstOut(PlainHistory):
    def sent(self, replica: int, block_names: list[str]) -> None:
        known = self.known(self.past[replica])
        self.past[replica] += [name for name in reversed(block_names) if name not in known]


class _NothingNew(PlainHistory):
    def sent(self, replica: int, block_names: list[str]) -> None:
        if not self.known(self.past[replica]).issuperset(block_names):
            super().sent(replica, block_names)


class _OneLimit(PlainHistory):
    def __init__(self, num_replicas: int, max_blocks: int) -> None:
        super().__init__(num_replicas, max_blocks)
        self.order: list[tuple[int, str]] = []

    def sent(self, replica: int, block_names: list[str]) -> None:
        for name in reversed(block_names):
            if (replica, name) in self.order:
                self.order.remove((replica, name))
            self.order.append((replica, name))
        self.order = self.order[-self.max_blocks :]
        for i in range(len(self.past)):
            self.past[i] = [name for r, name in self.order if r == i]

    def lost(self, replica: int) -> None:
        self.order = [(r, name) for r, name in self.order if r != replica]
        super().lost(replica)


class _NothingLost(PlainHistory):
    def lost(self, replica: int) -> None:
        return


class _AllLost(PlainHistory):
    def lost(self, replica: int) -> None:
        self.past = [[] for _ in self.past]


class _AskingCounts(PlainHistory):
    def matches(self, block_names: list[str]) -> list[int]:
        found = super().matches(block_names)
        for replica, run in enumerate(found):
            self.sent(replica, block_names[:run])
        return found


class _OneOff(PlainHistory):
    def known(self, past: list[str]) -> set[str]:
        self.max_blocks -= 1
        known = super().known(past)
        self.max_blocks += 1
        return known


FORGET = "Go through `reversed(block_names)`, and `move_to_end` each: the first block comes last."

ROUTING_HISTORY = Contract(
    inputs=draw_story,
    judge=InLockstep(play, PlainHistory),
    passed="Right in random stories of two histories. What it remembers is a guess: nobody has "
    "asked the replicas.",
    clauses={
        "new": Clause("`RoutingHistory(num_replicas, max_blocks)` gives no history."),
        "sent": Clause("`sent(replica, block_names)` returns nothing, and raises nothing.", FORGET),
        "lost": Clause("`lost(replica)` returns nothing, and raises nothing."),
        "matches": Clause("`matches` returns {got}; expected {expected}.", FORGET),
        "remembers": Clause(
            "The history remembers something else: for a prompt, `matches` gives {got} leading "
            "blocks per replica; expected {expected}.",
            FORGET,
        ),
        "earlier": Clause(
            "What `matches` has returned is changed by later calls: it is {got}, and was "
            "{expected}.",
            "Make a new list in each call.",
        ),
    },
    mistakes=(
        mistake(
            "Nothing is ever forgotten: the router believes in blocks that are long evicted.",
            "Keep at most `max_blocks` for each replica.",
            _Endless,
        ),
        mistake(
            "Of a prompt, the first block is forgotten first, and with it all others are useless.",
            FORGET,
            _HeadFirst,
        ),
        mistake(
            "A block that is sent again keeps its old age.",
            "`move_to_end` for known blocks, too.",
            _FirstInFirstOut,
        ),
        mistake(
            "A prompt that brings nothing new counts as used, too: its blocks become the youngest.",
            "`move_to_end` for each block of each prompt.",
            _NothingNew,
        ),
        mistake(
            "`max_blocks` is for all replicas together.",
            "Each replica has its own cache.",
            _OneLimit,
        ),
        mistake(
            "A replica that died keeps its blocks.",
            "`lost` forgets all of this replica.",
            _NothingLost,
        ),
        mistake(
            "When one replica dies, the blocks of all are forgotten.", "Only its own.", _AllLost
        ),
        mistake(
            "To ask is not to send: `matches` must not make blocks young again.",
            "Change nothing in `matches`.",
            _AskingCounts,
        ),
        mistake(
            "One block fewer than `max_blocks` is remembered.",
            "Forget while there are *more* than `max_blocks`.",
            _OneOff,
        ),
    ),
    examples=120,
)
