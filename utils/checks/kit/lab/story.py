"""Plays written as a class: what is drawn, what is done, what is looked at after each step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from utils.checks.kit.contracts import Choices, InLockstep, Raised, Stage


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
            story = cls(stage, told.setting)
            story.start(answer)
            for kind, arguments in told.steps:
                getattr(story, f"do_{kind}")(*arguments)
            story.end()

        return InLockstep(play, right)

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

    def end(self) -> None:
        """What is done, and looked at, after the last step."""


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
