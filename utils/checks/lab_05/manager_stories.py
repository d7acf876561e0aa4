"""Random requests through a learner's manager and the engine's own, without a model: exercise 8."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from utils.checks.kit.contracts import Choices, Clause, Contract, InLockstep, Raised, Stage
from utils.engine.config.engine import EngineConfig
from utils.engine.config.parts import make_kv_cache_manager
from utils.engine.core.kv_cache_manager import KVCacheManager
from utils.engine.core.kv_cache_utils import get_hash_fn_by_name
from utils.engine.request import Request
from utils.sim.prompt_cache import bare_request

SALTS = (None, None, "ada", "bob")
NO_ROOM = "no room"


@dataclass(frozen=True)
class Traffic:
    """Steps are ("start", prompt, salt), ("grow", which, tokens) and ("free", which)."""

    block_size: int
    num_blocks: int
    steps: tuple[tuple[Any, ...], ...]

    def __str__(self) -> str:
        return f"a pool of {self.num_blocks} blocks of {self.block_size} tokens"


def draw(c: Choices) -> Traffic:
    block_size = c.pick((4, 2, 16, 1))
    texts = [[c.pick((1, 2, 3, 70_000)) for _ in range(4 * block_size)] for _ in range(2)]

    def step() -> tuple[Any, ...]:
        kind = c.pick(("start", "free", "start", "grow", "free"))
        if kind != "start":
            return kind, c.integer(0, 4), c.pick((1, block_size, 2 * block_size))
        start = c.pick(texts)[: c.integer(0, 4 * block_size)]
        tail = [c.integer(1, 50) for _ in range(c.integer(0, block_size))]
        return kind, [*start, *tail], c.pick(SALTS)

    return Traffic(block_size, c.integer(5, 12), tuple(c.some(step, 0, 40)))


def config(block_size: int, num_blocks: int) -> EngineConfig:
    return EngineConfig(
        max_model_len=block_size * num_blocks,
        dtype=torch.float32,
        device=torch.device("cpu"),
        block_size=block_size,
        num_gpu_blocks=num_blocks,
    )


def start(manager: KVCacheManager, request: Request) -> int | str:
    """Give a request its blocks; how many of its tokens are computed already."""
    blocks, num_computed = manager.get_computed_blocks(request)
    if manager.allocate_slots(request, request.num_tokens - num_computed, blocks) is None:
        return NO_ROOM
    request.num_computed_tokens = request.num_tokens
    return num_computed


def grow(manager: KVCacheManager, request: Request, count: int) -> str:
    """Compute more tokens of a request, as an answer's."""
    request.all_token_ids += [request.all_token_ids[-1] + 1000] * count
    if manager.allocate_slots(request, count) is None:
        del request.all_token_ids[-count:]
        return NO_ROOM
    request.num_computed_tokens = request.num_tokens
    return "room"


def play(stage: Stage, make_manager: Any, traffic: Traffic) -> None:
    """The tokens that each request finds, and the blocks that are free, step by step.

    Each prompt ends with a token of its own, so that no block is computed twice: of two with the
    same contents, any could be found, and what is evicted later would depend on it.
    """
    settings = config(traffic.block_size, traffic.num_blocks)
    arguments = settings, get_hash_fn_by_name("sha256")
    manager = stage.do(lambda: make_manager(*arguments))
    stage.see("manager", manager if isinstance(manager, Raised) else "a manager")
    running: list[Request] = []
    for number, (kind, *what) in enumerate(traffic.steps):
        if kind == "start":
            prompt, salt = [*what[0], 1000 + number], what[1]
            stage.step(f"request {number}: tokens {prompt}" + (f", salt {salt!r}" if salt else ""))
            request = bare_request(number, list(prompt), salt)
            got = stage.do(lambda r=request: start(manager, r))
            stage.see("found", got, lambda n: n if n == NO_ROOM else f"{n} tokens found")
            running += [request] if got != NO_ROOM else []
        elif running:
            request = running[what[0] % len(running)]
            if kind == "grow":
                stage.step(f"request {request.request_id} gets {what[1]} more tokens")
                got = stage.do(lambda r=request, n=what[1]: grow(manager, r, n))
                stage.see("grow", got)
            else:
                running.remove(request)
                stage.step(f"request {request.request_id} ends")
                stage.see("free", stage.do(lambda r=request: manager.free(r)))
        stage.see("room", manager.block_pool.get_num_free_blocks(), lambda n: f"{n} free blocks")


PLUGGED = (
    "Each part alone is right by its own check. Does `my_manager` put them together as the cell "
    "above does, and do they keep something from one request to the next?"
)
MANAGER = Contract(
    inputs=draw,
    judge=InLockstep(play, lambda config, _: make_kv_cache_manager(config)),
    passed="",
    clauses={
        "manager": Clause("`my_manager(config, hash_function)` makes no manager."),
        "found": Clause(
            "Your manager finds other blocks than the engine's own: {got}, expected {expected}.",
            PLUGGED,
        ),
        "grow": Clause("A request that grows: {got}, expected {expected}.", PLUGGED),
        "room": Clause("Your manager has {got}; the engine's own {expected}.", PLUGGED),
    },
)
