"""The process behind `vllm_layouts`: one engine over several ranks, which answers some prompts.

Run as a program of its own, `python -m utils.distributed.vllm_rank_worker JOB.json`.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any


def rank_memory(worker: Any) -> dict[str, int]:
    """What one of vLLM's ranks holds; runs there. KV bytes are those of all its blocks."""
    model = worker.get_model()
    parameters = sum(p.numel() for p in model.parameters())
    for layer in model.modules():
        # On a CPU, vLLM packs a linear layer's weight for its kernel, and leaves an empty one.
        if hasattr(layer, "input_size_per_partition") and not layer.weight.numel():
            parameters += layer.input_size_per_partition * layer.output_size_per_partition
    caches = worker.model_runner.kv_caches
    return {
        "parameters": parameters,
        "kv_bytes": sum(cache.numel() * cache.element_size() for cache in caches),
        "kv_blocks": worker.model_runner.kv_cache_config.num_blocks,
    }


def main(job_file: str) -> None:
    """Read the job that `vllm_layouts` wrote, run it, write the result where the job says."""
    from vllm import LLM, SamplingParams

    job = json.loads(Path(job_file).read_text())
    prompts = [{"prompt_token_ids": ids} for ids in job["prompts"]]
    params = SamplingParams(temperature=0.0, max_tokens=job["max_tokens"])
    llm = LLM(job["model"], **job["engine"])
    begin = time.perf_counter()
    outputs = llm.generate(prompts, params, use_tqdm=False)
    seconds = time.perf_counter() - begin
    result = {
        "tokens": [list(output.outputs[0].token_ids) for output in outputs],
        "seconds": seconds,
        "ranks": llm.llm_engine.collective_rpc(rank_memory),
    }
    Path(job["result_file"]).write_text(json.dumps(result))


if __name__ == "__main__":
    main(sys.argv[1])
