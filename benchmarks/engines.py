"""The engines that `throughput.py` and `growth.py` compare, each in a process of its own.

So all engines stay loaded and can run by turns, on the same cores, without knowing of each other.
"""

from __future__ import annotations

import os
import resource
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
from utils.processes.json_lines import LineProcess, serve  # noqa: E402
from utils.vllm.recipe import preloaded  # noqa: E402

CARD_SHARE = 0.3  # of its memory, for vLLM: the other engines are on it too
Run = Callable[[list[list[int]], list[int]], list[list[int]]]  # prompts, how many tokens each


class Limits(NamedTuple):
    """The same for all engines."""

    max_model_len: int = 1536
    max_num_seqs: int = 64
    kv_cache_gib: int = 1


LIMITS = Limits()


def load_ours(
    dtype: str, device: str, limits: Limits, fast: bool = True
) -> tuple[Run, Callable[[], object]]:
    from utils.engine import LLM, SamplingParams

    fast_kernels = "cpp" if device == "cpu" else "triton"
    llm = LLM(
        dtype=dtype,
        device=device,
        max_model_len=limits.max_model_len,
        max_num_seqs=limits.max_num_seqs,
        kv_cache_memory_bytes=limits.kv_cache_gib << 30,
        kernels=fast_kernels if fast else "torch",
    )

    def run(prompts: list[list[int]], max_tokens: list[int]) -> list[list[int]]:
        params = [SamplingParams(temperature=0, max_tokens=n, ignore_eos=True) for n in max_tokens]
        outputs = llm.generate(prompts, params, use_tqdm=False)
        return [output.outputs[0].token_ids for output in outputs]

    return run, llm.reset_prefix_cache


def load_vllm(dtype: str, device: str, limits: Limits) -> tuple[Run, Callable[[], object]]:
    """In this process, compiled: with CUDA graphs on a card; on a CPU, bound to these cores."""
    cores = sorted(os.sched_getaffinity(0))
    os.environ.update(
        VLLM_ENABLE_V1_MULTIPROCESSING="0",
        VLLM_CPU_OMP_THREADS_BIND=",".join(map(str, cores)),
        VLLM_CPU_KVCACHE_SPACE=str(limits.kv_cache_gib),
        VLLM_LOGGING_LEVEL="ERROR",
        VLLM_NO_USAGE_STATS="1",
    )
    for_device = {"block_size": 32} if device == "cpu" else {"gpu_memory_utilization": CARD_SHARE}
    from vllm import LLM, SamplingParams

    from utils.hub import resolve_model

    llm = LLM(
        str(resolve_model("bundled")),
        dtype=dtype,
        max_model_len=limits.max_model_len,
        max_num_seqs=limits.max_num_seqs,
        enable_prefix_caching=True,
        **for_device,
    )

    def run(prompts: list[list[int]], max_tokens: list[int]) -> list[list[int]]:
        params = [SamplingParams(temperature=0, max_tokens=n, ignore_eos=True) for n in max_tokens]
        ids = [{"prompt_token_ids": prompt} for prompt in prompts]
        outputs = llm.generate(ids, params, use_tqdm=False)
        return [list(output.outputs[0].token_ids) for output in outputs]

    return run, llm.reset_prefix_cache


def load_hf(dtype: str, device: str, limits: Limits) -> tuple[Run, Callable[[], object]]:
    """`generate` with a batch padded on the left. It runs until the longest answer is done."""
    import torch

    from utils.hub import load_hf_model

    model = load_hf_model(dtype=getattr(torch, dtype), device=device)
    model.generation_config.eos_token_id = None  # as ignore_eos

    @torch.inference_mode()
    def run(prompts: list[list[int]], max_tokens: list[int]) -> list[list[int]]:
        longest = max(map(len, prompts))
        ids = torch.tensor([[0] * (longest - len(p)) + p for p in prompts])
        mask = torch.tensor([[0] * (longest - len(p)) + [1] * len(p) for p in prompts])
        out = model.generate(
            ids.to(device),
            attention_mask=mask.to(device),
            max_new_tokens=max(max_tokens),
            do_sample=False,
            pad_token_id=0,
        )
        answers = out[:, longest:].tolist()
        return [answer[:n] for answer, n in zip(answers, max_tokens, strict=True)]

    return run, lambda: None


def load_hf_continuous(dtype: str, device: str, limits: Limits) -> tuple[Run, Callable[[], object]]:
    """`generate_batch`, Hugging Face's own paged continuous batching.

    Left to itself it takes all memory of the machine on a CPU, so it gets as much as the others.
    """
    import torch
    from transformers import ContinuousBatchingConfig, GenerationConfig

    from utils.hub import load_hf_model

    resource.setrlimit(resource.RLIMIT_DATA, (8 << 30, 8 << 30))
    model = load_hf_model(dtype=getattr(torch, dtype), device=device)

    def run(prompts: list[list[int]], max_tokens: list[int]) -> list[list[int]]:
        config = GenerationConfig(
            max_new_tokens=max(max_tokens), do_sample=False, eos_token_id=-1, pad_token_id=0
        )
        cache = ContinuousBatchingConfig(
            page_size=32,
            num_blocks=1024,
            max_batch_tokens=2048,
            max_requests_per_batch=limits.max_num_seqs,
        )
        outputs = model.generate_batch(
            prompts, generation_config=config, continuous_batching_config=cache
        )
        answers = [output.generated_tokens for output in outputs.values()]
        if len(answers) != len(prompts):
            raise RuntimeError(f"generate_batch answered {len(answers)} of {len(prompts)} prompts.")
        return [answer[:n] for answer, n in zip(answers, max_tokens, strict=True)]

    return run, lambda: None


LOADERS: dict[str, Callable[[str, str, Limits], tuple[Run, Callable[[], object]]]] = {
    "ours": load_ours,
    "ours, PyTorch": partial(load_ours, fast=False),
    "vLLM": load_vllm,
    "HF": load_hf,
    "HF continuous": load_hf_continuous,
}


class Engine:
    """An engine in a process of its own."""

    def __init__(self, name: str, dtype: str, device: str = "cpu", limits: Limits = LIMITS) -> None:
        self.name = name
        env = os.environ | (preloaded() if device == "cpu" else {})
        self.process = LineProcess([sys.executable, __file__], env)
        self.error = self._ask("load", name=name, dtype=dtype, device=device, limits=limits).get(
            "error"
        )

    def run(
        self, prompts: list[list[int]], max_tokens: list[int], cached: bool = False
    ) -> dict[str, Any]:
        """Answer the prompts: `{"seconds", "tokens"}` or `{"error"}`.

        The prefix cache is empty, or with `cached` what earlier runs have left in it.
        """
        return self._ask("run", prompts=prompts, max_tokens=max_tokens, cached=cached)

    def close(self) -> None:
        """End it, with all that it started."""
        self.process.stop()

    def _ask(self, do: str, **arguments: Any) -> dict[str, Any]:
        try:
            return self.process.ask(do, **arguments)
        except Exception as error:  # whatever it is, it goes into the report
            return {"error": f"{type(error).__name__}: {error}"}


def main() -> None:
    """The other side."""
    loaded: list[Any] = []

    def answer(do: str, asked: dict[str, Any]) -> dict[str, Any]:
        if do == "load":
            limits = Limits(*asked["limits"])
            loaded[:] = LOADERS[asked["name"]](asked["dtype"], asked["device"], limits)
            return {}
        run, forget = loaded
        if not asked["cached"]:
            forget()
        start = time.perf_counter()
        tokens = run(asked["prompts"], asked["max_tokens"])
        return {"seconds": time.perf_counter() - start, "tokens": tokens}

    serve(answer)


if __name__ == "__main__":
    main()
