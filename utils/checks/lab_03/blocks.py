"""Blocks that are taken when a token needs one: exercise 4."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

from utils.checks.kit.contracts import Choices, Clause, Contract, InLockstep, Raised, Stage, mistake
from utils.sim.memory_policies import STATES

Step = tuple[Any, ...]
NAMES: tuple[Any, ...] = ("a", "b", 0, "", ("c", 1), None, "0")
BAD_SHAPES = ((0, 4), (4, 0), (-4, 4), (4, -4), (-4, -4))


@dataclass(frozen=True)
class Story:
    """Steps of two memories: (memory, "hold", name, tokens) or (memory, "free", name)."""

    shapes: tuple[tuple[int, int], tuple[int, int]]
    beyond: int  # how much longer requests will become
    steps: tuple[Step, ...]

    def __str__(self) -> str:
        (slots, size), (slots_2, size_2) = self.shapes
        return (
            f"one memory of {slots} slots in blocks of {size}, another of {slots_2} in blocks of "
            f"{size_2}; requests will hold up to {self.beyond} tokens more"
        )


def draw_story(c: Choices) -> Story:
    size = c.pick((2, 4, 16, c.size(1, 600)))
    shapes = ((c.integer(1, 12) * size + c.integer(0, size - 1), size), c.pick(((7, 2), (64, 16))))
    if c.rarely(12):
        shapes = ((size - 1, size), shapes[1])
    if c.rarely(4):
        shapes = (shapes[0], c.pick(BAD_SHAPES))
    lengths: dict[tuple[int, Any], int] = {}

    def step() -> Step:
        which, name = (1 if c.rarely(5) else 0), c.pick(NAMES)
        known = [name for memory, name in lengths if memory == which]
        if known and not c.rarely(3):
            name = c.pick(known)
        if c.rarely(4):
            lengths.pop((which, name), None)
            return which, "free", name
        length = lengths.get((which, name), 0)
        block = max(1, shapes[which][1])
        tokens = length + c.pick((1, 1, c.size(1, 2 * block), 2 * block, block - 1))
        if c.rarely(6):
            tokens = c.pick((0, -1, block, *(max(1, length - n) for n in (1, block, 2 * block))))
        lengths[which, name] = max(length, tokens)
        return which, "hold", name, tokens

    return Story(shapes, c.size(0, 70), tuple(c.some(step, 0, 30)))


def play(stage: Stage, memory_class: Any, story: Story) -> None:
    memories = [stage.do(memory_class, *shape) for shape in story.shapes]
    for memory in memories:
        stage.see("new", memory if isinstance(memory, Raised) else "a memory")
    held: list[dict[Any, int]] = [{}, {}]
    earlier: list[Any] = []  # counts that the caller has
    for which, name, *args in ((0, "look"), *story.steps):
        memory, tokens = memories[which], held[which]
        if args and isinstance(args[0], tuple):
            args[0] = tuple([*args[0]])  # an equal key, but another object
        if isinstance(memory, Raised):
            continue
        if name != "look":
            stage.step(f"memory {which + 1}: {name}({', '.join(map(repr, args))})")
            got = stage.call(memory, name, *args)
            stage.see(name, got)
            if name == "hold" and got and not isinstance(got, Raised):
                tokens[args[0]] = args[1]
            elif name == "free":
                tokens.pop(args[0], None)
        failed = name != "look" and (isinstance(got, Raised) or (name == "hold" and not got))
        behind = " behind a failure" if failed else ""
        for other, theirs in zip(memories, held, strict=True):
            if isinstance(other, Raised):
                continue
            stage.see("free blocks" + behind, stage.call(other, "get_num_free_blocks"))
            # Longer ones and shorter ones, and one that never came in.
            ends = {r: n + story.beyond * (k % 3 != 1) for k, (r, n) in enumerate(theirs.items())}
            in_another_order = {"nobody": 5} | dict(reversed(ends.items()))
            states = stage.call(other, "count_states", in_another_order)
            stage.see("states" + behind, states)
            stage.see("earlier states", earlier[-2:])
            if isinstance(states, dict):
                states["used"] = -1  # what is returned belongs to the caller
                earlier.append(states)


class PlainBlocks:
    """Slow and plain: every request has a list of its blocks, and every slot is painted."""

    def __init__(self, num_slots: int, block_size: int) -> None:
        if num_slots < 1 or block_size < 1:
            raise ValueError("too small")
        self.num_slots, self.block_size = num_slots, block_size
        self.pool = self.whole_blocks()
        self.blocks: dict[Any, list[int]] = {}
        self.tokens: dict[Any, int] = {}

    def whole_blocks(self) -> list[int]:
        return [b for b in range(self.num_slots) if (b + 1) * self.block_size <= self.num_slots]

    def needed(self, request: Any, num_tokens: int) -> int:
        owned = len(self.blocks.get(request, []))
        return max(0, -(-num_tokens // self.block_size) - owned)

    def hold(self, request: Any, num_tokens: int) -> bool:
        if num_tokens < 1:
            raise ValueError("no tokens")
        needed = self.needed(request, num_tokens)
        if not self.enough(needed):
            return False
        self.blocks.setdefault(request, []).extend(self.pool.pop(0) for _ in range(needed))
        self.tokens[request] = num_tokens
        return True

    def enough(self, needed: int) -> bool:
        return needed <= len(self.pool)

    def free(self, request: Any) -> None:
        if request not in self.blocks:
            raise ValueError("unknown")
        self.pool += self.blocks.pop(request)
        del self.tokens[request]

    def get_num_free_blocks(self) -> int:
        return len(self.pool)

    def count_states(self, final_lens: dict[Any, int]) -> dict[str, int]:
        count: Counter[str] = Counter()
        for request, blocks in self.blocks.items():
            for place in range(len(blocks) * self.block_size):
                count[self.state(place, self.tokens[request], final_lens[request])] += 1
        count["external"] = self.num_slots - len(self.whole_blocks()) * self.block_size
        count["free"] = self.num_slots - sum(count.values())
        return {state: count[state] for state in STATES}

    def state(self, place: int, held: int, final: int) -> str:
        return "used" if place < held else "reserved" if place < final else "internal"


class _RoundedDown(PlainBlocks):
    def needed(self, request: Any, num_tokens: int) -> int:
        owned = len(self.blocks.get(request, []))
        return max(0, num_tokens // self.block_size - owned)


class _OneMore(PlainBlocks):
    def needed(self, request: Any, num_tokens: int) -> int:
        owned = len(self.blocks.get(request, []))
        return max(0, num_tokens // self.block_size + 1 - owned)


class _Additional(PlainBlocks):
    def needed(self, request: Any, num_tokens: int) -> int:
        return max(0, -(-num_tokens // self.block_size))


class _TakesWhatThereIs(PlainBlocks):
    def hold(self, request: Any, num_tokens: int) -> bool:
        if num_tokens >= 1 and not self.enough(self.needed(request, num_tokens)):
            self.blocks.setdefault(request, []).extend(self.pool)
            self.tokens.setdefault(request, 0)
            self.pool = []
            return False
        return super().hold(request, num_tokens)


class _GivesBack(PlainBlocks):
    def hold(self, request: Any, num_tokens: int) -> bool:
        done = super().hold(request, num_tokens)
        most = -(-num_tokens // self.block_size)
        if done:
            self.pool += self.blocks[request][most:]
            del self.blocks[request][most:]
        return done


class _ExactlyFull(PlainBlocks):
    def enough(self, needed: int) -> bool:
        return not needed or needed < len(self.pool)


class _SilentFree(PlainBlocks):
    def free(self, request: Any) -> None:
        if request in self.blocks:
            super().free(request)


class _AllReserved(PlainBlocks):
    def state(self, place: int, held: int, final: int) -> str:
        return "used" if place < held else "reserved"


class _NoneReserved(PlainBlocks):
    def state(self, place: int, held: int, final: int) -> str:
        return "used" if place < held else "internal"


class _RestIsFree(PlainBlocks):
    def count_states(self, final_lens: dict[Any, int]) -> dict[str, int]:
        found = super().count_states(final_lens)
        return found | {"external": 0, "free": found["free"] + found["external"]}


BLOCKS = Contract(
    inputs=draw_story,
    judge=InLockstep(play, PlainBlocks),
    passed="Right in random stories of two memories. No search, no holes: any block will do.",
    clauses={
        "new": Clause(
            "A new memory: expected {expected}, not {got}.",
            "Less than one slot, or blocks of less than one slot, are a ValueError.",
        ),
        "hold": Clause(
            "`hold` gives {got}; expected {expected}.",
            "`num_tokens` counts *all* tokens of the request. Blocks that it has stay.",
        ),
        "free": Clause(
            "`free` gives {got}; expected {expected}.",
            "A request that holds nothing cannot be freed.",
        ),
        "free blocks": Clause(
            "{got} blocks are free; expected {expected}.",
            "Only whole blocks count, and `hold` takes only what is missing. If "
            "it fails, nothing changes.",
        ),
        "free blocks behind a failure": Clause(
            "What fails must leave the memory as it was. {got} blocks are free; expected "
            "{expected}.",
            "Count first; take blocks only if there are enough.",
        ),
        "states behind a failure": Clause(
            "What fails must leave the memory as it was. `count_states` gives {got}; expected "
            "{expected}. {says}",
            "A request that has no blocks is still unknown then.",
        ),
        "earlier states": Clause(
            "A later call changes a dictionary that was returned before.",
            "Make a new dictionary each time.",
        ),
        "states": Clause(
            "The slots' states are {got}; expected {expected}.",
            "In each request's blocks: first its tokens, then what it will still "
            "fill (reserved), then what it never will (internal).",
        ),
    },
    mistakes=(
        mistake(
            "The last block need not be full: 5 tokens take two blocks of 4.",
            "Round up.",
            _RoundedDown,
        ),
        mistake(
            "Tokens that just fill their blocks take one block too many.",
            "Round up, without adding one.",
            _OneMore,
        ),
        mistake(
            "`num_tokens` is all that the request shall hold, not what is new. Blocks that it "
            "has count.",
            "Take only the blocks that are missing.",
            _Additional,
        ),
        mistake(
            "`hold` fails, but the request has taken blocks all the same.",
            "Count first; take blocks only if there are enough.",
            _TakesWhatThereIs,
        ),
        mistake(
            "Blocks are given back although the request is not freed.",
            "If nothing is missing, nothing changes but the number of tokens.",
            _GivesBack,
        ),
        mistake("The last free block is refused.", "`<=`, not `<`.", _ExactlyFull),
        mistake(
            "A request that holds nothing can be freed, and nobody hears of it.",
            "Raise a ValueError.",
            _SilentFree,
        ),
        mistake(
            "A request does not reach the end of its last block if it ends before: that is "
            "internal fragmentation.",
            "Reserved ends at the request's final length.",
            _AllReserved,
        ),
        mistake(
            "Slots of the last block that will still be filled are reserved.",
            "Compare the final length with the slots of the blocks.",
            _NoneReserved,
        ),
        mistake(
            "Slots behind the last whole block belong to no block: they are external.",
            "`num_slots % block_size`.",
            _RestIsFree,
        ),
    ),
    examples=100,
)
