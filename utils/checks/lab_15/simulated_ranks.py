"""Ranks inside this process, one thread each, of which only one runs at a time.

So a check is quick and the same every time, and a deadlock is seen at once: when no rank can go on.
A message is delivered when one side has called `isend` and the other `irecv`, and not before:
whoever counts on a buffer somewhere in between has a program that hangs with larger tensors.
"""

from __future__ import annotations

import ctypes
import random
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from torch import Tensor

from utils.checks.lab_15.messages import BadMessage, Deadlock, Message, NotOffered
from utils.engine.distributed.collectives import ring_all_reduce
from utils.engine.distributed.parallel_state import GroupCoordinator

PAUSE_S = 0.05  # how often the waiting main thread looks whether its patience is over


class _Ended(BaseException):
    """Ends a rank whose result nobody needs. Not an Exception: no `except` must take it."""


class _Work:
    """One end of a message. `wait` returns when the other end is there."""

    def __init__(self, ranks: SimulatedRanks, rank: int, message: Message, words: str) -> None:
        self._ranks, self.rank, self._message, self.words = ranks, rank, message, words
        self.was_awaited = False

    def wait(self) -> None:
        message, self.was_awaited = self._message, True
        self._ranks.wait_until(self.rank, lambda: message.met, self.words)
        content = message.deliver()
        if self.words.startswith("to receive"):
            assert message.buffer is not None
            message.buffer.copy_(content.view(message.buffer.shape))


class SimulatedGroup(GroupCoordinator):
    """A `GroupCoordinator` whose messages stay in this process."""

    def __init__(self, ranks: SimulatedRanks, rank: int) -> None:
        self.ranks = list(range(ranks.world_size))
        self.rank = self.rank_in_group = rank
        self.sent_bytes, self.num_messages = Counter(), Counter()
        self.sent_to: Counter[int] = Counter()
        self._all_reduce, self._operation = ring_all_reduce, "send"
        self._wire = ranks

    @contextmanager
    def _counted_as(self, operation: str) -> Iterator[None]:
        if self._wire.bare:
            raise NotOffered(f"`group.{operation}` is not there: build it of `isend` and `irecv`.")
        with super()._counted_as(operation):
            yield

    def isend(self, tensor: Tensor, dst: int) -> _Work:
        self.sent_bytes[self._operation] += tensor.nbytes
        self.num_messages[self._operation] += 1
        self.sent_to[dst] += tensor.nbytes
        return self._wire.post(self.rank, self.rank, dst, tensor)

    def irecv(self, buffer: Tensor, src: int) -> _Work:
        return self._wire.post(self.rank, src, self.rank, buffer)


class SimulatedRanks:
    """Runs a function on several ranks.

    Args:
        world_size: how many.
        seed: decides who goes on when several can.
        bare: is there nothing but messages from one to another?
    """

    def __init__(self, world_size: int, seed: int = 0, bare: bool = False) -> None:
        self.world_size, self.bare = world_size, bare
        self.groups = [SimulatedGroup(self, rank) for rank in range(world_size)]
        self._random = random.Random(seed)
        self._messages: dict[tuple[int, int, bool], deque[Message]] = {}
        self._works: list[_Work] = []
        self._turns = [threading.Semaphore(0) for _ in range(world_size)]
        self._waits: dict[int, tuple[Callable[[], bool], str]] = {}
        self._running = set(range(world_size))
        self._all_done = threading.Semaphore(0)
        self._error: BaseException | None = None

    def run(self, function: Callable[..., Any], arguments: Sequence[tuple[Any, ...]]) -> list[Any]:
        """What `function(group, *arguments[rank])` returns on each rank.

        Raises:
            Deadlock, BadMessage: see there. Whatever the function raises on the first rank to fail.
        """
        results: list[Any] = [None] * self.world_size

        def rank_main(rank: int) -> None:
            try:
                self._turns[rank].acquire()
                if self._error is None:
                    results[rank] = function(self.groups[rank], *arguments[rank])
            except _Ended:
                pass
            except BaseException as error:  # for the main thread, which raises it
                self._error = self._error or error
            finally:
                self._leave(rank)

        threads = [
            threading.Thread(target=rank_main, args=(rank,), name=f"rank-{rank}", daemon=True)
            for rank in range(self.world_size)
        ]
        for thread in threads:
            thread.start()
        try:
            self._turns[self._random.randrange(self.world_size)].release()
            while not self._all_done.acquire(timeout=PAUSE_S):
                pass  # here the check's patience may end: see `patience.TimeUp`
        except BaseException:
            self._end(threads)
            raise
        if self._error is not None:
            raise self._error
        self._refuse_lost_messages()
        self._refuse_what_nobody_awaits()
        return results

    def post(self, rank: int, src: int, dst: int, tensor: Tensor) -> _Work:
        """One end of the next message from `src` to `dst`, which perhaps has the other end."""
        sends = rank == src
        other = dst if sends else src
        if not isinstance(other, int) or not 0 <= other < self.world_size or other == rank:
            verb = "sends to" if sends else "receives from"
            raise BadMessage(
                f"Rank {rank} {verb} rank {other}, of {self.world_size} ranks: there must be such "
                f"a rank, and it must be another one."
            )
        theirs = self._messages.setdefault((src, dst, not sends), deque())
        if theirs:
            message = theirs.popleft()
        else:
            message = Message()
            self._messages.setdefault((src, dst, sends), deque()).append(message)
        if sends:
            message.tensor = tensor
        else:
            message.buffer = tensor
        if message.met:
            self._refuse_unlike(src, dst, message)
        words = f"to send to rank {dst}" if sends else f"to receive from rank {src}"
        self._works.append(_Work(self, rank, message, words))
        return self._works[-1]

    def wait_until(self, rank: int, ready: Callable[[], bool], words: str) -> None:
        """Let others go on until this rank can."""
        if ready():
            return
        self._waits[rank] = (ready, words)
        if not self._pass_on():
            raise self._deadlock()
        self._turns[rank].acquire()
        self._waits.pop(rank, None)
        if self._error is not None:
            raise _Ended

    def _pass_on(self) -> bool:
        """Give the turn to a rank that can go on. False if there is none."""
        able = [
            rank
            for rank in sorted(self._running)
            if rank not in self._waits or self._waits[rank][0]()
        ]
        if able:
            self._turns[self._random.choice(able)].release()
        return bool(able)

    def _leave(self, rank: int) -> None:
        self._running.discard(rank)
        self._waits.pop(rank, None)
        if self._running and self._error is None and not self._pass_on():
            self._error = self._deadlock()
        if self._running and self._error is not None:
            self._turns[min(self._running)].release()  # it ends, and lets the next one end
        if not self._running:
            self._all_done.release()

    def _deadlock(self) -> Deadlock:
        waiting = [f"rank {r} waits {words}" for r, (_, words) in sorted(self._waits.items())]
        done = sorted(set(range(self.world_size)) - self._running)
        ended = f"; rank {', '.join(map(str, done))} has returned" if done else ""
        return Deadlock(f"nobody can go on: {', '.join(waiting)}{ended}.")

    def _refuse_unlike(self, src: int, dst: int, message: Message) -> None:
        tensor, buffer = message.tensor, message.buffer
        assert tensor is not None and buffer is not None
        if (tensor.numel(), tensor.dtype) != (buffer.numel(), buffer.dtype):
            raise BadMessage(
                f"Rank {src} sends {tensor.numel()} numbers ({_dtype(tensor)}), and rank {dst} "
                f"expects {buffer.numel()} ({_dtype(buffer)})."
            )

    def _refuse_lost_messages(self) -> None:
        for (src, dst, sent), messages in self._messages.items():
            if messages:
                what = "sends" if sent else "is sent"
                raise BadMessage(
                    f"Rank {src} {what} a message to rank {dst} that nobody receives."
                    if sent
                    else f"Rank {dst} expects a message from rank {src} that nobody sends."
                )

    def _refuse_what_nobody_awaits(self) -> None:
        for work in self._works:
            if not work.was_awaited:
                raise BadMessage(
                    f"Rank {work.rank} starts {work.words}, and never waits for it. Until then the "
                    "tensor still belongs to the message."
                )

    def _end(self, threads: Sequence[threading.Thread]) -> None:
        """End all ranks, also one that computes for ever."""
        self._error = self._error or _Ended()
        for thread, turn in zip(threads, self._turns, strict=True):
            turn.release()
            if thread.is_alive() and thread.ident is not None:
                ctypes.pythonapi.PyThreadState_SetAsyncExc(
                    ctypes.c_ulong(thread.ident), ctypes.py_object(_Ended)
                )
        for thread in threads:
            thread.join(timeout=1)


def _dtype(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")
