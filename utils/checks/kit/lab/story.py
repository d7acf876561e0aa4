"""Plays written as a class: what is drawn, what is done, what is looked at after each step."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from utils.checks.kit.contracts import Choices, Fault, InLockstep, Raised, Stage
from utils.checks.kit.contracts.plays import Over, Seen
from utils.checks.kit.patience import TICKS, patience_of

Events = Callable[[Stage, Any, Any], Iterator[None]]  # a play that stops after each event


@dataclass(frozen=True)
class Told:
    """A story as it was drawn: the setting, the steps with their arguments, and words for it."""

    setting: Any
    steps: tuple[tuple[str, tuple[Any, ...]], ...]
    words: str

    def __str__(self) -> str:
        return self.words


class Story:
    """A story of a class. A subclass draws the setting, makes the objects in `start`, and has for
    each kind of step a method `draw_KIND(c, setting)`, which returns its arguments, and a method
    `do_KIND(*arguments)`, which takes the step on `self.stage`. The kit draws the steps, and takes
    them on the right class, then on the learner's.
    """

    kinds: Sequence[str] = ()  # of steps, the simplest first; a likely one may stand there twice
    most = 10  # steps

    def __init__(self, stage: Stage, setting: Any) -> None:
        self.stage, self.setting = stage, setting

    @classmethod
    def draw(cls, c: Choices) -> Told:
        """One story."""
        setting = cls.draw_setting(c)

        def step() -> tuple[str, tuple[Any, ...]]:
            kind = c.pick(cls.kinds)
            return kind, tuple(getattr(cls, f"draw_{kind}")(c, setting))

        return Told(setting, tuple(c.some(step, 0, cls.longest(setting))), cls.tell(setting))

    @classmethod
    def judge(cls, right: Any) -> InLockstep:
        """An answer must show in each story what `right` shows."""

        def play(stage: Stage, answer: Any, told: Told) -> None:
            for _ in cls.events(stage, answer, told):
                pass

        return InLockstep(play, right)

    @classmethod
    def events(cls, stage: Stage, answer: Any, told: Told) -> Iterator[None]:
        """The story, with a stop after each event."""
        story = cls(stage, told.setting)
        story.start(answer)
        yield
        for kind, arguments in told.steps:
            getattr(story, f"do_{kind}")(*arguments)
            yield
        yield from story.end() or ()

    @classmethod
    def longest(cls, setting: Any) -> int:
        """The most steps that a story with this setting has."""
        return cls.most

    def see(self, clause: str, got: Any, instead: Any = "no error") -> Any:
        """Show an error, or `instead` of a value that says nothing by itself. Returns `got`."""
        self.stage.see(clause, got if isinstance(got, Raised) else instead)
        return got

    @classmethod
    def draw_setting(cls, c: Choices) -> Any:
        """What doesn't change in a story."""
        raise NotImplementedError

    @classmethod
    def tell(cls, setting: Any) -> str:
        """The setting in words."""
        return str(setting)

    def start(self, answer: Any) -> None:
        """Make what the steps are taken on."""
        raise NotImplementedError

    def end(self) -> Iterator[None] | None:
        """What is done, and looked at, after the last step. If that is long, stop in between."""
        return None


class LinedStory(Story):
    """A story that the feedback tells call by call, one below the other, under its setting."""

    def __init__(self, stage: Stage, setting: Any) -> None:
        super().__init__(stage, setting)
        self.lines: list[str] = []
        self.say(self.tell(setting))

    @classmethod
    def draw(cls, c: Choices) -> Told:
        """One story. The setting is its first line, so it isn't told besides."""
        return replace(super().draw(c), words="")

    def say(self, line: str) -> None:
        """The next call, in a line of its own."""
        self.lines.append(line)
        self.stage.now("\n".join(self.lines))


class Script(list[Seen]):
    """What a right class shows in a play. No event is played before it is needed."""

    def __init__(self, events: Callable[[Stage], Iterator[None]]) -> None:
        super().__init__()
        stage = Stage()
        stage.seen = self
        self._events, self._num_played = events(stage), 0

    def play_to(self, number: int) -> bool:
        """Play the first `number` events. Returns whether there are as many."""
        with patience_of(TICKS):  # a right class isn't hurried
            while self._num_played < number:
                if next(self._events, Over) is Over:
                    return False
                self._num_played += 1
        return True


class InStep(InLockstep):
    """As `InLockstep`, event by event: the right class goes no further than the answer does.

    For plays that cost much: most wrong answers part from the right class early.
    """

    costs_much = True

    def __init__(self, events: Events, right: Any) -> None:
        super().__init__(lambda *_: None, right)
        self._events = events

    def expect(self, case: Any) -> Script:
        return Script(lambda stage: self._events(stage, self._right, case))

    def _played(self, answer: Any, case: Any, expected: list[Seen]) -> Fault | None:
        assert isinstance(expected, Script)
        stage, number, goes_on = Stage(expected), 0, True
        events = self._events(stage, answer, case)
        while goes_on:
            number, goes_on = number + 1, False
            expected.play_to(number)
            with contextlib.suppress(Over, StopIteration):
                next(events)
                goes_on = True
        while stage.fault is None and len(expected) == len(stage.seen):
            if not expected.play_to(number):
                break
            number += 1
        if stage.fault is None:
            with contextlib.suppress(Over):
                stage.end()
        return stage.fault
