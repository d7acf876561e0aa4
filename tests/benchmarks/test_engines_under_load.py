"""The benchmark of four servers: each round asks new customers, all servers the same ones."""

from __future__ import annotations

import asyncio
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from benchmarks import engines_under_load as benchmark
from benchmarks.common import cpu_instructions
from utils.serving.load_report import LoadReport, Timing


def test_customers_come_once_and_in_the_same_order() -> None:
    first, second = list(islice(benchmark.customers(), 40)), list(islice(benchmark.customers(), 40))
    assert first == second and len({str(messages) for messages in first}) == 40


def test_a_report_says_which_wide_instructions_the_machine_has(tmp_path: Path) -> None:
    info = tmp_path / "cpuinfo"
    info.write_text("model name\t: X\nflags\t\t: fpu avx2 avx512f avx512vl amx_bf16\n")
    assert cpu_instructions(info) == ["avx2", "avx512f", "amx_bf16"]
    assert cpu_instructions(tmp_path / "none") == []


class Server:
    def __init__(self) -> None:
        self.stopped = False

    def stop(self) -> None:
        self.stopped = True


def test_order_changes_between_rounds_and_servers_are_stopped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    servers: dict[str, Server] = {}
    orders: list[list[str]] = []
    asked: list[str] = []

    def start(chosen: dict[str, Any], verbose: bool) -> dict[str, Server]:
        servers.update({name: Server() for name in chosen})
        return servers

    async def one_round(chosen, _servers, messages, users, max_tokens, warm_up):
        orders.append(list(chosen))
        asked.extend(map(str, messages))
        timing = Timing(0.0, 0.0, [1.0, 2.0], max_tokens, num_prompt_tokens=4)
        return {name: LoadReport([timing] * users, 2.0) for name in chosen}

    monkeypatch.setattr(benchmark, "start_contenders", start)
    monkeypatch.setattr(benchmark, "one_round", one_round)
    found = asyncio.run(benchmark.compare(benchmark.LOADS, 2))
    names = ["ours", "vLLM", "llama.cpp", "Hugging Face"]
    assert orders == [names, names, names[::-1], names[::-1]]
    assert len(asked) == len(set(asked)) and all(server.stopped for server in servers.values())
    assert list(found["8 users"]) == names
    assert found["8 users"]["ours"]["tokens_per_second"] == 8 * benchmark.MAX_TOKENS / 2
