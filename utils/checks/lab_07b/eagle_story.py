"""Stories of requests whose hidden states lie in paged memory: exercise 3 of lab 07b.

A hidden state stands for the text up to its token, so what is right needs no memory at all: the
record of which state each text has got.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from utils.checks.kit.contracts import Choices, Raised
from utils.checks.kit.contracts.int_lists import not_ints
from utils.checks.kit.lab.story import LinedStory

DTYPES = (torch.float32, torch.float32, torch.bfloat16)
OLD = float("inf")  # what stands in memory before anything was computed
FIRST_GUESS = 200  # the layer's own hidden states begin here, so none is also the target's
MOST_GUESSES = 5


class Setting(NamedTuple):
    """A memory, and the texts that requests have."""

    hidden_size: int
    dtype: torch.dtype
    block_size: int
    num_blocks: int
    texts: tuple[tuple[int, ...], ...]


@dataclass
class One:
    """A request, its blocks, and how many of its tokens are computed."""

    text: tuple[int, ...]
    blocks: list[int] = field(default_factory=list)
    computed: int = 0


def row_of(number: int, setting: Setting) -> Tensor:
    """The hidden state of this number. bfloat16 holds it exactly."""
    signs = [1.0, -1.0] * setting.hidden_size
    return torch.tensor([number * sign + 0.0 for sign in signs[: setting.hidden_size]]).to(
        setting.dtype
    )


def told(row: Any) -> str:
    """A row, or several, in few words."""
    return str(row.tolist()) if isinstance(row, Tensor) else str(row)


def equal(one: Tensor, other: Any) -> bool:
    return isinstance(other, Tensor) and one.dtype == other.dtype and torch.equal(one, other)


class EagleStory(LinedStory):
    """Requests come, are computed in pieces, share blocks, end, and are moved."""

    kinds = (*"compute compute compute ask guess finish copy".split(),)  # noqa: SIM905
    most = 12

    @classmethod
    def draw_setting(cls, c: Choices) -> Setting:
        hidden_size, dtype = c.pick((2, 1, 3)), c.pick(DTYPES)
        block_size, num_blocks = c.integer(1, 3), c.integer(1, 7)
        stem = tuple(c.pick((1, 2)) for _ in range(6))

        def text() -> tuple[int, ...]:
            return (*stem[: c.integer(0, 6)], *c.some(lambda: c.pick((1, 2, 3)), 1, 4))

        return Setting(hidden_size, dtype, block_size, num_blocks, tuple(c.some(text, 1, 4)))

    @classmethod
    def tell(cls, setting: Setting) -> str:
        dtype = str(setting.dtype).removeprefix("torch.")
        slots = setting.num_blocks * setting.block_size
        return f"MyEagleProposer(hidden_states of shape [{slots}, {setting.hidden_size}], {dtype})"

    @staticmethod
    def draw_compute(c: Choices, setting: Setting) -> tuple[int, int, int]:
        """Which request, how many tokens, which of the free blocks."""
        return c.integer(0, 2), c.integer(1, 6), c.integer(0, 7)

    @staticmethod
    def draw_ask(c: Choices, setting: Setting) -> tuple[int, int, int]:
        return c.integer(0, 2), c.integer(0, 6), c.integer(0, 6)

    @staticmethod
    def draw_guess(c: Choices, setting: Setting) -> tuple[list[int]]:
        """What the layer likes best, after each of its hidden states."""
        return (c.some(lambda: c.pick((7, 0, 8, 9)), 0, MOST_GUESSES),)

    @staticmethod
    def draw_finish(c: Choices, setting: Setting) -> tuple[int, bool]:
        """Which request, and whether the next one gets its very blocks."""
        return c.integer(0, 2), c.pick((False, True))

    @staticmethod
    def draw_copy(c: Choices, setting: Setting) -> tuple[int, int]:
        return c.integer(0, 2), c.integer(0, 7)

    def start(self, answer: Any) -> None:
        setting = self.setting
        shape = setting.num_blocks * setting.block_size, setting.hidden_size
        self.memory = torch.full(shape, OLD, dtype=setting.dtype)
        self.right = self.memory.clone()  # as the memory should be
        self.mine = self._checked(self.stage.do(answer, self.memory))
        self.say("and another MyEagleProposer, with a memory of its own")
        self._checked(self.stage.do(answer, torch.zeros(1, setting.hidden_size)))
        self.returned: list[tuple[Any, Any]] = []  # the newest results, and what they were
        texts = setting.texts
        self.requests = {name: One(texts[i % len(texts)]) for i, name in enumerate("ABC")}
        self.numbers: dict[tuple[int, ...], int] = {}  # the hidden state of each text
        self.found: dict[tuple[int, ...], int] = {}  # texts that end with a full block
        self.users = [0] * setting.num_blocks

    def do_compute(self, which: int, num_tokens: int, pick: int) -> None:
        """The next tokens of a request. A new one takes what it finds of its text."""
        name, one = "ABC"[which], self.requests["ABC"[which]]
        size = self.setting.block_size
        if not one.blocks:
            self._find(name, one)
        end = min(one.computed + num_tokens, len(one.text))
        while len(one.blocks) * size < end:
            if (block := self._new_block(pick)) is None:
                end = len(one.blocks) * size
                break
            one.blocks.append(block)
        if one.computed >= end:
            return
        start, slots = one.computed, self._slots(one)
        states = torch.stack([self._state(one.text[: i + 1]) for i in range(start, end)])
        self.right[slots[start:end]] = states
        tokens = f"token {start}" if end == start + 1 else f"tokens {start} to {end - 1}"
        self.say(f"keep({slots[start:end]}, {told(states)}): {tokens} of request {name}")
        self._call("keep", slots[start:end], states)
        states.fill_(OLD)  # the engine needs its memory for something else
        self._look("kept", slots[start:end])
        one.computed = end
        for stop in range(size, end + 1, size):
            self.found.setdefault(one.text[:stop], one.blocks[stop // size - 1])
        self._ask(name, one, start, end, len(slots) if pick % 2 else end)

    def do_ask(self, which: int, start: int, number: int) -> None:
        """Any tokens of a request; perhaps with the one that was sampled last."""
        name, one = "ABC"[which], self.requests["ABC"[which]]
        slots = len(one.blocks) * self.setting.block_size
        end = min(start + 1 + number, one.computed + 1, slots)
        if start < end and one.computed:
            self._ask(name, one, start, end, end)

    def do_finish(self, which: int, same_blocks: bool) -> None:
        """A request ends. What it computed can be found until its blocks are given away."""
        name, one = "ABC"[which], self.requests["ABC"[which]]
        if not one.blocks:
            return
        texts = self.setting.texts
        another = One(texts[(texts.index(one.text) + 1) % len(texts)])
        told = f"request {name} is finished, and another one takes its name"
        if same_blocks and all(self.users[block] == 1 for block in one.blocks):
            told += ", and its blocks"
            another.blocks = one.blocks
            self.found = {text: at for text, at in self.found.items() if at not in one.blocks}
        else:
            for block in one.blocks:
                self.users[block] -= 1
        self.say(told)
        self.requests[name] = another

    def do_copy(self, which: int, pick: int) -> None:
        """A request's last block moves, and the memory with it, behind the class's back."""
        name, one = "ABC"[which], self.requests["ABC"[which]]
        if not one.computed or (new := self._new_block(pick)) is None:
            return
        old, size = one.blocks[-1], self.setting.block_size
        for memory in (self.memory, self.right):
            rows = memory.view(self.setting.num_blocks, size, -1)
            rows[new] = rows[old].clone()
        self.users[old] -= 1
        one.blocks[-1] = new
        moved = f"slots {old * size} to {old * size + size - 1} from slot {new * size} on"
        self.say(f"in the memory, request {name}'s {moved}: the last block is copied")

    def do_guess(self, tokens: list[int]) -> None:
        """A chain. The layer's hidden states are numbered as they come."""
        setting, most, calls = self.setting, len(tokens), 0
        states = [row_of(FIRST_GUESS, setting)]

        def best_token(hidden: Tensor) -> int:
            nonlocal calls
            calls += 1
            places = [i for i, state in enumerate(states) if equal(state, hidden)]
            if not places:
                got = f"{told(hidden)} in {getattr(hidden, 'dtype', type(hidden))}"
                self.stage.blame("best", "a hidden state that the layer returned", got)
            if calls > most:
                self.stage.blame("calls", f"{most} calls", "one more")
            return [*tokens, 0][places[0]]

        def read(token_id: int, before: Tensor) -> Tensor:
            number = len(states) - 1  # of the guess that comes now
            if isinstance(token_id, Tensor) or not isinstance(before, Tensor):
                got = f"read({told(token_id)}, {told(before)})"
                self.stage.blame("arguments", "a token and a hidden state", got)
            if number >= most - 1:
                self.stage.blame("many", f"{max(0, most - 1)} runs of the layer", "one more")
            if token_id != tokens[number]:
                self.stage.blame("token", f"token {tokens[number]}", f"token {token_id}")
            if not equal(states[-1], before):
                self.stage.blame("behind", told(states[-1]), told(before))
            states.append(row_of(FIRST_GUESS + len(states), setting))
            return states[-1].clone()

        self.say(f"guess({told(states[0])}, {most}, best_token, read)")
        got = self._call("guess", states[0].clone(), most, best_token, read)
        if fault := not_ints(got):
            self.stage.blame("list", fault.expected, got)
        self.stage.expect("guesses", tokens, [int(token) for token in got], str)
        self._look_back()
        self.returned = [*self.returned, (got, list(got))][-3:]

    # What a story is made of

    def _find(self, name: str, one: One) -> None:
        """Take blocks from the prefix cache; a last token is left to be computed."""
        size = self.setting.block_size
        for stop in range(size, len(one.text), size):
            if (block := self.found.get(one.text[:stop])) is None:
                break
            self.users[block] += 1
            one.blocks.append(block)
            one.computed = stop
        if one.computed:
            slots = self._slots(one)
            self.say(f"request {name} finds its first tokens computed, at the slots {slots}")

    def _new_block(self, pick: int) -> int | None:
        """A block that nobody uses. What was found in it is found no more."""
        free = [block for block, users in enumerate(self.users) if not users]
        if not free:
            return None
        block = free[pick % len(free)]
        self.users[block] = 1
        self.found = {text: at for text, at in self.found.items() if at != block}
        return block

    def _slots(self, one: One) -> list[int]:
        size = self.setting.block_size
        return [block * size + i for block in one.blocks for i in range(size)]

    def _state(self, text: tuple[int, ...]) -> Tensor:
        """The hidden state after a text; none but the empty text's is zero."""
        number = self.numbers.setdefault(text, len(self.numbers) + 1) if text else 0
        return row_of(number, self.setting)

    def _ask(self, name: str, one: One, start: int, end: int, num_slots: int) -> None:
        slots = self._slots(one)[:num_slots]
        self.say(f"states_before({slots}, {start}, {end}) of request {name}")
        got = self._call("states_before", slots, start, end)
        right = torch.stack([self._state(one.text[:i]) for i in range(start, end)])
        if not isinstance(got, Tensor) or got.shape != right.shape or got.dtype != right.dtype:
            self.stage.blame("form", right, got)
        for token, (want, row) in enumerate(zip(right, got, strict=True), start):
            if not torch.equal(want, row):
                clause = "before" if token else "first"
                self.stage.blame(clause, f"{told(want)} for token {token}", told(row))
        self._look("looks", [])
        self._look_back()
        with contextlib.suppress(RuntimeError):  # a tensor that can't be written to
            got.fill_(OLD)
        self._look("view", [])
        self.returned = [*self.returned, (got, got.clone())][-3:]

    def _look_back(self) -> None:
        """What was returned before must not have changed, whatever was asked since."""
        for earlier, was in self.returned:
            same = torch.equal(earlier, was) if isinstance(was, Tensor) else earlier == was
            if not same:
                self.stage.blame("again", told(was), told(earlier))

    def _look(self, clause: str, slots: Sequence[int]) -> None:
        """The whole memory. `clause` is broken at `slots`, if those are named, or anywhere."""
        for slot, (want, row) in enumerate(zip(self.right, self.memory, strict=True)):
            if not torch.equal(want, row):
                broken = clause if slot in slots or not slots else "others"
                self.stage.blame(broken, f"{told(want)} at slot {slot}", told(row))

    def _call(self, method: str, *args: Any) -> Any:
        return self._checked(self.stage.call(self.mine, method, *args))

    def _checked(self, got: Any) -> Any:
        if isinstance(got, Raised):
            self.stage.blame("raises", "no error", got)
        return got
