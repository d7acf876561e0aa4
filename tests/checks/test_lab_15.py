"""The checks of lab 15 beyond the bug zoo: the simulated ranks, and oracles against others."""

from __future__ import annotations

import random
import threading

import pytest
import torch

from utils.checks import lab_15
from utils.checks.kit import patience
from utils.checks.kit.contracts import Choices
from utils.checks.kit.contracts.faults import NoEnd, Raised, attempt
from utils.checks.lab_15 import simulated_ranks
from utils.checks.lab_15.messages import BadMessage, Deadlock
from utils.checks.lab_15.simulated_ranks import SimulatedRanks
from utils.distributed.layouts import Layout, Rank
from utils.distributed.shapes import Shape
from utils.distributed.traffic import bubble, bytes_by_operation, pipeline_schedule, step_traffic
from utils.engine.config.model import ModelConfig
from utils.engine.distributed.collectives import ring_all_reduce
from utils.engine.distributed.shard import Shard

# --- simulated ranks -------------------------------------------------------------------------


def test_simulated_ranks_run_the_engines_own_ring() -> None:
    for size in range(1, 6):
        for seed in range(5):
            ranks = SimulatedRanks(size, seed)
            summands = [torch.arange(7.0) * 10**rank for rank in range(size)]
            for total in ranks.run(ring_all_reduce, [(x,) for x in summands]):
                assert torch.equal(total, sum(summands))
            assert sum(g.sent_bytes["send"] for g in ranks.groups) == 2 * (size - 1) * 7 * 4


def test_a_deadlock_is_seen_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the ranks themselves: the waiting main thread never has to look whether they go on."""
    before = set(threading.enumerate())
    monkeypatch.setattr(simulated_ranks, "PAUSE_S", 3600)
    # A deadlock that is not seen would last for ever; patience ends it after a minute.
    monkeypatch.setattr(patience, "WAITING_S", 60 / patience.TICKS)
    monkeypatch.setattr(patience, "COMPUTING_S", 60 / patience.TICKS)

    def all_send_first(group) -> None:
        group.send(torch.ones(2), (group.rank_in_group + 1) % group.world_size)

    def one_leaves(group) -> None:
        if group.rank_in_group:
            group.recv(torch.empty(1), 0)

    with (
        pytest.raises(Deadlock, match="rank 0 waits to send to rank 1, rank 1 waits to send to"),
        patience.limit(),
    ):
        SimulatedRanks(3).run(all_send_first, [()] * 3)
    with (
        pytest.raises(Deadlock, match="rank 1 waits to receive from rank 0; rank 0 has returned"),
        patience.limit(),
    ):
        SimulatedRanks(2).run(one_leaves, [()] * 2)
    ranks = [t for t in threading.enumerate() if t.name.startswith("rank-") and t not in before]
    for thread in ranks:  # the last one may be about to end
        thread.join(timeout=60)
    assert not any(thread.is_alive() for thread in ranks)  # nobody is left behind


@pytest.mark.parametrize(
    ("numbers", "buffer", "destination", "words"),
    [
        (torch.ones(3), torch.empty(4), 1, "sends 3 numbers .float32., and rank 1 expects 4"),
        (torch.ones(3), torch.empty(3, dtype=torch.int64), 1, "expects 3 .int64."),
        (torch.ones(3), None, 1, "that nobody receives"),
        (torch.ones(3), None, 0, "must be another one"),
        (torch.ones(3), None, 2, "of 2 ranks"),
    ],
)
def test_messages_that_do_not_fit(numbers, buffer, destination, words) -> None:
    def talk(group) -> None:
        if group.rank_in_group == 0:
            group.isend(numbers, destination)
        elif buffer is not None:
            group.irecv(buffer, 0)

    with pytest.raises(BadMessage, match=words):
        SimulatedRanks(2).run(talk, [()] * 2)


def test_a_message_that_nobody_waits_for_is_refused() -> None:
    def leaves(group) -> None:
        if group.rank_in_group == 0:
            group.isend(torch.ones(1), 1)
        else:
            group.recv(torch.zeros(1), 0)

    with pytest.raises(BadMessage, match="Rank 0 starts to send to rank 1, and never waits"):
        SimulatedRanks(2).run(leaves, [()] * 2)


def test_what_is_read_too_early_has_not_come() -> None:
    def early(group) -> float:
        if group.rank_in_group == 0:
            group.send(torch.ones(1), 1)
            return 1.0
        buffer = torch.zeros(1)
        work = group.irecv(buffer, 0)
        before = float(buffer)
        work.wait()
        return before + 10 * float(buffer)

    for seed in range(5):
        assert SimulatedRanks(2, seed).run(early, [()] * 2) == [1.0, 10.0]


def test_an_error_of_one_rank_ends_all() -> None:
    def fail(group) -> None:
        if group.rank_in_group == 1:
            raise KeyError("on rank 1")
        group.recv(torch.empty(1), 1)

    with pytest.raises(KeyError, match="on rank 1"):
        SimulatedRanks(3).run(fail, [()] * 3)


def test_a_rank_that_computes_for_ever_is_ended() -> None:
    def for_ever(group) -> None:
        while True:
            pass

    got = attempt(lambda: SimulatedRanks(2).run(for_ever, [()] * 2))
    assert isinstance(got, Raised) and got.error is NoEnd
    assert not [t for t in threading.enumerate() if t.daemon and t.name.startswith("rank-")]


# --- oracles, against something else -----------------------------------------------------------


def drawn(draw, number: int):
    return [draw(Choices(random.Random(seed))) for seed in range(number)]


def test_heads_are_the_engines() -> None:
    for given in drawn(lab_15.draw_heads, 100):
        heads, kv_heads, rank, size = given.args
        if size > kv_heads:
            continue
        config = ModelConfig(10, 8, 8, 1, heads, kv_heads, 2)
        shard = Shard(config, rank, size)
        queries, kv = lab_15.dealt_heads(*given.args)
        assert kv == shard.kv_heads
        assert len(queries) == shard.config().num_attention_heads


def test_parts_of_the_mlp_add_up() -> None:
    for given in drawn(lab_15.draw_mlp, 50):
        gate_up, down, _, size = given.args
        x = torch.randn(3, gate_up.shape[1], dtype=gate_up.dtype)

        def mlp(gate_up, down, x=x):
            gate, up = (x @ gate_up.T).chunk(2, -1)
            return (torch.nn.functional.silu(gate) * up) @ down.T

        parts = [lab_15.cut_mlp(gate_up, down, rank, size) for rank in range(size)]
        torch.testing.assert_close(
            sum(mlp(*part) for part in parts), mlp(gate_up, down), rtol=1e-4, atol=1e-5
        )


def test_equal_stages_have_the_known_bubble() -> None:
    for stages in range(1, 6):
        for num in (1, 2, 7):
            assert lab_15.idle_share([2.0] * stages, num) == pytest.approx(bubble(stages, num))
    runs = pipeline_schedule(3, 4)
    assert lab_15.idle_share([1.0] * 3, 4) == pytest.approx(
        1 - sum(r.end - r.begin for r in runs) / (3 * max(r.end for r in runs))
    )


def test_bytes_are_those_of_the_layouts() -> None:
    for given in drawn(lab_15.draw_layout, 100):
        layers, hidden, tokens, itemsize, tp, pp, stage = given.args
        shape = Shape("any", layers, hidden, 8, tp, tp, 2, 100)
        traffic = step_traffic(Rank(shape, Layout(tp, pp), pp=stage), tokens, 1, itemsize)
        sent = bytes_by_operation([part for part in traffic if part.operation != "gather"])
        assert lab_15.played_through(*given.args) == sum(sent.values())


# --- the checks ----------------------------------------------------------------------------------


def test_a_lab_that_nobody_has_touched() -> None:
    def stub(*args):
        raise NotImplementedError

    class Stub(torch.nn.Module):
        def __init__(self, input_size, output_size, group):
            super().__init__()
            raise NotImplementedError

    names = [name for name, check in vars(lab_15).items() if hasattr(check, "max_points")]
    assert len(names) == 11
    for name in names:
        feedback = getattr(lab_15, name)(Stub if name == "row_parallel_linear" else stub)
        assert feedback.status == "not written yet", (name, feedback.message)
