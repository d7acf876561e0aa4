"""Right in any form is right; wrong is told in a sentence."""

from __future__ import annotations

from collections import OrderedDict, defaultdict

import numpy as np
import pytest
import torch

from utils.checks.kit.contracts.differences import alike, difference, shown
from utils.checks.kit.contracts.faults import Fault, Raised

HALF = torch.tensor([1.0, 300.0], dtype=torch.float16)


@pytest.mark.parametrize(
    ("expected", "got"),
    [
        (5, 5.0),
        (5, np.int64(5)),
        (True, np.bool_(True)),
        (0.1, 0.1 + 1e-12),
        (float("nan"), float("nan")),
        (None, None),
        ((1, 2), [1, 2]),
        ({"a": 1}, OrderedDict(a=1)),
        ({"a": [1]}, defaultdict(list, a=[np.int32(1)])),
        ({1, 2}, frozenset({1, 2})),
        (HALF, HALF + torch.tensor([0.001, 0.25], dtype=torch.float16)),
        (torch.tensor([1e4, 0.0]), torch.tensor([1e4, 1e-2])),
        (torch.empty(0, 3), torch.empty(0, 3)),
        (torch.tensor([float("-inf"), 1.0]), torch.tensor([float("-inf"), 1.0])),
        (Raised(ValueError), Raised(ValueError, "in other words")),
    ],
    ids=repr,
)
def test_equal(expected, got):
    assert difference(expected, got) == ""


@pytest.mark.parametrize(
    ("expected", "got", "words"),
    [
        (5, 10, "2 times"),
        (5, "5", "not a str"),
        (5, torch.tensor(5), "not a Tensor"),
        (2**60, 2**60 + 1, "off by 1."),
        (0.5, 0.5001, "off by 0.0001."),
        (5, -5, "wrong sign"),
        (5, None, "`return` missing"),
        (None, 5, "Expected None"),
        (0.1, 0.2, "2 times"),
        ([1, 2], (1, 2), "Expected a list"),
        ([1, 2], [1], "length is 1"),
        ([1, [2, 3]], [1, [2, 4]], "Item 1: Item 1:"),
        ({"a": 1}, {"b": 1}, "keys"),
        ({"a": 1}, {"a": 2}, "Key 'a'"),
        ({1}, [1], "Expected a set"),
        (torch.tensor([1e-6, 2e-6]), torch.tensor([1e-6, 2.1e-6]), "first at index [1]"),
        (torch.zeros(2), torch.zeros(2, 1), "shape is (2, 1)"),
        (torch.zeros(2), torch.zeros(2).double(), "dtype is torch.float64"),
        (torch.zeros(2), torch.tensor([0.0, float("nan")]), "NaN"),
        (torch.arange(3), torch.tensor([0, 1, 3]), "first at index [2]"),
        (torch.tensor([2**60]), torch.tensor([2**60 + 1]), "wrong"),
        ("text", "texts", "value is wrong"),
    ],
    ids=repr,
)
def test_different(expected, got, words):
    assert words in difference(expected, got)


def test_faults_are_alike_if_they_show_the_same():
    fault = Fault("returns", "", 1.0, torch.tensor([1.0, 2.0]))
    assert alike(fault, Fault("returns", "", 9.0, torch.tensor([1.0, 2.0001]), "other words"))
    assert not alike(fault, Fault("returns", "", 1.0, torch.tensor([1.0, 2.1])))
    assert not alike(fault, Fault("changes", "", 1.0, torch.tensor([1.0, 2.0])))
    assert not alike(fault, Fault("returns", "step 2", 1.0, torch.tensor([1.0, 2.0])))
    assert not alike(fault, None) and alike(None, None)


def test_values_in_words():
    assert shown(torch.tensor([[1e-6, 2.0]])) == "`[[1e-06, 2]]` (shape (1, 2), float32)"
    large = torch.zeros(3, 7)
    other = large.clone()
    other[1, 2] = 5
    assert shown(other, large) == "`5` at index [1, 2] (shape (3, 7), float32)"
    assert shown(large) == "shape (3, 7), float32"
    assert shown(Raised(KeyError)) == "KeyError" and shown([1]) == "`[1]`"
