"""What the calibration benchmark does with the statistics of nested sizes."""

from __future__ import annotations

import torch

from benchmarks.calibration import added
from utils.quant import SAME_INPUT, InputStats


def layer_stats(seed: int, tokens: int) -> dict[str, InputStats]:
    stats: dict[str, InputStats] = {}
    for names in SAME_INPUT:
        x = torch.randn(tokens, 4, generator=torch.Generator().manual_seed(seed))
        stats |= dict.fromkeys(names, InputStats.of(x))
    return stats


def test_statistics_of_the_first_windows_are_reused() -> None:
    first, second = [layer_stats(0, 5), layer_stats(1, 5)], [layer_stats(2, 7), layer_stats(3, 7)]
    assert added(None, first) is first
    both = added(first, second)
    assert len(both) == 2
    for place in range(2):
        for name, stats in both[place].items():
            assert stats.num_tokens == 12
            wanted = (5 * first[place][name].hessian + 7 * second[place][name].hessian) / 12
            torch.testing.assert_close(stats.hessian, wanted)
    q, k = (both[0][f"self_attn.{name}_proj"] for name in ("q", "k"))
    assert q is k  # the same input, summed up once
