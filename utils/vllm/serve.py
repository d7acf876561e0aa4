"""vLLM: measured offline without and with prefix caching, and as an OpenAI-compatible server.

Kwon et al., "Efficient Memory Management for Large Language Model Serving with PagedAttention",
2023, https://arxiv.org/abs/2309.06180
"""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

from utils.environments.pipeline import pipeline_python, worker_environment
from utils.processes.server import LocalServer, as_options
from utils.vllm.engine_settings import EngineSettings, vllm_environment
from utils.vllm.session import VllmSession

TTFT_REPEATS = 9
SERVER_MODULE = ["-m", "vllm.entrypoints.openai.api_server"]


def measure_prefix_caching(
    session: VllmSession,
    model_dir: Path,
    prompts: list[list[int]],
    *,
    max_tokens: int,
    settings: EngineSettings,
    repeats: int | None = None,
) -> dict[str, Any]:
    """Let vLLM answer all prompts at once, greedily, without and with Automatic Prefix Caching.

    Args:
        session: the process in which the engines are started, one after the other.
        model_dir: a plain, GPTQ or AWQ checkpoint.
        prompts: token ids of each prompt; all begin with the same system prompt.
        max_tokens: the longest answer, in tokens.
        settings: how to start vLLM.
        repeats: on how many prompts TTFT is measured; the median counts. None: on `TTFT_REPEATS`,
            or on all if there are fewer.

    Returns:
        `tokens_per_second` (output tokens of the whole batch; the cache is empty before it),
        `hit_rate` (share of the batch's prompt tokens found in the cache, by vLLM's own counters)
        and `text`, a list; each of them also as `..._without_prefix_caching`.
        `ttft_miss_seconds` (nothing cached) and `ttft_hit_seconds` (the system prompt cached), of
        the same prompts.

    Raises:
        ValueError: too few prompts.
        WorkerError: vLLM failed; the message holds the end of its output.
    """
    if repeats is None:
        repeats = min(TTFT_REPEATS, len(prompts))
    if not 1 < repeats <= len(prompts):
        raise ValueError(f"{repeats=} with {len(prompts)} prompts: at least 2, at most all.")
    measures: dict[str, Any] = {}
    for caching, suffix in ((False, "_without_prefix_caching"), (True, "")):
        session.start(model_dir, enable_prefix_caching=caching, **settings.arguments())
        session.generate(prompts[:1], max_tokens=1)  # pays for buffers that all others find ready
        if caching:
            measures |= _measure_ttft(session, prompts[:repeats])
            session.reset_prefix_cache()
        before = session.counters()
        batch = session.generate(prompts, max_tokens=max_tokens)
        queries, hits = (
            session.counters().get(name, 0.0) - before.get(name, 0.0)
            for name in ("vllm:prefix_cache_queries", "vllm:prefix_cache_hits")
        )
        measures |= {
            f"tokens_per_second{suffix}": batch.tokens_per_second,
            f"hit_rate{suffix}": hits / queries if queries else 0.0,
            f"text{suffix}": batch.texts,
        }
    return measures


def _measure_ttft(session: VllmSession, prompts: list[list[int]]) -> dict[str, float]:
    """Each prompt once with an empty cache and once with another customer's prompt cached."""
    misses, hits = [], []
    for prompt, following in zip(prompts, prompts[1:] + prompts[:1], strict=True):
        session.reset_prefix_cache()
        miss, hit = session.generate([prompt, following], one_by_one=True, max_tokens=1).ttfts
        misses.append(miss)
        hits.append(hit)
    return {
        "ttft_miss_seconds": statistics.median(misses),
        "ttft_hit_seconds": statistics.median(hits),
    }


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
