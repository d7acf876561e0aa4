"""Collectives on four real processes: against sums made here, and against gloo's."""

from __future__ import annotations

import math

import pytest
import torch
import torch.distributed as dist

from utils.engine.distributed.collectives import (
    library_all_reduce,
    ring_all_gather,
    ring_all_reduce,
    ring_reduce_scatter,
)
from utils.engine.distributed.parallel_state import GroupCoordinator, initialize_model_parallel

SHAPES = [(), (1,), (3,), (4,), (7,), (64,), (5, 9), (2, 3, 4), (1000,), (0,)]


def numbers(rank: int, shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """What this rank brings: different on each, the same in each process."""
    generator = torch.Generator().manual_seed(1000 * rank + math.prod(shape))
    return torch.randn(shape, generator=generator).to(dtype)


def test_ring_all_reduce_adds_everything_up_and_all_have_the_same_bits(four_ranks):
    def run():
        group = GroupCoordinator()
        results = []
        for shape in SHAPES:
            before = numbers(group.rank, shape)
            kept = before.clone()
            group.sent_bytes.clear()
            total = ring_all_reduce(group, before)
            library = library_all_reduce(group, before)
            assert torch.equal(before, kept)
            results.append((total, library, group.sent_bytes.total()))
        return results

    answers = four_ranks.call(run)
    for i, shape in enumerate(SHAPES):
        want = sum(numbers(rank, shape) for rank in range(4))
        for total, library, _ in (answer[i] for answer in answers):
            assert total.shape == torch.Size(shape)
            torch.testing.assert_close(total, want)
            torch.testing.assert_close(library, want)
            assert torch.equal(total, answers[0][i][0])  # the same bits everywhere
        # Everybody together sends 2 (N - 1) times the tensor; where it divides, all send as much.
        sent = [answer[i][2] for answer in answers]
        assert sum(sent) == 2 * 3 * math.prod(shape) * 4
        if math.prod(shape) % 4 == 0:
            assert len(set(sent)) == 1


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.int64, torch.float64])
def test_ring_all_reduce_in_other_dtypes(four_ranks, dtype):
    def run():
        return ring_all_reduce(GroupCoordinator(), numbers(dist.get_rank(), (37,), dtype))

    want = sum(numbers(rank, (37,), dtype).double() for rank in range(4))
    for total in four_ranks.call(run):
        assert total.dtype == dtype
        torch.testing.assert_close(total.double(), want, rtol=2e-2, atol=2e-2)


def test_reduce_scatter_and_all_gather_are_its_two_halves(four_ranks):
    sizes = [3, 0, 5, 1]

    def run():
        group = GroupCoordinator()
        mine = [numbers(group.rank * 10 + i, (size,)) for i, size in enumerate(sizes)]
        own = ring_reduce_scatter(group, mine)
        return own, ring_all_gather(group, own, mine)

    answers = four_ranks.call(run)
    want = [sum(numbers(r * 10 + i, (size,)) for r in range(4)) for i, size in enumerate(sizes)]
    for rank, (own, everything) in enumerate(answers):
        torch.testing.assert_close(own, want[rank])
        for part, expected in zip(everything, want, strict=True):
            torch.testing.assert_close(part, expected)


def test_all_gather_gather_and_all_to_all(four_ranks):
    sizes = [2, 1, 3, 0]

    def run():
        group = GroupCoordinator()
        me = group.rank_in_group
        gathered = group.gather(torch.full((2, sizes[me]), float(me)), sizes)
        everywhere = group.all_gather(torch.full((2, 1), me), dim=1)
        # Rank r sends `r + s` rows to rank s; each row says where it comes from and goes to.
        outgoing = [torch.tensor([me, s]).expand(me + s, 2) for s in range(4)]
        counts = torch.tensor([[len(rows), 10 * me + s] for s, rows in enumerate(outgoing)])
        theirs = group.exchange_counts(counts)
        arrived = group.all_to_all(outgoing, theirs[:, 0].tolist())
        return gathered, everywhere, theirs, arrived, dict(group.sent_bytes)

    answers = four_ranks.call(run)
    want = torch.tensor([[0, 0, 1, 2, 2, 2]] * 2).float()
    assert torch.equal(answers[0][0], want)
    assert [answer[0] for answer in answers[1:]] == [None] * 3
    for me, (_, everywhere, theirs, arrived, sent) in enumerate(answers):
        assert everywhere.tolist() == [[0, 1, 2, 3]] * 2
        assert theirs.tolist() == [[r + me, 10 * r + me] for r in range(4)]
        assert [rows.tolist() for rows in arrived] == [[[r, me]] * (r + me) for r in range(4)]
        others = [s for s in range(4) if s != me]
        assert sent["all_to_all"] == sum(me + s for s in others) * 2 * 8
        assert sent["counts"] == 3 * 2 * 8
        assert sent["gather" if me else "none"] == 2 * sizes[me] * 4 if me else "gather" not in sent


@pytest.mark.parametrize(
    ("tp", "pp", "groups"),
    [
        (2, 2, {"tp": [[0, 1], [2, 3]], "pp": [[0, 2], [1, 3]], "ep": [[0], [1], [2], [3]]}),
        (2, 1, {"tp": [[0, 1], [2, 3]], "pp": [[0], [1], [2], [3]], "ep": [[0, 2], [1, 3]]}),
        (1, 1, {"tp": [[0], [1], [2], [3]], "pp": [[0], [1], [2], [3]], "ep": [[0, 1, 2, 3]]}),
    ],
)
def test_the_world_is_divided_as_in_vllm(four_ranks, tp, pp, groups):
    def run():
        state = initialize_model_parallel(tp, pp)
        return {name: getattr(state, name).ranks for name in ("tp", "pp", "ep")}

    for rank, mine in enumerate(four_ranks.call(run)):
        for name, ranks in mine.items():
            assert ranks in groups[name] and rank in ranks


def test_a_world_that_does_not_divide_is_refused(four_ranks):
    def run():
        with pytest.raises(ValueError, match="4 ranks cannot be divided into groups of 3 times 1"):
            initialize_model_parallel(3)

    four_ranks.call(run)
