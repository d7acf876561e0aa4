"""The checks of lab 03: what is drawn, and what is right.

Oracles: slots painted one by one, the one right answer in lockstep (`tests/` holds it against the
course's allocators), moves carried out slot by slot, and at last the course's simulator.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from utils.checks.kit.contracts import Choices, Given, InLockstep, Once, Raised, Returns, Stage
from utils.checks.kit.contracts.differences import shown
from utils.checks.kit.lab.engine import speaks_first
from utils.checks.kit.lab.lab import Lab
from utils.checks.kit.lab.story import Story
from utils.checks.kit.runner import Mismatch, Passed, call
from utils.checks.lab_03 import answers, experiment, room
from utils.checks.lab_03.experiment import Parts
from utils.checks.lab_03.kinds import Chunk, Request, Running
from utils.sim.memory_policies import STATES

__all__ = ["Parts"]
LAB = Lab(__file__)

# Exercise 1: what every slot of the memory is for


def draw_memory(c: Choices) -> Given:
    now = c.pick((0, 5, 1000)) + c.integer(0, 3)
    start = 0
    holes: list[tuple[int, int]] = []
    running: list[Running] = []

    def piece() -> None:
        nonlocal start
        size = c.size(1, 2000)
        if c.rarely(2):
            holes.append((start, size))
        else:
            prompt_len, output_len = c.size(1, 300), c.size(1, 300)
            asked = prompt_len + output_len - 1 + (c.size(0, 2000) if c.rarely(2) else 0)
            request = Request(prompt_len, output_len, asked)
            if running and c.rarely(3):  # two may ask for the same
                request = c.pick(running).request
            size = request.asked + (c.size(0, 300) if c.rarely(2) else 0)
            last = request.output_len - 1
            age = c.pick((0, last, c.integer(0, last)))
            running.append(Running(request, now - age, start, size))
        start += size

    c.some(piece, 0, 6)
    need = None
    if not c.rarely(5):
        sizes = [size for _, size in holes] or [1]
        need = max(1, c.pick(sizes) + c.pick((0, 1, -1))) if c.rarely(2) else c.size(1, 2000)
    if c.rarely(4):  # in another order
        running.reverse()
        holes.reverse()
    wrap: Any = c.pick((list, list, tuple, Once))
    return Given(wrap(running), wrap(holes), need, now)


def painted(
    running: Iterable[Running], holes: Iterable[tuple[int, int]], need: int | None, now: int
) -> dict[str, int]:
    """Slot by slot: each gets the name of its state, then the names are counted."""
    row: list[str] = []
    for r in running:
        final = r.request.prompt_len + r.request.output_len - 1
        slots = ["external"] * r.size
        slots[: r.request.asked] = ["internal"] * r.request.asked
        slots[:final] = ["reserved"] * final
        held = r.request.prompt_len + now - r.first_step
        slots[:held] = ["used"] * held
        row += slots
    for _, size in holes:
        row += ["external" if need is not None and size < need else "free"] * size
    count = Counter(row)
    return {state: count[state] for state in STATES}


def tell_memory(given: Given) -> str:
    running, holes, need, now = given.args
    kind = " (iterators)" if isinstance(holes, Once) else ""
    told = "; ".join(shown(r).strip("`") for r in running) or "none"
    return f"now {now}, need {need}, holes {list(holes)}, running{kind}: {told}"


def praise_states(answer: Callable[..., dict[str, int]]) -> str:
    """Words of success, or `Mismatch` if a later call changes what an earlier one returned."""
    first = call(answer, [], [(0, 3)], None, 0)
    kept = dict(first)
    call(answer, [], [(0, 5)], 8, 0)
    if first != kept:
        raise Mismatch(
            "The second call changes the dictionary that the first one returned.",
            input="one hole of 3 slots, need None; then one hole of 5 slots, need 8",
            expected=f"still {kept}",
            got=str(first),
            look="Begin each call with a dictionary of its own.",
        )
    return "Right: every slot is counted once, by the paper's rule."


count_states = LAB.check(
    answers.count_states, draw_memory, Returns(painted), passed=praise_states, tell=tell_memory
)

# Exercises 2 and 3: two memories that hand out chunks


class ChunkStory(Story):
    """Two memories. Chunks are freed by their number in the order in which they were placed; other
    starts are asked for, too."""

    kinds = ("place", "free", "place", "free", "place", "odd")
    most = 45

    @classmethod
    def draw_setting(cls, c: Choices) -> tuple[int, int]:
        # 12 and 16 are likely, so that pieces of several sizes stay free; 0 is an error.
        first = c.pick((8, 12, 16, c.size(1, 40), c.size(1, 3000), 2 ** c.integer(11, 14)))
        return first, c.pick((8, 16, 100, c.size(1, 64), 0, -3))

    @classmethod
    def tell(cls, setting: tuple[int, int]) -> str:
        return f"one memory of {setting[0]} slots, another one of {setting[1]}"

    @staticmethod
    def draw_which(c: Choices) -> int:
        return 1 if c.rarely(4) else 0

    @classmethod
    def draw_free(cls, c: Choices, setting: tuple[int, int]) -> tuple[int, int]:
        return cls.draw_which(c), c.integer(0, 30)

    @classmethod
    def draw_place(cls, c: Choices, setting: tuple[int, int]) -> tuple[int, int]:
        which = cls.draw_which(c)
        most = max(1, setting[which])
        return which, c.size(1, most + 1) if c.rarely(5) else c.size(1, max(1, most // 3))

    @classmethod
    def draw_odd(cls, c: Choices, setting: tuple[int, int]) -> tuple[int, str, int]:
        which = cls.draw_which(c)
        kinds = ("size", "start", "inside", "size", "nothing", "again", "from the end")
        kind = c.pick(kinds)
        number = c.pick((0, -1)) if kind == "nothing" else c.integer(-1, max(setting) + 1)
        if kind == "size" and c.rarely(2):
            number = c.pick((c.size(1, 2**32), 2 ** c.integer(49, 59) + 1))
        return which, kind, number

    def start(self, memory_class: Any) -> None:
        self.memories = [self.stage.do(memory_class, size) for size in self.setting]
        for memory, size in zip(self.memories, self.setting, strict=True):
            refused = isinstance(memory, Raised) and issubclass(memory.error, ValueError)
            new = "ValueError" if refused else shown_new(memory)
            self.stage.see("new", new, look=str(size))
        self.placed: list[list[tuple[int, int]]] = [[], []]
        self.freed: list[list[int]] = [[], []]
        for which in range(2):
            self.look(which, "new: holes")

    def do_place(self, which: int, number: int) -> None:
        got = self.ask(which, "place", number)
        if got is not None and not isinstance(got, Raised):
            self.placed[which].append((int(got), number))

    def do_free(self, which: int, number: int) -> None:
        if self.placed[which]:
            start, _ = self.placed[which].pop(number % len(self.placed[which]))
            self.freed[which].append(start)
            self.ask(which, "free", start, look="freed: holes")

    def do_odd(self, which: int, kind: str, number: int) -> None:
        """A size alone, nothing to place, or a start at which no chunk begins."""
        placed, freed = self.placed[which], self.freed[which]
        if kind == "size":
            self.ask(which, "chunk_size", number)
        elif kind == "nothing":
            self.ask(which, "place", number)
        else:
            start = number
            if kind == "inside" and placed:
                start = sum(placed[number % len(placed)]) - 1
            elif kind == "again" and freed:
                start = freed[number % len(freed)]
            elif kind == "from the end" and placed:  # as an index, it would be a chunk's start
                start = placed[number % len(placed)][0] - self.setting[which]
            if start not in [begin for begin, _ in placed]:
                self.ask(which, "free", start, clause="not a chunk")

    def ask(self, which: int, name: str, number: int, clause: str = "", look: str = "holes") -> Any:
        """Call a method, and look at both memories."""
        memory = self.memories[which]
        if isinstance(memory, Raised):
            return None
        self.stage.step(f"memory {which + 1}: {name}({number})")
        got = self.stage.call(memory, name, number)
        self.stage.see(clause or name, got)
        self.stage.see("whole", in_floats(got))
        if isinstance(got, Raised) or (got is None and name == "place"):
            look = "failed: holes"
        self.look(which, look)
        self.look(1 - which, "other: holes")
        return got

    def look(self, which: int, clause: str) -> None:
        memory = self.memories[which]
        if isinstance(memory, Raised):
            return
        holes = self.stage.call(memory, "holes")
        self.stage.see(clause, holes)
        self.stage.see("whole", in_floats(holes))
        again = self.stage.call(memory, "holes")
        self.stage.see("own list", holes is again and isinstance(holes, list))


def in_floats(value: Any) -> bool:
    """Whether any number in it is a float."""
    if isinstance(value, list | tuple):
        return any(map(in_floats, value))
    return isinstance(value, float)


def shown_new(memory: Any) -> str:
    return memory.says if isinstance(memory, Raised) else "a memory"


first_fit_memory = LAB.check(
    answers.FirstFit, ChunkStory.draw, ChunkStory.judge(answers.FirstFit), examples=80
)
buddy_memory = LAB.check(
    answers.Buddy, ChunkStory.draw, ChunkStory.judge(answers.Buddy), examples=80
)

# Exercise 4: blocks that are taken when a token needs one

NAMES: tuple[Any, ...] = ("a", "b", 0, "", ("c", 1), None, "0")
BAD_SHAPES = ((0, 4), (4, 0), (-4, 4), (4, -4), (-4, -4))
BlockStep = tuple[Any, ...]


@dataclass(frozen=True)
class Blocks:
    """Steps of two memories: (memory, "hold", name, tokens) or (memory, "free", name)."""

    shapes: tuple[tuple[int, int], tuple[int, int]]
    beyond: int  # how much longer requests will become
    steps: tuple[BlockStep, ...]

    def __str__(self) -> str:
        (slots, size), (slots_2, size_2) = self.shapes
        return (
            f"one memory of {slots} slots in blocks of {size}, another of {slots_2} in blocks of "
            f"{size_2}; requests will hold up to {self.beyond} tokens more"
        )


def draw_blocks(c: Choices) -> Blocks:
    size = c.pick((2, 4, 16, c.size(1, 600)))
    shapes = (
        (c.integer(1, 12) * size + c.integer(0, size - 1), size),
        c.pick(((7, 2), (64, 16), (1, 1))),
    )
    if c.rarely(12):
        shapes = ((size - 1, size), shapes[1])
    if c.rarely(4):
        shapes = (shapes[0], c.pick(BAD_SHAPES))
    lengths: dict[tuple[int, Any], int] = {}

    def step() -> BlockStep:
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

    return Blocks(shapes, c.size(0, 70), tuple(c.some(step, 0, 30)))


def play_blocks(stage: Stage, memory_class: Any, story: Blocks) -> None:
    memories = [stage.do(memory_class, *shape) for shape in story.shapes]
    for memory in memories:
        stage.see("new", memory if isinstance(memory, Raised) else "a memory")
    held: list[dict[Any, int]] = [{}, {}]
    earlier: list[Any] = []  # counts that the caller has

    def look(which: int, kind: str) -> None:
        if isinstance(memories[which], Raised):
            return
        stage.see(f"{kind}free blocks", stage.call(memories[which], "get_num_free_blocks"))
        # Longer ones and shorter ones, and one that never came in.
        lengths = enumerate(held[which].items())
        ends = {name: n + story.beyond * (k % 3 != 1) for k, (name, n) in lengths}
        in_another_order = {"nobody": 5} | dict(reversed(ends.items()))
        states = stage.call(memories[which], "count_states", in_another_order)
        stage.see(f"{kind}states", states)
        stage.see("earlier states", earlier[-2:])
        if isinstance(states, dict):
            states["used"] = -1  # what is returned belongs to the caller
            earlier.append(states)

    for which in range(2):
        look(which, "")
    for which, name, *args in story.steps:
        memory, tokens = memories[which], held[which]
        if isinstance(args[0], tuple):
            args[0] = tuple([*args[0]])  # an equal key, but another object
        if isinstance(memory, Raised):
            continue
        stage.step(f"memory {which + 1}: {name}({', '.join(map(repr, args))})")
        got = stage.call(memory, name, *args)
        stage.see(name, got)
        if name == "hold" and got and not isinstance(got, Raised):
            tokens[args[0]] = args[1]
        elif name == "free":
            tokens.pop(args[0], None)
        failed = isinstance(got, Raised) or (name == "hold" and not got)
        look(which, "failed: " if failed else "")
        look(1 - which, "other: ")


block_memory = LAB.check(
    answers.BlockMemory, draw_blocks, InLockstep(play_blocks, answers.BlockMemory), examples=100
)

# Exercise 5: moving chunks until there is room, where many answers are right


def cheap_to_slide(c: Choices) -> Given:
    """A full chunk, which sliding leaves at slot 0, and nearly empty ones above it."""
    full, low, high = c.integer(1, 5), c.integer(1, 5), c.integer(1, 9)
    thin = [c.size(5, 40) for _ in range(c.integer(1, 2))]
    chunks, at = [Chunk(0, full, full)], full + low
    for size in thin:
        chunks.append(Chunk(at, size, 1))
        at += size
    return Given(chunks, at + high, c.integer(max(low, high) + 1, low + high))


def draw_room(c: Choices) -> Given:
    if c.rarely(5):
        return cheap_to_slide(c)
    chunks: list[Chunk] = []
    at = 0

    def piece() -> None:
        nonlocal at
        at += c.pick((0, 1, 2, c.size(1, 60)))
        size = c.size(1, 40)
        chunks.append(Chunk(at, size, c.pick((size, 1, c.integer(1, size)))))
        at += size

    c.some(piece, 0, 9)
    num_slots = max(1, at + c.pick((0, 1, c.size(0, 60))))
    holes = [size for _, size in room.holes_between(chunks, num_slots)] or [0]
    between = c.integer(max(holes), max(max(holes), sum(holes)))
    need = c.pick((max(holes) + 1, sum(holes), between, between, max(holes), sum(holes) + 1))
    return Given(c.pick((list, list, tuple))(chunks), num_slots, max(1, need))


make_room = LAB.check(
    answers.make_room,
    draw_room,
    Returns(room.oracle, wrong=room.wrong_moves),
    passed=room.cheaper_than_sliding,
    examples=200,
)

# Exercise 6: one step of the engine


class FromTheTop(answers.FirstFit):
    """A third rule of placement: an engine must not care where a chunk comes to lie."""

    def chunk_size(self, num_tokens: int) -> int:
        return super().chunk_size(num_tokens) + 2

    def place(self, num_tokens: int) -> int | None:
        size = self.chunk_size(num_tokens)
        for start, slots in reversed(self.holes()):
            if slots >= size:
                self.chunks[start + slots - size] = size
                return start + slots - size
        return None


MEMORIES: dict[str, Any] = {
    "first fit": answers.FirstFit,
    "buddies": answers.Buddy,
    "from the top, 2 slots more": FromTheTop,
}
MOST = 1200  # requests


class Facade:
    """A memory with the methods that an engine may call, and no others."""

    def __init__(self, memory: Any) -> None:
        self.place, self.free, self.chunk_size = memory.place, memory.free, memory.chunk_size


@dataclass(frozen=True)
class Steps:
    memory: str
    num_slots: int
    requests: tuple[Request, ...]
    gaps: tuple[int, ...]  # steps between two calls; more than 1 only while nobody ends
    late: int  # so many of the requests begin to wait one by one, before each later call
    times: int  # for a crowd: the requests, so many times
    engines: int  # that take their steps in turns

    def __str__(self) -> str:
        told = "; ".join(f"{p}, {o}, {a}" for p, o, a in self.requests) or "none"
        told += f"; all of them {self.times} times" if self.times > 1 else ""
        told += f"; the last {self.late} one by one, each before a later call" if self.late else ""
        return (
            ("two engines in turns, each with a " if self.engines > 1 else "")
            + f"memory of {self.num_slots} slots, {self.memory}; requests (prompt_len, output_len, "
            f"asked): {told}"
        )


def draw_steps(c: Choices) -> Steps:
    crowd = c.rarely(15)
    num_slots = 20_000 if crowd else c.pick((8, 16, c.size(4, 300)))

    def request() -> Request:
        prompt_len, output_len = c.size(1, 3 if crowd else max(1, num_slots // 3)), c.size(1, 9)
        return Request(prompt_len, output_len, prompt_len + output_len - 1 + c.integer(0, 3))

    return Steps(
        c.pick(tuple(MEMORIES)),
        num_slots,
        tuple(c.some(request, 0, 10)),
        tuple(c.some(lambda: c.pick((1, 1, 2, 5)), 0, 40)),
        c.integer(1, 5) if c.rarely(3) else 0,
        c.integer(1, 600) if crowd else 1,
        2 if not crowd and c.rarely(4) else 1,
    )


class Engine:
    """One engine's memory and queues."""

    def __init__(self, story: Steps) -> None:
        self.memory = MEMORIES[story.memory](story.num_slots)
        self.running: list[Running] = []
        requests = (story.requests * story.times)[:MOST]
        self.late = deque(requests[max(0, len(requests) - story.late) :])
        self.waiting = deque(requests[: len(requests) - len(self.late)])
        self.now = 0


def play_steps(stage: Stage, advance: Any, story: Steps) -> None:
    engines = [Engine(story) for _ in range(story.engines)]
    for gap in (0, *story.gaps):
        for number, engine in enumerate(engines, 1):
            ends = [r.first_step + r.request.output_len for r in engine.running]
            engine.now += min([gap, *(max(1, end - engine.now) for end in ends)])
            stage.now(f"engine {number}, " * (len(engines) > 1) + f"step {engine.now}")
            take_step(stage, advance, engine)
        if not any(engine.running or engine.waiting for engine in engines):
            return


def take_step(stage: Stage, advance: Any, engine: Engine) -> None:
    memory, running, waiting, now = engine.memory, engine.running, engine.waiting, engine.now
    # Its arguments are there to be changed, so a function without any is told to the stage.
    got = stage.do(lambda: advance(Facade(memory), running, waiting, now))
    stage.see("returns", got)
    stage.see("waiting", list(waiting), tell_waiting)
    stage.see("running", sorted(running, key=lambda r: r[2]), tell_running)
    stage.see("memory", sorted(memory.chunks.items()))
    if engine.late:
        waiting.append(engine.late.popleft())


def tell_waiting(requests: Sequence[Request]) -> str:
    return "; ".join(f"{p}, {o}, {a}" for p, o, a in requests) or "nobody"


def tell_running(running: Sequence[Running]) -> str:
    return (
        "; ".join(
            f"({r.request.prompt_len}, {r.request.output_len}, {r.request.asked}) since step "
            f"{r.first_step} in {r.size} slots from {r.start} on"
            for r in running
        )
        or "nobody"
    )


advance = LAB.check(
    answers.advance, draw_steps, InLockstep(play_steps, answers.advance), examples=100
)

# Exercise 7


@LAB.exercise
def engine(make_parts: Callable[[], Parts]) -> Passed:
    """All parts on small memories first, then the paper's experiment with them."""
    parts = call(make_parts)
    if not isinstance(parts, Parts):
        raise Mismatch("The check needs `check.Parts(...)`, as in the cell above.")
    speaks_first(advance, parts.advance)
    speaks_first(make_room, parts.make_room)
    speaks_first(block_memory, parts.block_memory)
    speaks_first(buddy_memory, parts.buddy)
    speaks_first(first_fit_memory, parts.first_fit)
    speaks_first(count_states, parts.count_states)
    return experiment.against_the_course(parts, answers.advance, painted)
