"""vLLM: measured offline in a process of its own, and as an OpenAI-compatible server.

Kwon et al., "Efficient Memory Management for Large Language Model Serving with PagedAttention",
2023, https://arxiv.org/abs/2309.06180
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from utils.pipeline.process import TAIL_LINES, WorkerError, run_worker, stop

HOST = "127.0.0.1"
START_PATIENCE = 300  # seconds until a server must be ready
TTFT_REPEATS = 9
SERVER_COMMAND = [sys.executable, "-m", "utils.pipeline.vllm_server"]


@dataclass(frozen=True)
class EngineSettings:
    """How vLLM is started. `block_size` counts tokens; only full blocks can be reused.

    On a CPU 32 is the smallest block size (the default is 128).
    """

    dtype: str = "bfloat16"
    max_model_len: int = 2048
    block_size: int = 32
    gpu_memory_utilization: float = 0.0  # 0: no GPU
    seed: int = 0

    def arguments(self) -> dict[str, Any]:
        """Arguments of vLLM's `LLM`."""
        arguments = asdict(self) | {"max_num_seqs": 64}
        if self.gpu_memory_utilization:
            # A GPU's smallest block suits its kernels best, and graphs are worth their start-up.
            return arguments | {"block_size": 16}
        del arguments["gpu_memory_utilization"]
        return arguments | {"enforce_eager": True}


def vllm_environment() -> dict[str, str]:
    """The environment for a vLLM process: quiet, offline, and on a CPU, with few surprises."""
    return os.environ | {
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_LOGGING_LEVEL": "ERROR",
        "VLLM_CPU_KVCACHE_SPACE": os.environ.get("VLLM_CPU_KVCACHE_SPACE", "1"),  # GiB
        # By default vLLM rounds activations to 8 bits on CPUs with AMX. We measure 4-bit weights.
        "VLLM_CPU_INT4_W4A8": "0",
        "PYTHONUNBUFFERED": "1",
    }


def measure(
    model_dir: Path,
    prompts: list[list[int]],
    *,
    prefix_caching: bool,
    max_tokens: int,
    settings: EngineSettings,
    repeats: int = TTFT_REPEATS,
    use_tqdm: bool = True,
) -> dict[str, Any]:
    """Let vLLM answer all prompts at once, greedily, and measure it.

    Args:
        model_dir: a plain, GPTQ or AWQ checkpoint.
        prompts: token ids of each prompt; all begin with the same system prompt.
        prefix_caching: Automatic Prefix Caching on or off.
        max_tokens: the longest answer, in tokens.
        settings: how to start vLLM.
        repeats: how often TTFT is measured, on different prompts; the median counts.
        use_tqdm: show progress.

    Returns:
        `texts`, `cached_tokens` (per prompt), `output_tokens`, `tokens_per_second` (output tokens
        of the whole batch), `ttft_miss_seconds` (nothing cached), `ttft_hit_seconds` (system
        prompt cached; None without prefix caching), `hit_rate` (share of the batch's prompt
        tokens found in the cache, by vLLM's own counters), `start_seconds`.

    Raises:
        ValueError: too few prompts.
        WorkerError: vLLM failed; the message holds the end of its output.
    """
    if len(prompts) < 2 * repeats:
        raise ValueError(f"{len(prompts)} prompts; at least {2 * repeats} are needed.")
    with tempfile.TemporaryDirectory() as folder:
        result_file = Path(folder) / "result.json"
        job = {
            "prompts": prompts,
            "prefix_caching": prefix_caching,
            "max_tokens": max_tokens,
            "repeats": repeats,
            "use_tqdm": use_tqdm,
            "result_file": str(result_file),
            "engine": {"model": str(model_dir)} | settings.arguments(),
        }
        job_file = Path(folder) / "job.json"
        job_file.write_text(json.dumps(job))
        run_worker(
            [sys.executable, "-m", "utils.pipeline.vllm_worker", str(job_file)],
            # One process instead of three: it starts sooner, and all cores compute.
            vllm_environment() | _import_path() | {"VLLM_ENABLE_V1_MULTIPROCESSING": "0"},
            f"vLLM on {model_dir}",
        )
        return json.loads(result_file.read_text())


class Server:
    """A running OpenAI-compatible server. `url` is its root, such as http://127.0.0.1:8123."""

    def __init__(self, url: str, model: str) -> None:
        self.url = url
        self.model = model

    def get(self, path: str, timeout: float = 10.0) -> str:
        """GET a path such as "/health" or "/metrics"."""
        with urllib.request.urlopen(self.url + path, timeout=timeout) as response:
            return response.read().decode()

    def chat(self, messages: list[dict[str, str]], max_tokens: int, timeout: float = 300.0) -> str:
        """One greedy chat completion; returns its text."""
        body = {"model": self.model, "messages": messages, "max_tokens": max_tokens,
                "temperature": 0.0}  # fmt: skip
        request = urllib.request.Request(
            self.url + "/v1/chat/completions",
            json.dumps(body).encode(),
            {"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=timeout) as response:
            return json.loads(response.read())["choices"][0]["message"]["content"]


@contextmanager
def vllm_server(
    model_dir: Path, settings: EngineSettings | None = None, *, prefix_caching: bool = True
) -> Iterator[Server]:
    """Start vLLM's OpenAI-compatible server on a free local port; stop it at the end, always.

    Raises:
        WorkerError: it ended, or was not ready after five minutes; with the end of its output.
    """
    model_dir = Path(model_dir)
    port, name = _free_port(), model_dir.name
    command = [*SERVER_COMMAND, "--model", str(model_dir), "--served-model-name", name,
               "--host", HOST, "--port", str(port)]  # fmt: skip
    command.append("--enable-prefix-caching" if prefix_caching else "--no-enable-prefix-caching")
    for key, value in (settings or EngineSettings()).arguments().items():
        command.append(f"--{key.replace('_', '-')}")
        if value is not True:
            command.append(str(value))
    with tempfile.TemporaryFile("w+", errors="replace") as log:
        process = subprocess.Popen(
            command, env=vllm_environment() | _import_path(), stdout=log, stderr=log, text=True
        )
        try:
            server = Server(f"http://{HOST}:{port}", name)
            _wait_until_ready(server, process, log)
            yield server
        finally:
            stop(process)


def _wait_until_ready(server: Server, process: subprocess.Popen[str], log: Any) -> None:
    deadline = time.monotonic() + START_PATIENCE
    while process.poll() is None and time.monotonic() < deadline:
        try:
            server.get("/health", timeout=2)
            return
        except OSError:  # not listening yet, or not healthy yet
            time.sleep(0.5)
    log.seek(0)
    tail = "".join(log.readlines()[-TAIL_LINES:])
    what = "ended" if process.poll() is not None else f"was not ready after {START_PATIENCE} s"
    raise WorkerError(f"The server {what}. The end of its output:\n{tail}")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return probe.getsockname()[1]


def _import_path() -> dict[str, str]:
    """So that the worker finds `utils` wherever it is started."""
    root = str(Path(__file__).parent.parent.parent)
    rest = os.environ.get("PYTHONPATH")
    return {"PYTHONPATH": f"{root}{os.pathsep}{rest}" if rest else root}
