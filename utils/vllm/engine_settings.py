"""How vLLM is started, and in which environment."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass
from typing import Any

from utils.linux_only import linux_only


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
    """The environment for a vLLM process: quiet, offline, and on a CPU, with few surprises.

    Raises:
        RuntimeError: there is no vLLM for this system; the message says what to do.
    """
    if problem := linux_only("vLLM"):
        raise RuntimeError(problem)
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
