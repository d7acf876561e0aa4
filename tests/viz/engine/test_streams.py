"""The picture of streams: what users read is cut into steps, and who waits, gives way or leaves."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import matplotlib.pyplot as plt

from utils.engine.request import RequestStatus
from utils.viz.engine.streams import Streams

Steps = list[dict[str, tuple[int, str | None]]]  # by request: tokens scheduled, text after the step


class PretendedEngine:
    """Does what a script says: each step, by request, how many tokens, and its text so far."""

    def __init__(self, script: Steps) -> None:
        self.script, self.requests = script, {}
        self.scheduler = SimpleNamespace(schedule=self._schedule)
        self.kv_cache_manager = SimpleNamespace(usage=0.5)
        self.config = SimpleNamespace(num_gpu_blocks=8)

    def come(self, name: str) -> None:
        self.requests[name] = SimpleNamespace(status=RequestStatus.WAITING)

    def _schedule(self) -> Any:
        return SimpleNamespace(num_scheduled_tokens={n: c for n, (c, _) in self.script[0].items()})

    def step(self) -> list[Any]:
        self.scheduler.schedule()
        texts = {name: text for name, (_, text) in self.script.pop(0).items()}
        return [
            SimpleNamespace(request_id=name, num_cached_tokens=16, outputs=[answer])
            for name, text in texts.items()
            if text is not None and (answer := SimpleNamespace(text=text))
        ]


def watched(script: Steps, *events: Callable[[PretendedEngine], None]) -> Streams:
    engine = PretendedEngine(script)
    streams = Streams(engine)  # type: ignore[arg-type]
    for event in events:
        event(engine)
        streams.step()
    assert engine.scheduler.schedule == engine._schedule  # given back after each step
    return streams


def test_each_step_shows_what_its_user_reads() -> None:
    def gives_way(engine: PretendedEngine) -> None:
        engine.requests["A"].status = RequestStatus.PREEMPTED

    streams = watched(
        [{"A": (24, None)}, {"A": (3, "The")}, {"A": (1, "The")}, {}, {"B": (5, None)}],
        lambda engine: (engine.come("A"), engine.come("B")),
        lambda engine: None,
        lambda engine: None,
        gives_way,
        lambda engine: engine.requests.pop("A"),
    )
    a, b = streams.cells["A"], streams.cells["B"]
    assert list(a.values()) == [
        ("prompt", "24"),
        ("text", "The"),
        ("held", ""),
        ("gave way", ""),
        ("leaves", ""),
    ]
    assert [kind for kind, _ in b.values()] == ["waits"] * 4 + ["prompt"]
    assert streams.texts == {"A": "The"} and streams.found == {"A": 16}
    assert streams.preempted == ["A"] and streams.blocks == [4] * 5


def test_the_figure_has_a_row_for_each_request_and_a_bar_for_each_step() -> None:
    streams = watched(
        [{"A": (8, "A$\n")}, {"A": (1, "A$\n a very long word")}],
        lambda engine: engine.come("A"),
        lambda engine: None,
    )
    figure = streams.figure("A title")
    figure.canvas.draw()
    ax, below = figure.axes
    assert ax.get_title("left") == "A title" or ax.get_title() == "A title"
    assert [label.get_text() for label in ax.get_yticklabels()] == ["A: 16 found"]
    assert len(below.patches) == 2
    assert [text.get_text() for text in figure.legends[0].get_texts()] == [
        "text that the user reads after this step"
    ]
    plt.close(figure)
