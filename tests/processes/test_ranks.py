"""Ranks: started, asked, ended; and what a cell sees when something goes wrong."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from multiprocessing.connection import Connection
from pathlib import Path

import psutil
import pytest
import torch
import torch.distributed as dist

from tests.serving.waiting import eventually
from utils.processes.ranks import RankError, RankProcesses, run_ranks

ROOT = Path(__file__).resolve().parents[3]


def gone(pids: list[int]) -> bool:
    """Whether all these processes have ended."""
    return not any(map(psutil.pid_exists, pids))


def test_a_function_made_here_runs_on_each_rank(capsys):
    base = 10  # of this closure: it has to travel, too

    def who(more):
        print("hello")
        return dist.get_rank() + base + more, dist.get_world_size()

    assert run_ranks(who, 3, 100) == [(110, 3), (111, 3), (112, 3)]
    assert capsys.readouterr().out.splitlines() == [f"[rank {i}] hello" for i in (0, 1, 2)]


def test_ranks_keep_what_they_have_between_calls():
    def put(value):
        import builtins

        builtins.kept = value * dist.get_rank()  # type: ignore[attr-defined]

    def get():
        import builtins

        return builtins.kept, torch.arange(3)  # type: ignore[attr-defined]

    with RankProcesses(2) as ranks:
        assert ranks._folder.stat().st_mode & 0o077 == 0  # nobody else may knock
        ranks.call(put, 5)
        (zero, numbers), (five, _) = ranks.call(get)
        pids = ranks.pids
    assert (zero, five, numbers.tolist()) == (0, 5, [0, 1, 2])
    assert gone(pids)
    ranks.close()
    with pytest.raises(RankError, match="Start them anew"):
        ranks.call(get)


def test_the_first_failure_ends_all_and_says_which():
    def fail():
        if dist.get_rank() == 1:
            raise KeyError("no such layer")
        dist.barrier()  # for ever

    with RankProcesses(2) as ranks:
        pids = ranks.pids
        with pytest.raises(RankError, match=r"(?s)Rank 1 failed.*in fail.*no such layer"):
            ranks.call(fail)
        assert gone(pids)


def test_a_rank_that_dies_is_named_and_the_next_run_works():
    def die():
        if dist.get_rank() == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        dist.barrier()

    with pytest.raises(RankError, match=r"Rank 1 was killed by signal 9.*memory"):
        run_ranks(die, 2)
    assert run_ranks(dist.get_rank, 2) == [0, 1]


def test_a_rank_that_ends_itself_is_named():
    def leave():
        if dist.get_rank() == 0:
            print("so long", file=sys.stderr, flush=True)
            os._exit(3)

    with pytest.raises(RankError, match=r"(?s)Rank 0 ended with exit status 3.*so long"):
        run_ranks(leave, 2)


def test_waiting_for_what_nobody_sends_has_an_end():
    def wait():
        if dist.get_rank() == 0:
            time.sleep(3600)

    with RankProcesses(2, timeout=300) as ranks:
        ranks.timeout = 1  # not of the ranks' start, which takes longer on a busy machine
        with pytest.raises(RankError, match="Rank 0 did not answer within 1 s"):
            ranks.call(wait)
        assert not ranks.alive


@pytest.mark.parametrize("size", [0, -1, 2.0, "2"])
def test_a_wrong_world_size_is_refused(size):
    with pytest.raises(ValueError, match="world_size must be a positive integer"):
        RankProcesses(size)


def test_an_interrupted_call_does_no_harm(tmp_path):
    def slow(folder):
        rank = dist.get_rank()
        if folder is not None:
            (folder / f"at work {rank}").touch()
            while not (folder / "interrupted").exists():
                time.sleep(0.01)
        return rank, folder

    def interrupt():
        eventually(lambda: len([*tmp_path.iterdir()]) == 2, "both are at work")
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)

    with RankProcesses(2) as ranks:
        interrupting = threading.Thread(target=interrupt)
        interrupting.start()
        with pytest.raises(KeyboardInterrupt):
            ranks.call(slow, tmp_path)
        interrupting.join()
        (tmp_path / "interrupted").touch()
        assert ranks.call(slow, None) == [(0, None), (1, None)]  # not the late answer to the first


@pytest.mark.parametrize("what", ["send_bytes", "recv_bytes"])
def test_an_interrupt_within_a_message_comes_after_it(monkeypatch, what):
    """Within the first of two ranks' messages, too: the second one gets its own."""

    def gathered(number):
        numbers = [torch.zeros(1) for _ in range(2)]
        dist.all_gather(numbers, torch.tensor([float(number + dist.get_rank())]))
        return [int(one) for one in numbers]

    with RankProcesses(2) as ranks:
        usual = getattr(Connection, what)
        left = [1]

        def interrupted(connection, *args):
            if left:
                left.pop()
                signal.raise_signal(signal.SIGINT)
            return usual(connection, *args)

        monkeypatch.setattr(Connection, what, interrupted)
        with pytest.raises(KeyboardInterrupt):
            ranks.call(gathered, 5)
        assert ranks.alive and not left
        assert ranks.call(gathered, 7) == [[7, 8]] * 2


def test_ranks_end_with_a_parent_that_was_killed(tmp_path):
    script = """
import sys
from pathlib import Path
from utils.processes.ranks import RankProcesses
ranks = RankProcesses(2)
print(*ranks.pids, flush=True)
import torch
import torch.distributed as dist
def stuck(folder):
    (Path(folder) / str(dist.get_rank())).touch()
    dist.recv(torch.empty(1), 1 - dist.get_rank())
ranks.call(stuck, sys.argv[1])
"""
    parent = subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path)], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    assert parent.stdout is not None
    pids = [int(pid) for pid in parent.stdout.readline().split()]
    assert len(pids) == 2
    try:
        eventually(lambda: len([*tmp_path.iterdir()]) == 2, "both wait for each other")
    finally:
        parent.kill()
        parent.wait()
        parent.stdout.close()
    eventually(lambda: gone(pids), "the ranks end, too")
