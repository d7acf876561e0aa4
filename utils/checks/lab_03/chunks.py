"""Stories of two memories that hand out chunks: for exercises 2 and 3."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from utils.checks.kit.contracts import Choices, Clause, Raised, Stage

Step = tuple[Any, ...]


@dataclass(frozen=True)
class Story:
    """Steps of two memories: (memory, what, number). Chunks are freed by their number in the order
    in which they were placed; other starts are asked for, too."""

    sizes: tuple[int, int]
    steps: tuple[Step, ...]

    def __str__(self) -> str:
        first, second = self.sizes
        return f"one memory of {first} slots, another one of {second}"


def draw_story(c: Choices) -> Story:
    # 12 and 16 are likely, so that pieces of several sizes stay free; 0 is an error.
    sizes = (
        c.pick((8, 12, 16, c.size(1, 40), c.size(1, 3000), 2 ** c.integer(11, 14))),
        c.pick((8, 16, 100, c.size(1, 64), 0, -3)),
    )

    def step() -> Step:
        which = 1 if c.rarely(4) else 0
        kind = c.pick(("place", "free", "place", "free", "place", "odd"))
        if kind == "free":
            return which, kind, c.integer(0, 30)
        if kind == "place":
            most = max(1, sizes[which])
            size = c.size(1, max(1, most // 3)) if not c.rarely(5) else c.size(1, most + 1)
            return which, kind, size
        odd = c.pick(
            (
                "chunk_size",
                "free a start",
                "free inside",
                "chunk_size",
                "place",
                "free again",
                "free from the end",
            )
        )
        number = c.pick((0, -1)) if odd == "place" else c.integer(-1, max(sizes) + 1)
        if odd == "chunk_size" and c.rarely(2):
            number = c.size(1, 2**32)
        return which, odd, number

    return Story(sizes, tuple(c.some(step, 0, 45)))


def play(stage: Stage, memory_class: Any, story: Story) -> None:
    memories = [stage.do(memory_class, size) for size in story.sizes]
    for memory, size in zip(memories, story.sizes, strict=True):
        stage.see("new", "ValueError" if _refused(memory) else shown_new(memory), look=str(size))
    placed: list[list[tuple[int, int]]] = [[], []]
    freed: list[list[int]] = [[], []]
    earlier: list[Any] = []  # lists of holes that the caller has
    for which, kind, number in ((0, "chunk_size", 1), *story.steps):
        memory, chunks = memories[which], placed[which]
        if isinstance(memory, Raised):
            continue
        name, argument = kind, number
        if kind == "free":
            if not chunks:
                continue
            argument, _ = chunks.pop(number % len(chunks))
            freed[which].append(argument)
        elif kind == "free inside":
            if not chunks:
                continue
            start, size = chunks[number % len(chunks)]
            name, argument = "free", start + size // 2
            if size == 1:
                continue
        elif kind in ("free a start", "free again", "free from the end"):
            name = "free"
            if kind == "free again" and freed[which]:
                argument = freed[which][number % len(freed[which])]
            if kind == "free from the end" and chunks:  # as an index, it would be a chunk's start
                argument = chunks[number % len(chunks)][0] - story.sizes[which]
            if argument in [start for start, _ in chunks]:
                continue
        stage.step(f"memory {which + 1}: {name}({argument})")
        got = stage.call(memory, name, argument)
        wrong_free = name == "free" and kind != "free"
        stage.see("not a chunk" if wrong_free else name, got)
        stage.see("whole", in_floats(got))
        if name == "place" and got is not None and not isinstance(got, Raised):
            chunks.append((int(got), argument))
        for other in memories:
            if not isinstance(other, Raised):
                failed = isinstance(got, Raised) or (got is None and name == "place")
                holes = stage.call(other, "holes")
                stage.see("holes behind a failure" if failed else "holes", holes)
                stage.see("whole", in_floats(holes))
                stage.see("earlier holes", earlier[-2:])
                if isinstance(holes, list):
                    holes.append((0, 10**6))  # what is returned belongs to the caller
                    earlier.append(holes)


def in_floats(value: Any) -> bool:
    """Whether any number in it is a float."""
    if isinstance(value, list | tuple):
        return any(map(in_floats, value))
    return isinstance(value, float)


def _refused(memory: Any) -> bool:
    return isinstance(memory, Raised) and issubclass(memory.error, ValueError)


def shown_new(memory: Any) -> str:
    return memory.says if isinstance(memory, Raised) else "a memory"


def clauses(where: str) -> dict[str, Clause]:
    """Words for all that these stories show; `where` says how a place is found."""
    return {
        "new": Clause(
            "A new memory: expected {expected}, not {got}.",
            "A memory of less than one slot is a ValueError.",
        ),
        "chunk_size": Clause("`chunk_size` gives {got}; expected {expected}.", where),
        "place": Clause("`place` gives {got}; expected {expected}.", where),
        "free": Clause("`free` gives {got}; expected {expected}."),
        "not a chunk": Clause(
            "Where no chunk begins, `free` must raise a ValueError, not give {got}.",
            "Remember which chunks begin where.",
        ),
        "whole": Clause(
            "Numbers of slots are ints; here comes a float.",
            "`//` divides into whole numbers, `/` does not.",
        ),
        "earlier holes": Clause(
            "The list of holes belongs to the caller. A later call changes a "
            "list that was returned before.",
            "Make a new list each time.",
        ),
        "holes": Clause("The holes are {got}; expected {expected}.", where),
        "holes behind a failure": Clause(
            "What fails must leave the memory as it was. The holes are {got}; expected {expected}.",
            "Look first, and change something only when all is well.",
        ),
    }
