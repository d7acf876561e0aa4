"""Every kind of widget can be walked through: what is recorded is what its steps show."""

from __future__ import annotations

import asyncio
import json
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.viz.serving.test_dashboard import StandIn
from tools.frames import walk
from tools.frames.plans import Grid, Guesses, Loads, NextTokens, Texts
from utils.viz.model.next_token import NextTokenWidget
from utils.viz.serving.dashboard import Dashboard
from utils.viz.spec_decode.guess_stepper import GuessStep, GuessStepper


class Letters:
    """A tokenizer: each token is a letter of the alphabet."""

    def decode(self, ids: list[int]) -> str:
        return "".join(chr(ord("a") + i) for i in ids)


def recorded(widget: Any, plan: object, folder: Path, monkeypatch: Any) -> dict[str, Any]:
    """What is in the file, its pictures by name beside it."""
    monkeypatch.setitem(walk.PLANS, "a_lesson", plan)
    asyncio.run(walk.record_widget(widget, "a_lesson", folder / "a.zip"))
    with zipfile.ZipFile(folder / "a.zip") as file:
        found = json.loads(file.read("states.json"))
        found["pictures"] = {n: file.read(n) for n in file.namelist() if n.endswith(".webp")}
    return found


def test_guesses_are_walked_step_by_step(tmp_path: Path, monkeypatch: Any) -> None:
    runs = {
        "long": [GuessStep([0], [1, 2], [1, 2, 3]), GuessStep([0, 1, 2, 3], [4, 5], [4, 6])],
        "short": [GuessStep([0], [], [1])],
    }
    widget = GuessStepper(runs, Letters())  # type: ignore[arg-type]
    found = recorded(widget, Guesses(), tmp_path, monkeypatch)
    assert [axis["values"] for axis in found["axes"]] == [["long", "short"], ["1", "2"]]
    words = [found["frames"][i]["words"] for i in found["index"]]
    assert words[0].startswith("Step 1 of 2: 2 guessed, 2 accepted, 3 tokens gained.")
    assert words[1].startswith("Step 2 of 2: 2 guessed, 1 accepted, 2 tokens gained.")
    assert words[2] == words[3] and words[2].startswith("Step 1 of 1: 0 guessed")
    assert words[1].endswith("So far 5 tokens in 2 passes.")
    shown = [found["frames"][i]["html"] for i in found["index"]]
    assert ">g</span>" in shown[1] and ">g</span>" not in shown[0]


def test_bars_are_chosen_and_the_start_is_warmed(
    tmp_path: Path, monkeypatch: Any, tokenizer: Any
) -> None:
    scores = torch.arange(len(tokenizer)).float() / 1e3
    widget = NextTokenWidget(lambda ids: scores.roll(ids[-1]).softmax(dim=-1), tokenizer, "The")
    plan = NextTokens(choices=1, depth=2, temperatures=(0.5, 2.0))
    found = recorded(widget, plan, tmp_path, monkeypatch)
    assert found["buttons"] == ["Bar 1", "Temperature 0.5", "Temperature 2", "Start again"]
    again, cold, hot = [0, ""], [3, ""], [4, ""]
    assert found["edges"] == [
        [[1, ""], cold, hot, again],
        [[2, ""], None, None, again],
        [None, None, None, again],
        [None, cold, hot, again],
        [None, cold, hot, again],
    ]
    words = [found["frames"][i]["words"] for i in found["index"]]
    assert ["At temperature" in text for text in words] == [False] * 3 + [True] * 2


def test_a_dashboard_is_put_under_each_load(tmp_path: Path, monkeypatch: Any) -> None:
    server = StandIn()
    widget = Dashboard(server.read, server.load, interval=0.05)
    found = recorded(widget, Loads((2, 8), moments=2), tmp_path, monkeypatch)
    users, moments = found["axes"]
    assert users["values"] == ["2", "8"] and moments["values"] == ["1 of 2", "2 of 2"]
    assert (users["start"], moments["start"]) == (1, 1)
    words = [found["frames"][i]["words"] for i in found["index"]]
    assert words[0].startswith("2 users, after") and words[2].startswith("8 users, after")
    assert "0 running" in words[1] and "0 running" in words[3]  # the load has ended
    assert len(found["pictures"]) == 4


def test_a_load_that_fails_is_no_recording(tmp_path: Path, monkeypatch: Any) -> None:
    async def fails(users: int) -> None:
        raise OSError("nobody answers")

    widget = Dashboard(StandIn().read, fails, interval=0.05)
    with pytest.raises(OSError, match="nobody answers"):
        recorded(widget, Loads((1,), moments=1), tmp_path, monkeypatch)
    assert not (tmp_path / "a.zip").exists()


@pytest.mark.parametrize("plan", [Grid(), Texts(("a",))])
def test_a_plan_for_another_widget_is_refused(
    plan: object, tmp_path: Path, monkeypatch: Any
) -> None:
    widget = GuessStepper({"a": [GuessStep([0], [], [1])]}, Letters())  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="does not say how to record a GuessStepper"):
        recorded(widget, plan, tmp_path, monkeypatch)
