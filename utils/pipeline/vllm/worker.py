"""One vLLM engine, one model, prefix caching on or off: answers, throughput, time to first token.

Runs as a program of its own, `python -m utils.pipeline.vllm.worker JOB.json`, so that vLLM sets up
threads and memory as it likes, and gives all of it back. `serve.measure` starts it.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

from utils.pipeline.process import exit_with_parent


def main(job_file: str) -> None:
    """Read the job (see `serve.measure`), run it, write the results where the job says."""
    from vllm import LLM, SamplingParams

    job = json.loads(Path(job_file).read_text())
    prompts = [{"prompt_token_ids": ids} for ids in job["prompts"]]
    started = time.perf_counter()
    llm = LLM(enable_prefix_caching=job["prefix_caching"], disable_log_stats=False, **job["engine"])
    start_seconds = time.perf_counter() - started
    answer = SamplingParams(temperature=0.0, max_tokens=job["max_tokens"])
    first_token = SamplingParams(temperature=0.0, max_tokens=1)

    def ttft(prompt: Any) -> float:
        begin = time.perf_counter()
        llm.generate(prompt, first_token, use_tqdm=False)
        return time.perf_counter() - begin

    ttft(prompts[0])  # the first request pays for buffers that all others find ready
    miss, hit = [], []
    for i in range(job["repeats"]):
        prompt, other = prompts[i], prompts[-1 - i]
        llm.reset_prefix_cache()
        miss.append(ttft(prompt))
        if job["prefix_caching"]:
            # Now with a cache that holds the system prompt, as left behind by another customer.
            llm.reset_prefix_cache()
            ttft(other)
            hit.append(ttft(prompt))

    llm.reset_prefix_cache()
    before = _counters(llm)
    begin = time.perf_counter()
    outputs = llm.generate(prompts, answer, use_tqdm=job["use_tqdm"])
    seconds = time.perf_counter() - begin
    counted = {name: value - before[name] for name, value in _counters(llm).items()}
    tokens = sum(len(output.outputs[0].token_ids) for output in outputs)
    result = {
        "texts": [output.outputs[0].text for output in outputs],
        "cached_tokens": [output.num_cached_tokens or 0 for output in outputs],
        "output_tokens": tokens,
        "tokens_per_second": tokens / seconds,
        "ttft_miss_seconds": statistics.median(miss),
        "ttft_hit_seconds": statistics.median(hit) if hit else None,
        "hit_rate": counted["hits"] / counted["queries"] if counted["queries"] else 0.0,
        "start_seconds": start_seconds,
    }
    Path(job["result_file"]).write_text(json.dumps(result, ensure_ascii=False))


def _counters(llm: Any) -> dict[str, float]:
    """vLLM's own counters, in tokens: looked up in the prefix cache, and found there."""
    names = {"vllm:prefix_cache_queries": "queries", "vllm:prefix_cache_hits": "hits"}
    found = {names[m.name]: m.value for m in llm.get_metrics() if m.name in names}
    return {"queries": 0.0, "hits": 0.0} | found


if __name__ == "__main__":
    exit_with_parent()
    main(sys.argv[1])
