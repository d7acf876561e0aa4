"""Code that uses its device is told from code that does not, on a machine without a GPU."""

from __future__ import annotations

import pytest
import torch

from utils.checks.kit.contracts.pretended_device import PRETENDED, PretendedDevice

USES = [
    lambda x, d: torch.empty(3, device=d),
    lambda x, d: torch.zeros(3).to(d),
    lambda x, d: torch.zeros(3).to(device=d, dtype=torch.float64),
    lambda x, d: torch.zeros(3).cuda(),
    lambda x, d: torch.zeros(3).cuda(0),
    lambda x, d: torch.zeros(3).to(x),
    lambda x, d: torch.zeros(3).to(d, torch.float64, non_blocking=True),
    lambda x, d: torch.zeros_like(x),
    lambda x, d: x.new_zeros(3),
    lambda x, d: x[1:].clone().t(),
    lambda x, d: torch.cat((x, x)),
    lambda x, d: torch.arange(3, device=x.device),
    lambda x, d: torch.stack((x, x)).half().unbind()[1],
    lambda x, d: torch.tensor([1, 2], device="cuda"),
]
IGNORES = [
    lambda x, d: torch.empty(3),
    lambda x, d: torch.zeros(3, device="cpu"),
    lambda x, d: x.to("cpu") + 1,
    lambda x, d: x.cpu(),
    lambda x, d: x.to(torch.float64, copy=True).to(device="cpu"),
    lambda x, d: torch.tensor(x.tolist()),
    lambda x, d: torch.zeros_like(x, device="cpu"),
]


@pytest.mark.parametrize(
    ("make", "there"), [(m, True) for m in USES] + [(m, False) for m in IGNORES]
)
def test_where_a_tensor_lies(make, there):
    with PretendedDevice() as device:
        given = device.mark(torch.ones(3))
        made = make(given, PRETENDED)
        assert given.device == PRETENDED
    assert device.holds(made) == there


def test_numbers_are_real():
    with PretendedDevice():
        assert (torch.full((2,), 3.0, device="cuda") * 2).tolist() == [6.0, 6.0]
