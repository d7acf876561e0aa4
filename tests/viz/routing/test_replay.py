"""The map of replicas and blocks shows what the simulator did, and its widget works."""

from __future__ import annotations

import matplotlib.pyplot as plt
import pytest

from utils.viz.routing.replay import CACHES, LOADS, plot_step, replays, routing_explorer


@pytest.fixture(scope="module")
def runs():  # type: ignore[no-untyped-def]
    return replays(LOADS["fair load"], CACHES["24 blocks"])


def test_snapshots_hold_what_was_sent(runs) -> None:  # type: ignore[no-untyped-def]
    for run in runs.values():
        assert len(run.snapshots) == len(run.names) == 120
        for number, (snapshot, names) in enumerate(zip(run.snapshots, run.names, strict=True)):
            held = set(snapshot.held[snapshot.chosen])
            assert snapshot.number == number and set(names[:24]) <= held
            assert max(map(len, snapshot.held)) <= 24
            before = run.snapshots[number - 1].held[snapshot.chosen] if number else []
            run_of = next((i for i, n in enumerate(names) if n not in before), len(names))
            assert snapshot.num_found == run_of
            assert snapshot.unfinished[snapshot.chosen] >= 1


def test_policies_differ_as_they_should(runs) -> None:  # type: ignore[no-untyped-def]
    assert [s.chosen for s in runs["round robin"].snapshots[:5]] == [0, 1, 2, 3, 0]
    assert {s.chosen for s in runs["longest prefix"].snapshots} == {0}
    hits = {name: run.figures["hit_rate"] for name, run in runs.items()}
    assert hits["prefix + load (truth)"] > hits["round robin"]


def test_picture_names_the_decision(runs) -> None:  # type: ignore[no-untyped-def]
    figure = plot_step(runs, "round robin", 6)
    snapshot = runs["round robin"].snapshots[5]
    title = figure.axes[0].get_title(loc="left") or figure.axes[0].get_title()
    assert f"goes to replica {snapshot.chosen}, {snapshot.num_found} of" in title
    words = [text.get_text() for axes in figure.axes for text in axes.texts]
    assert "request 6" in words and all(name in words for name in runs)
    assert f"{runs['session'].figures['hit_rate']:.0%}" in words
    plt.close(figure)


def test_the_widget_draws_what_is_chosen() -> None:
    widget = routing_explorer()
    for name, value in (
        ("load", "heavy load"),
        ("size", "24 blocks"),
        ("policy", "longest prefix"),
        ("step", 120),
    ):
        before = widget._image.value
        widget.controls[name].value = value
        assert widget.error is None and widget._image.value != before, name
    assert plt.get_fignums() == []
