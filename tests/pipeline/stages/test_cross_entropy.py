"""The loss taken a few rows at a time is the plain one, and so is its gradient."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from utils.pipeline.stages import cross_entropy
from utils.pipeline.stages.cross_entropy import soft_cross_entropy


@pytest.fixture(autouse=True)
def several_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cross_entropy, "ROWS", 4)  # of 10 rows: the last piece is short


def rows() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(10, 6, generator=generator, requires_grad=True)
    return hidden, torch.randn(20, 6, generator=generator)


def gradient_of(loss: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
    return torch.autograd.grad(3 * loss, hidden)[0]


def test_against_distributions() -> None:
    hidden, head = rows()
    top = torch.randn(10, 20).softmax(-1).topk(5)
    probs = top.values / top.values.sum(-1, keepdim=True)
    loss = soft_cross_entropy(hidden, head, top.indices, probs)
    expected = F.cross_entropy(hidden @ head.T, torch.zeros(10, 20).scatter(1, top.indices, probs))
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(gradient_of(loss, hidden), gradient_of(expected, hidden))


def test_rows_that_do_not_count() -> None:
    hidden, head = rows()
    targets = torch.tensor([3, -100, 5, 0, 19, -100, -100, -100, 2, 2])
    ids, probs = targets.clamp(min=0)[:, None], (targets >= 0).float()[:, None]
    loss = soft_cross_entropy(hidden, head, ids, probs)
    expected = F.cross_entropy(hidden @ head.T, targets)
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(gradient_of(loss, hidden), gradient_of(expected, hidden))


def test_without_a_gradient_the_loss_is_the_same() -> None:
    hidden, head = rows()
    ids, probs = torch.arange(10)[:, None], torch.ones(10, 1)
    with torch.no_grad():
        plain = soft_cross_entropy(hidden, head, ids, probs)
    torch.testing.assert_close(plain, soft_cross_entropy(hidden, head, ids, probs).detach())


def test_a_head_that_is_to_be_trained_is_refused() -> None:
    hidden, head = rows()
    with pytest.raises(ValueError, match="must be frozen"):
        soft_cross_entropy(
            hidden, head.requires_grad_(), torch.zeros(10, 1).long(), torch.ones(10, 1)
        )
