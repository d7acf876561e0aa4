"""vLLM itself, laid out over several processes: tensor parallel offline, data parallel as a server.

Each layout runs as a process of its own with vLLM's ranks below it, in float32 and greedily, so
that tokens can be compared with those of one process.
"""

from __future__ import annotations

import json
import os
import re
import tempfile
import time
import urllib.request
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

from utils.environments.pipeline import pipeline_python, worker_environment
from utils.processes.server import LocalServer, as_options
from utils.processes.supervised import WorkerError, run_to_end
from utils.serving.scrape import parse
from utils.vllm.engine_settings import EngineSettings, vllm_environment
from utils.vllm.serve import SERVER_MODULE

WORKER_MODULE = "utils.distributed.vllm_rank_worker"
FINISHED = "vllm:request_success_total"
REFUSAL = re.compile(r"[^\n,]*must be divisible by tensor parallel size[^\n\[]*(?= \[type)")


@dataclass(frozen=True)
class RankMemory:
    """What one rank of vLLM holds: parameters, and the bytes of its share of the KV cache."""

    parameters: int
    kv_bytes: int
    kv_blocks: int


@dataclass(frozen=True)
class VllmRun:
    """What vLLM did in one layout.

    Attributes:
        layout: in the words of vLLM's options.
        tokens: the answer to each prompt.
        start_seconds: from the start of the process until it could answer.
        seconds: for all answers.
        ranks: memory of each tensor-parallel rank; of a server nobody outside can tell.
        requests: how many requests each engine answered, as the server's `/metrics` count them.
    """

    layout: str
    tokens: list[list[int]]
    start_seconds: float
    seconds: float
    ranks: tuple[RankMemory, ...] = ()
    requests: tuple[int, ...] = ()


def thread_binding(num_processes: int, cpus: Sequence[int] | None = None) -> str:
    """The cores of each process, in the form of `VLLM_CPU_OMP_THREADS_BIND`: "0|1|1".

    The cores are dealt out evenly. Where processes outnumber cores, the last core is shared.
    """
    cpus = sorted(os.sched_getaffinity(0)) if cpus is None else list(cpus)
    if num_processes >= len(cpus):
        return "|".join(str(cpus[min(i, len(cpus) - 1)]) for i in range(num_processes))
    starts = [i * len(cpus) // num_processes for i in range(num_processes + 1)]
    shares = [cpus[a:b] for a, b in pairwise(starts)]
    return "|".join(",".join(map(str, share)) for share in shares)


def vllm_tensor_parallel(
    model_dir: Path, prompts: Sequence[list[int]], max_tokens: int, tensor_parallel_size: int
) -> VllmRun:
    """Let vLLM answer prompts with the model split over ranks; 1 is vLLM as everybody runs it.

    Args:
        model_dir: folder in Hugging Face format.
        prompts: token ids of each prompt.
        max_tokens: the longest answer, in tokens.
        tensor_parallel_size: number of ranks. Heads must divide by it, or vLLM refuses.

    Raises:
        ValueError: fewer GPUs than ranks, on a machine with GPUs.
        WorkerError: vLLM failed or refused; the message holds the end of its output.
    """
    _require_gpus(tensor_parallel_size, "tensor_parallel_size")
    layout = f"tensor_parallel_size={tensor_parallel_size}"
    engine = _settings(prompts, max_tokens) | {"tensor_parallel_size": tensor_parallel_size}
    if tensor_parallel_size > 1:
        engine["distributed_executor_backend"] = "mp"
    with tempfile.TemporaryDirectory() as folder:
        job_file, result_file = Path(folder) / "job.json", Path(folder) / "result.json"
        job = {
            "model": str(model_dir),
            "engine": engine,
            "prompts": list(prompts),
            "max_tokens": max_tokens,
            "result_file": str(result_file),
        }
        job_file.write_text(json.dumps(job))
        begin = time.perf_counter()
        run_to_end(
            [str(pipeline_python()), "-m", WORKER_MODULE, str(job_file)],
            # The engine in the worker's own process: only the ranks are processes below it.
            _environment(tensor_parallel_size) | {"VLLM_ENABLE_V1_MULTIPROCESSING": "0"},
            f"vLLM with {layout}",
        )
        total = time.perf_counter() - begin
        result = json.loads(result_file.read_text())
    ranks = tuple(RankMemory(**rank) for rank in result["ranks"])
    seconds = result["seconds"]
    return VllmRun(layout, result["tokens"], total - seconds, seconds, ranks)


def vllm_refusal(model_dir: Path, tensor_parallel_size: int) -> str | None:
    """The sentence with which vLLM refuses so many ranks; None if it runs.

    Raises:
        ValueError: fewer GPUs than ranks, on a machine with GPUs.
        WorkerError: vLLM failed for another reason than the number of ranks.
    """
    try:
        vllm_tensor_parallel(model_dir, [[1]], 1, tensor_parallel_size)
    except WorkerError as error:
        found = REFUSAL.search(str(error))
        if not found:
            raise
        return found[0].strip()
    return None


def vllm_data_parallel(
    model_dir: Path,
    prompts: Sequence[list[int]],
    max_tokens: int,
    data_parallel_size: int,
    verbose: bool = False,
) -> VllmRun:
    """Start vLLM's server with several engines, send it all prompts at once, and stop it.

    Every engine holds the whole model. One front end spreads the requests over them.

    Args:
        model_dir, prompts, max_tokens: as above.
        data_parallel_size: number of engines.
        verbose: say that the server starts, and when it is ready.

    Raises:
        ValueError: fewer GPUs than engines, on a machine with GPUs.
        WorkerError: the server did not start; the message holds the end of its output.
        RuntimeError: it did not answer a request.
    """
    _require_gpus(data_parallel_size, "data_parallel_size")
    arguments = {"model": model_dir, "served_model_name": "model"} | _settings(prompts, max_tokens)
    arguments["data_parallel_size"] = data_parallel_size
    begin = time.perf_counter()
    command = [str(pipeline_python()), *SERVER_MODULE, *as_options(arguments)]
    name = f"vLLM's server with {data_parallel_size} engines"
    with LocalServer(
        command, _environment(data_parallel_size), "model", name=name, verbose=verbose
    ) as server:
        ready = time.perf_counter()
        with ThreadPoolExecutor(len(prompts)) as pool:
            tokens = list(pool.map(lambda ids: _complete(server, ids, max_tokens), prompts))
        seconds = time.perf_counter() - ready
        page = parse(server.get("/metrics"))
    requests = tuple(
        int(page.value(FINISHED, engine=str(engine))) for engine in range(data_parallel_size)
    )
    layout = f"data_parallel_size={data_parallel_size}"
    return VllmRun(layout, tokens, ready - begin, seconds, requests=requests)


def _complete(server: LocalServer, token_ids: list[int], max_tokens: int) -> list[int]:
    body = {
        "model": "model",
        "prompt": token_ids,
        "max_tokens": max_tokens,
        "temperature": 0.0,
        "return_token_ids": True,
    }
    request = urllib.request.Request(
        f"{server.url}/v1/completions",
        json.dumps(body).encode(),
        {"Content-Type": "application/json"},
    )
    try:
        with urllib.request.urlopen(request, timeout=300) as response:
            return json.loads(response.read())["choices"][0]["token_ids"]
    except OSError as error:
        raise RuntimeError(f"{server.name} did not answer: {error}\n{server.log()}") from error


def _settings(prompts: Sequence[list[int]], max_tokens: int) -> dict[str, Any]:
    longest = max(map(len, prompts)) + max_tokens
    share = 0.4 if torch.cuda.is_available() else 0.0
    return EngineSettings(
        "float32", -(-longest // 32) * 32, gpu_memory_utilization=share
    ).arguments()


def _environment(num_processes: int) -> dict[str, str]:
    environment = vllm_environment() | worker_environment()
    environment.setdefault("VLLM_CPU_OMP_THREADS_BIND", thread_binding(num_processes))
    return environment


def _require_gpus(needed: int, option: str) -> None:
    have = torch.cuda.device_count()
    if 0 < have < needed:
        raise ValueError(
            f"{option}={needed} takes {needed} GPUs, one for each process; this machine has {have}."
            f" Choose a smaller {option}, or hide the GPU (CUDA_VISIBLE_DEVICES='') to run on CPU."
        )
