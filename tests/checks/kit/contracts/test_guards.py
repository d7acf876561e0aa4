"""Arguments are copies of their own kind; changes and shared memory are seen; state is put back."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from utils.checks.kit.contracts.guards import (
    Once,
    as_at_first,
    copied,
    held_output,
    same,
    share_memory,
)


@dataclass
class Request:
    name: str
    tokens: list[int]


class Plain:
    def __init__(self):
        self.inside = [1, 2]


VALUES = [
    3,
    "text",
    None,
    [1, [2, 3]],
    (1, {2}),
    {"a": [1]},
    torch.arange(6).view(2, 3).t(),
    torch.tensor([1.0, float("nan")]),
    Request("A", [1]),
    Plain(),
]


@pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)
def test_a_copy_is_the_same_and_shares_nothing(value):
    copy = copied(value)
    assert type(copy) is type(value)
    assert same(value, copy)
    assert not share_memory(value, copy)


def test_a_copy_keeps_layout_and_gradient():
    tensor = torch.randn(3, 4).t().requires_grad_()
    assert copied(tensor).stride() == tensor.stride()
    assert copied(tensor).requires_grad


def test_an_argument_for_one_walk_arrives_as_an_iterator():
    walk = copied(Once([1, 2]))
    assert (list(walk), list(walk)) == ([1, 2], [])
    assert same(Once([1, 2]), walk)


@pytest.mark.parametrize(
    ("value", "change"),
    [
        ([1, [2]], lambda v: v[1].append(3)),
        ({"a": 1, "b": 2}, lambda v: v.update(a=v.pop("a"))),
        (torch.zeros(3), lambda v: v.add_(1e-9)),
        (Request("A", [1]), lambda v: v.tokens.clear()),
        (Plain(), lambda v: v.inside.append(3)),
    ],
    ids=["list", "order of a dict", "tensor", "dataclass", "object"],
)
def test_each_change_is_seen(value, change):
    copy = copied(value)
    change(copy)
    assert not same(value, copy)


def test_shared_memory_is_seen_through_views_and_containers():
    tensor, numbers = torch.zeros(4), [1, 2]
    assert share_memory({"a": tensor[1:]}, [tensor])
    assert share_memory((0, numbers), {"b": numbers})
    assert not share_memory([tensor.clone()], [tensor])


def test_class_bodies_and_defaults_are_put_back():
    class Counts:
        seen: list[int] = []  # noqa: RUF012

    def remembers(x, seen=[]):  # noqa: B006
        seen.append(x)
        return len(seen)

    for _ in range(2):
        as_at_first(Counts).seen.append(1)
        assert Counts.seen == [1]
        assert as_at_first(remembers)(1) == 1
    assert as_at_first(None) is None


def test_what_cannot_be_copied_stays():
    class Locked:
        locks: dict[str, Any] = {"one": threading.Lock()}  # noqa: RUF012

    lock = Locked.locks["one"]
    assert as_at_first(Locked).locks["one"] is lock


def test_what_is_printed_is_held_back_and_its_beginning_kept(capsys):
    with held_output() as held:
        for number in range(1000):
            print(number)
    assert capsys.readouterr().out == ""
    assert held.shown().startswith("0\n1\n2") and held.shown().endswith("7 ...")
    with held_output() as held:
        print("one line")
    assert held.shown() == "one line"


class Slotted:
    __slots__ = ()


def test_objects_that_were_not_copied_are_not_the_same_because_they_look_alike():
    one, other = Slotted(), Slotted()
    assert same([one, other], copied([one, other], objects=False), objects=False)
    assert not same([one, other], [other, one], objects=False)
