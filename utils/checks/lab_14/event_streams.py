"""Server-sent events, read from bytes that come in any pieces: exercise 1."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from utils.checks.kit.contracts import Choices, Clause, Contract, InLockstep, Raised, Stage, mistake

DONE = "[DONE]"
# The last two hold characters at which `str.splitlines` cuts, and `str.strip` takes away.
TEXTS = (
    "a",
    "",
    "é",
    "{}",
    "🙂",
    " b ",
    "data: c",
    ":",
    "\u2028\x85x",
    "\x0cy\u3000",
    "[DONE]?",
    "x\r",
    "y\rz",
    " [DONE]",
    "[DONE] ",
    "[DONE]",
    "long " * 300,
)
NOISE = (
    ": a comment",
    "event: error",
    "id: 7",
    "database: 1",
    "Data: x",
    " data: x",
    ":",
    "retry: 10",
    "data",
    "\ufeffdata: x",
    " ",
    "\t",
)
ENDS = ("\n", "\n", "\r\n")


@dataclass(frozen=True)
class Stream:
    """The bytes of two streams, in the order and the pieces in which they come."""

    pieces: tuple[tuple[int, bytes], ...]

    def __str__(self) -> str:
        return "pieces " + ", ".join(
            f"{_short(piece)} to reader {which + 1}" for which, piece in self.pieces
        )


def _short(piece: bytes) -> str:
    return repr(piece) if len(piece) < 80 else f"{piece[:60]!r}... ({len(piece)} bytes)"


def draw_stream(c: Choices) -> Stream:
    def line() -> str:
        if c.rarely(4):
            return c.pick(NOISE) + c.pick(ENDS)
        return "data:" + c.pick((" ", "")) + c.pick(TEXTS) + c.pick(ENDS)

    def event() -> str:
        if c.rarely(8):
            return f"data: {DONE}{c.pick(ENDS)}{c.pick(ENDS)}"
        return "".join(c.some(line, 0, 3)) + c.pick(ENDS)

    def stream() -> bytes:
        text = "".join(c.some(event, 0, 6))
        cut = len(text) - c.pick((0, 0, 1, 3))  # the stream may break off
        return text[: max(0, cut)].encode()

    def cut(data: bytes) -> list[bytes]:
        kind = c.pick(("whole", "some", "some", "bytes"))
        if kind == "whole":
            return [data]
        if kind == "bytes" and len(data) < 300:
            return [data[i : i + 1] for i in range(len(data))]
        places = sorted(c.some(lambda: c.integer(0, len(data)), 0, 8))
        return [data[i:j] for i, j in zip([0, *places], [*places, len(data)], strict=True)]

    queues = [cut(stream()), cut(stream()) if c.rarely(3) else []]
    order = []
    while any(queues):
        which = c.integer(0, 1) if all(queues) else int(not queues[0])
        order.append((which, queues[which].pop(0)))
    return Stream(tuple(order))


def play(stage: Stage, reader_class: Any, stream: Stream) -> None:
    readers = [stage.do(reader_class) for _ in range(2)]
    for reader in readers:
        stage.see("new", reader if isinstance(reader, Raised) else "a reader")
    given: list[list[str]] = []
    for number, (which, piece) in enumerate(stream.pieces, 1):
        stage.now(f"piece {number}: {_short(piece)}")
        got = stage.call(readers[which], "feed", piece)
        stage.see("done", stage.read(readers[which], "done"))
        stage.see("feed", got)
        stage.see("given before", [list(texts) for texts in given])
        if isinstance(got, list):
            got.append("the caller's")
            given.append(got)


class PlainReader:
    """Slow and plain: reads the whole stream anew with each piece, and gives what is more."""

    def __init__(self) -> None:
        self.data, self.num_given, self.done = b"", 0, False

    def feed(self, piece: bytes) -> list[str]:
        self.data += piece
        events = self.events(self.data)
        self.done = DONE in events
        if self.done:
            events = events[: events.index(DONE)]
        given, self.num_given = events[self.num_given :], len(events)
        return given

    def events(self, data: bytes) -> list[str]:
        lines = [self.text(line) for line in data.split(b"\n")[:-1]]
        events: list[str] = []
        values: list[str] = []
        for line in lines:
            if line == "":
                events += ["\n".join(values)] if values else []
                values = []
            elif line.startswith("data:"):
                values.append(self.value(line))
        return events

    def text(self, line: bytes) -> str:
        return line.removesuffix(b"\r").decode(errors="replace")

    def value(self, line: str) -> str:
        return line[5:].removeprefix(" ")


class _PieceByPiece(PlainReader):
    """Each piece is read as if it were a whole stream."""

    def feed(self, piece: bytes) -> list[str]:
        self.data, self.num_given = b"", 0
        return [] if self.done else super().feed(piece)


class _DecodesPieces(PlainReader):
    def __init__(self, errors: str = "replace") -> None:
        super().__init__()
        self.errors = errors

    def feed(self, piece: bytes) -> list[str]:
        return super().feed(piece.decode(errors=self.errors).encode())


class _Strict(_DecodesPieces):
    def __init__(self) -> None:
        super().__init__("strict")


class _Ignores(_DecodesPieces):
    def __init__(self) -> None:
        super().__init__("ignore")


class _Stripped(PlainReader):
    def value(self, line: str) -> str:
        return line[5:].strip()


class _SpaceNeeded(PlainReader):
    def events(self, data: bytes) -> list[str]:
        return super().events(re.sub(rb"(?m)^data:(?! )", b"x:", data))

    def value(self, line: str) -> str:
        return line[6:]


class _SpaceKept(PlainReader):
    def value(self, line: str) -> str:
        return line[6:]


class _UnixOnly(PlainReader):
    def text(self, line: bytes) -> str:
        return line.decode(errors="replace")


class _LineIsEvent(PlainReader):
    def events(self, data: bytes) -> list[str]:
        return super().events(data.replace(b"\n", b"\n\n"))


class _Splitlines(PlainReader):
    def events(self, data: bytes) -> list[str]:
        whole = data[: data.rfind(b"\n") + 1].decode(errors="replace")
        return super().events("".join(line + "\n" for line in whole.splitlines()).encode())


class _NoEnd(PlainReader):
    def feed(self, piece: bytes) -> list[str]:
        self.data += piece
        events = self.events(self.data)
        given, self.num_given = events[self.num_given :], len(events)
        self.done = DONE in events
        return [text for text in given if text != DONE]


KEEP = "Keep what has no end yet as *bytes*, and put the next piece behind it."

EVENT_READER = Contract(
    inputs=draw_stream,
    judge=InLockstep(play, PlainReader),
    passed="Right, whatever the pieces: cut in a line's end, in a character, in `[DONE]`.",
    clauses={
        "new": Clause("`EventReader()` gives no reader."),
        "given before": Clause(
            "A list that was returned before has changed. It belongs to the caller.",
            "Return a new list each time.",
        ),
        "feed": Clause("`feed` returns {got}; expected {expected}.", KEEP),
        "done": Clause(
            "`done` is {got}; expected {expected}.",
            "It becomes True with the empty line behind `data: [DONE]`.",
        ),
    },
    mistakes=(
        mistake("Each piece is read by itself: what is cut in two is lost.", KEEP, _PieceByPiece),
        mistake(
            "A character of several bytes is cut in two, and each half decoded by itself.",
            "Cut the *bytes* into lines, then decode whole lines.",
            _DecodesPieces,
            _Strict,
            _Ignores,
        ),
        mistake(
            "More than one space is taken away, or spaces at the end.",
            "`text.removeprefix(' ')` takes one.",
            _Stripped,
        ),
        mistake(
            "Without a space behind `data:` the line is passed over.",
            "The space is optional.",
            _SpaceNeeded,
        ),
        mistake(
            "The first letter is lost where no space is behind `data:`.",
            "`line[5:].removeprefix(' ')`.",
            _SpaceKept,
        ),
        mistake(
            "Lines that end with `\\r\\n` keep their `\\r`: no line is ever empty.",
            "`line.removesuffix(b'\\r')`.",
            _UnixOnly,
        ),
        mistake(
            "Each `data:` line is an event of its own. An event ends with an empty line.",
            "Collect the texts, and join them at the empty line.",
            _LineIsEvent,
        ),
        mistake(
            "`splitlines` cuts at characters that may stand within a text, such as U+2028.",
            "Cut the bytes at `b'\\n'` alone.",
            _Splitlines,
        ),
        mistake(
            "What comes behind `[DONE]` is no part of the answer.",
            "Once `done` is True, `feed` returns nothing more.",
            _NoEnd,
        ),
    ),
)
