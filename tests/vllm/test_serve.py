"""The vLLM processes: settings, and failures that are shown and leave nothing behind.

What a working engine measures is tested on the whole run, in test_pipeline_run.py.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, cast

import pytest

from utils.processes.supervised import WorkerError, run_to_end
from utils.vllm import serve
from utils.vllm.session import Answer, Answers, VllmSession

ROOT = Path(__file__).parents[3]
ENV = dict(os.environ)


def test_the_cpu_engine_uses_the_smallest_block_and_true_weights_only_4_bit() -> None:
    arguments = serve.EngineSettings().arguments()
    assert arguments["block_size"] == 32 and arguments["enforce_eager"]
    assert "gpu_memory_utilization" not in arguments
    assert serve.vllm_environment()["VLLM_CPU_INT4_W4A8"] == "0"
    assert serve.vllm_environment()["HF_HUB_OFFLINE"] == "1"
    on_gpu = serve.EngineSettings(gpu_memory_utilization=0.9).arguments()
    assert on_gpu["gpu_memory_utilization"] == 0.9 and "enforce_eager" not in on_gpu


def test_a_failing_worker_shows_the_end_of_its_output() -> None:
    code = "import sys; print('reading', file=sys.stderr); sys.exit('no such layer')"
    with pytest.raises(WorkerError, match=r"(?s)vLLM failed \(exit code 1\).*no such layer"):
        run_to_end([sys.executable, "-c", code], ENV, "vLLM")


def test_a_killed_worker_is_named() -> None:
    code = "import os; os.kill(os.getpid(), 9)"
    with pytest.raises(WorkerError, match="was killed, perhaps for memory"):
        run_to_end([sys.executable, "-c", code], ENV, "vLLM")


PEAK_SCRIPT = """
import subprocess, sys, time
from utils.processes.peak_memory import PeakMemory

def seen(code, enough):
    child = subprocess.Popen([sys.executable, "-c", code + "; input()"], stdin=subprocess.PIPE)
    deadline = time.monotonic() + 60
    with PeakMemory(interval=0.02) as memory:
        while memory.peak < enough and time.monotonic() < deadline:
            time.sleep(0.02)
        child.communicate(b"\\n")
    print(memory.peak)

seen("pass", 1)
seen("x = bytearray(600_000_000)", 600e6)
"""


def test_peak_memory_includes_children() -> None:
    """In a small process, whose own memory, which counts too, is far less than its child's."""
    done = subprocess.run(
        [sys.executable, "-c", PEAK_SCRIPT], cwd=ROOT, check=True, capture_output=True, text=True
    )
    small, large = map(int, done.stdout.split())
    assert small < 300e6 and large >= 600e6


def test_a_server_that_cannot_start_says_why_and_leaves_no_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The real command on a folder without a model; a short-lived stand-in for vLLM saves a minute.
    stand_in = tmp_path / "vllm_stand_in.py"
    stand_in.write_text("import sys; sys.exit('no config.json in ' + sys.argv[2])")
    monkeypatch.setattr(serve, "SERVER_MODULE", [str(stand_in)])
    with (
        pytest.raises(WorkerError, match=r"(?s)vLLM's server ended.*no config.json in"),
        serve.vllm_server(tmp_path / "nothing"),
    ):
        pytest.fail("it must not become ready")


def test_the_server_is_stopped_when_its_user_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_in = tmp_path / "stand_in.py"
    stand_in.write_text(
        "import sys\n"
        "from http.server import BaseHTTPRequestHandler, HTTPServer\n"
        "class Handler(BaseHTTPRequestHandler):\n"
        "    def do_GET(self):\n"
        "        self.send_response(200); self.end_headers(); self.wfile.write(b'fine')\n"
        "port = int(sys.argv[sys.argv.index('--port') + 1])\n"
        "HTTPServer((sys.argv[sys.argv.index('--host') + 1], port), Handler).serve_forever()\n"
    )
    monkeypatch.setattr(serve, "SERVER_MODULE", [str(stand_in)])
    with pytest.raises(KeyboardInterrupt), serve.vllm_server(tmp_path / "model") as server:
        assert server.url.startswith("http://127.0.0.1:")
        assert server.get("/health") == "fine"
        raise KeyboardInterrupt
    deadline = time.monotonic() + 60
    while True:
        try:
            server.get("/health", timeout=1)
        except OSError:
            break
        assert time.monotonic() < deadline, "the server still answers"


class FakeSession:
    """A stand-in for vLLM: one block of 4 tokens can be cached; each token to compute takes 1 s."""

    def __init__(self) -> None:
        self.caching = False
        self.cache: set[tuple[int, ...]] = set()
        self.counted = {"vllm:prefix_cache_queries": 0.0, "vllm:prefix_cache_hits": 0.0}
        self.computed: list[tuple[tuple[int, ...], int]] = []

    def start(self, model: Path, *, enable_prefix_caching: bool, **engine: Any) -> None:
        self.caching = enable_prefix_caching
        self.reset_prefix_cache()

    def reset_prefix_cache(self) -> None:
        self.cache = set()

    def counters(self) -> dict[str, float]:
        return dict(self.counted)

    def generate(
        self, prompts: list[list[int]], *, one_by_one: bool = False, max_tokens: int
    ) -> Answers:
        answers = []
        for prompt in prompts:
            block = tuple(prompt[:4])
            cached = 4 * (self.caching and block in self.cache)
            self.cache.add(block)
            if self.caching:
                self.counted["vllm:prefix_cache_queries"] += len(prompt)
                self.counted["vllm:prefix_cache_hits"] += cached
            if max_tokens == 1:
                self.computed.append((tuple(prompt), len(prompt) - cached))
            ttft = float(len(prompt) - cached)
            answers.append(Answer(f"{max_tokens}", [7] * max_tokens, cached, "length", ttft))
        return Answers(answers, sum(answer.ttft for answer in answers))


def test_prefix_caching_is_measured_cleanly() -> None:
    prompts = [[1, 2, 3, 4, *range(10, 15 + i)] for i in range(5)]  # 9 to 13 tokens
    session = FakeSession()
    result = serve.measure_prefix_caching(
        cast(VllmSession, session),
        Path("x"),
        prompts,
        max_tokens=2,
        settings=serve.EngineSettings(),
        repeats=3,
    )
    assert result["ttft_miss_seconds"] == 10 and result["ttft_hit_seconds"] == 6
    # After the two first requests that pay for buffers: each of the three once in either way.
    pairs = session.computed[2:]
    assert sorted(pairs) == sorted(
        (tuple(prompt), len(prompt) - cached) for prompt in prompts[:3] for cached in (0, 4)
    )
    assert result["hit_rate_without_prefix_caching"] == 0
    total = sum(map(len, prompts))
    assert result["hit_rate"] == 4 * 4 / total  # all but the first, and only this batch
    assert result["tokens_per_second_without_prefix_caching"] == 10 / total
    assert result["tokens_per_second"] == 10 / (total - 16)
    assert result["text"] == result["text_without_prefix_caching"] == ["2"] * 5


def test_too_few_prompts_are_refused() -> None:
    session, settings = cast(VllmSession, FakeSession()), serve.EngineSettings()
    for prompts, repeats in (([[1]] * 3, 4), ([[1]] * 3, 1)):
        with pytest.raises(ValueError, match="with 3 prompts"):
            serve.measure_prefix_caching(
                session, Path("x"), prompts, max_tokens=1, settings=settings, repeats=repeats
            )
