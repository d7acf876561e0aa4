"""vLLM: measured offline in a process of its own, and as an OpenAI-compatible server.

Kwon et al., "Efficient Memory Management for Large Language Model Serving with PagedAttention",
2023, https://arxiv.org/abs/2309.06180
"""

from __future__ import annotations

import json
import os
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from utils.pipeline.environment import pipeline_python, worker_environment
from utils.pipeline.process import run_worker
from utils.pipeline.vllm.local_server import LocalServer, as_options

TTFT_REPEATS = 9
SERVER_MODULE = ["-m", "utils.pipeline.vllm.server"]


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
            [str(pipeline_python()), "-m", "utils.pipeline.vllm.worker", str(job_file)],
            # One process instead of three: it starts sooner, and all cores compute.
            vllm_environment() | worker_environment() | {"VLLM_ENABLE_V1_MULTIPROCESSING": "0"},
            f"vLLM on {model_dir}",
        )
        return json.loads(result_file.read_text())


def vllm_server(
    model_dir: Path,
    settings: EngineSettings | None = None,
    *,
    prefix_caching: bool = True,
    port: int | None = None,
    verbose: bool = False,
) -> LocalServer:
    """Start vLLM's OpenAI-compatible server on a local port, a free one unless told.

    Use it in a `with` block, or stop it with `stop()`.

    Raises:
        PortInUse, WorkerError: see `LocalServer`.
    """
    model_dir = Path(model_dir)
    name = model_dir.name
    arguments = {"model": model_dir, "served_model_name": name}
    arguments |= {"enable_prefix_caching": prefix_caching}
    arguments |= (settings or EngineSettings()).arguments()
    return LocalServer(
        [str(pipeline_python()), *SERVER_MODULE, *as_options(arguments)],
        vllm_environment() | worker_environment(),
        name,
        name="vLLM's server",
        port=port,
        verbose=verbose,
    )
