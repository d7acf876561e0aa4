"""Walks through a widget's states. Runs in the lesson's kernel, beside what the widget needs."""

from __future__ import annotations

import html
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ipywidgets

from tools.frames.plans import PLANS, Grid, Guesses, Loads, NextTokens, Prompts, Texts
from tools.frames.states import NoTitle, Recording, Shown, record_grid
from utils.viz.explore import Explorer
from utils.viz.memory.prefix_blocks_widget import PrefixBlocksWidget
from utils.viz.model.next_token import NextTokenWidget
from utils.viz.model.tokens import TokenViewer
from utils.viz.serving.dashboard import Dashboard, plot_dashboard
from utils.viz.spec_decode.guess_stepper import GuessStepper


async def record_widget(widget: Any, lesson: str, path: Path | str) -> None:
    """Record a lesson's widget as planned, into a file.

    Raises:
        TypeError: the plan is for another kind of widget.
    """
    plan = PLANS[lesson]
    if isinstance(plan, Loads) and isinstance(widget, Dashboard):
        recording = await record_dashboard(widget, plan)
    else:
        recorders: list[tuple[type, type, Callable[[Any, Any], Recording]]] = [
            (Grid, Explorer, record_explorer),
            (Texts, TokenViewer, record_tokens),
            (NextTokens, NextTokenWidget, record_next_tokens),
            (Guesses, GuessStepper, record_guesses),
            (Prompts, PrefixBlocksWidget, record_prompts),
        ]
        for planned, shown, record in recorders:
            if isinstance(plan, planned) and isinstance(widget, shown):
                recording = record(widget, plan)
                break
        else:
            raise TypeError(f"{plan} does not say how to record a {type(widget).__name__}.")
    recording.save(Path(path))


def record_explorer(widget: Explorer, plan: Grid) -> Recording:
    """A figure for each combination. An error is what the page says, as the widget does."""

    def show(**values: Any) -> Shown:
        try:
            return Shown.of(widget.draw(**values))
        except NoTitle:
            raise
        except Exception as error:
            return Shown(str(error))

    return record_grid(widget.controls, show, plan.values)


def record_tokens(widget: TokenViewer, plan: Texts) -> Recording:
    """The tokens of each text; a select box takes the field's place."""
    names = {text: " ⏎ ".join(line.strip() for line in text.split("\n")) for text in plan.examples}
    choice = ipywidgets.Dropdown(
        options=[(name, text) for text, name in names.items()],
        value=widget.field.value,
        description="text",
    )

    def show(text: str) -> Shown:
        widget.field.value = text
        words = re.search(r"\d+ tokens? for \d+ characters", widget.view.value)
        return Shown(words[0] + "." if words else "", html=widget.view.value)

    return record_grid({"text": choice}, show)


def record_next_tokens(widget: NextTokenWidget, plan: NextTokens) -> Recording:
    """All texts that come of choosing among the first bars, again and again."""
    names = [f"Bar {number + 1}" for number in range(plan.choices)]
    names += [f"Temperature {temperature:g}" for temperature in plan.temperatures]
    recording = Recording("graph", buttons=[*names, "Start again"])

    def frame_after(taken: tuple[int, ...]) -> int:
        widget.start_again()
        for number in taken:
            widget.take(number)
        return recording.add(Shown.of(widget.draw()))

    states: list[tuple[int, ...]] = [()]
    recording.index.append(frame_after(()))
    for state in states:  # which grows meanwhile
        edges: list[tuple[int, str] | None] = [None] * len(names)
        for number in range(plan.choices if len(state) < plan.depth else 0):
            edges[number] = (len(states), "")
            states.append((*state, number))
            recording.index.append(frame_after(states[-1]))
        recording.edges.append([*edges, (0, "")])
    warmer: list[tuple[int, str] | None] = []
    for temperature in plan.temperatures:
        warmer.append((len(recording.index), ""))
        widget.temperature.value = temperature
        recording.index.append(frame_after(()))
    widget.temperature.value = 1.0
    recording.edges[0][plan.choices : -1] = warmer
    for _ in plan.temperatures:
        recording.edges.append([*[None] * plan.choices, *warmer, (0, "")])
    return recording


def record_guesses(widget: GuessStepper, plan: Guesses) -> Recording:
    """Each step of each run. A shorter run stays at its last step."""
    longest = 0
    start = widget.run.value, widget.step.value
    for name in widget.run.options:
        widget.run.value = name
        longest = max(longest, widget.step.max)
    widget.run.value, widget.step.value = start
    slider = ipywidgets.IntSlider(start[1], min=1, max=longest, description="step")
    choice = ipywidgets.Dropdown(options=widget.run.options, value=start[0], description="guesser")

    def show(run: str, step: int) -> Shown:
        widget.run.value = run
        widget.step.value = min(step, widget.step.max)
        said = re.search(r"<b>(.*?)</b>(.*?)<hr>", widget.view.value)
        words = html.unescape(" ".join("".join(said.groups()).split())) if said else ""
        return Shown(words, html=widget.view.value)

    return record_grid({"run": choice, "step": slider}, show)


def record_prompts(widget: PrefixBlocksWidget, plan: Prompts) -> Recording:
    """All that comes of some buttons, pressed one after another."""
    examples = [widget.examples.options[i] for i in plan.examples]
    widget.examples.options = examples
    buttons = [f"Send “{text}”" for text in examples] + ["Finish the oldest"]

    def press(history: tuple[int, ...]) -> tuple[str, bool, int]:
        """After these buttons: what is said, whether the last one was in vain, the frame."""
        said = widget.start_again()
        for button in history:
            if button < len(examples):
                widget.prompt.value = examples[button]
            try:
                said = (widget.send_prompt if button < len(examples) else widget.finish_oldest)()
            except ValueError as error:
                return str(error), True, 0
        return said, False, recording.add(Shown.of(widget.draw()))

    recording = Recording("graph", buttons=[*buttons, "Start again"])
    states: list[tuple[int, ...]] = [()]
    empty, _, frame = press(())
    recording.index.append(frame)
    for state, history in enumerate(states):  # which grows meanwhile
        edges: list[tuple[int, str] | None] = [None] * len(buttons)
        for button in range(len(buttons) if len(history) < plan.depth else 0):
            said, in_vain, frame = press((*history, button))
            if in_vain:
                edges[button] = (state, said)
                continue
            edges[button] = (len(states), said)
            states.append((*history, button))
            recording.index.append(frame)
        recording.edges.append([*edges, (0, empty)])
    recording.start, recording.said = 1, press((0,))[0]  # the lesson shows it with one prompt sent
    return recording


async def record_dashboard(widget: Dashboard, plan: Loads) -> Recording:
    """A run for each number of users; each is shown until several moments."""
    runs: dict[int, list[Any]] = {}
    for users in plan.users:
        if users == widget.users.value and widget.points:
            runs[users] = widget.points  # the lesson's own
            continue
        widget.users.value = users
        await widget.watch()
        if widget.error is not None:
            raise widget.error
        runs[users] = widget.points
    first = 8 if 8 in runs else plan.users[0]
    controls = {
        "users": ipywidgets.SelectionSlider(options=plan.users, value=first, description="users"),
        "part": ipywidgets.SelectionSlider(
            options=[f"{n} of {plan.moments}" for n in range(1, plan.moments + 1)],
            value=f"{plan.moments} of {plan.moments}",
            description="moment",
        ),
    }

    def show(users: int, part: str) -> Shown:
        points = runs[users]
        upto = points[: max(1, round(len(points) * int(part.split()[0]) / plan.moments))]
        last = upto[-1]
        words = (
            f"{users} user{'s' * (users > 1)}, after {last.time:.1f} s: "
            f"{last.running:.0f} running, {last.waiting:.0f} waiting, "
            f"{last.tokens_per_second:.0f} tokens per second."
        )
        shown = Shown.of(plot_dashboard(upto))
        return Shown(words, shown.alt, shown.picture)

    return record_grid(controls, show)
