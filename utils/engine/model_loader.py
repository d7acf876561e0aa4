"""The model that an engine asks: in this process, or in several others."""

from __future__ import annotations

from pathlib import Path

import torch

from utils.engine.config.engine import EngineConfig
from utils.engine.config.model import ModelConfig
from utils.engine.config.parallel import ParallelConfig
from utils.engine.distributed.executor import ModelWorkers
from utils.engine.distributed.moe import upcycle
from utils.engine.kernels.choice import choose_ops
from utils.engine.kernels.fused_layers import fused_layers
from utils.engine.kernels.packed_linear import pack_linears
from utils.engine.models.llama import LlamaForCausalLM, LlamaOps
from utils.engine.models.registry import MODELS
from utils.engine.models.weights import load_model
from utils.engine.worker.cuda_graph import CudaGraphs


def load_engine_model(
    path: Path,
    model: ModelConfig,
    config: EngineConfig,
    parallel: ParallelConfig,
    ops: LlamaOps,
    kernels: str,
) -> LlamaForCausalLM | ModelWorkers:
    """The model; or, where several ranks run it together, their workers.

    Raises:
        ValueError: see `LLM`.
        RankError: a rank did not start.
    """
    ops = choose_ops(kernels, config.device.type, ops)
    if kernels != "torch" and (parallel.world_size > 1 or parallel.upcycle is not None):
        raise ValueError(
            f"kernels={kernels!r} compute whole layers of a dense model at once. Use "
            f"kernels='torch' for several ranks and for a mixture of experts."
        )
    is_llama = MODELS[model.architecture] is LlamaForCausalLM
    if not is_llama and (kernels == "cpp" or parallel.world_size > 1 or parallel.upcycle):
        raise ValueError(
            f"{model.architecture} runs in one process, without kernels='cpp' and without upcycle: "
            f"those are written for Llama's layers."
        )
    if kernels == "cpp" and (model.head_dim > 128 or config.dtype == torch.float16):
        raise ValueError(
            f"kernels='cpp' compute in float32 and bfloat16, with heads of at most 128 numbers. "
            f"This is {config.dtype}, with heads of {model.head_dim}. Use kernels='torch'."
        )
    if parallel.world_size > 1:
        return ModelWorkers(path, model, config, parallel, ops)
    loaded = load_model(path, model, config.dtype, config.device, ops)
    if kernels == "cpp":
        pack_linears(loaded)
        loaded.all_layers = fused_layers(loaded)
    elif kernels == "cuda_graph":
        loaded.all_layers = CudaGraphs()
    elif kernels == "triton":
        from utils.engine.kernels.triton.layers import TritonLayers  # imports triton

        loaded.all_layers = TritonLayers(-(-config.max_model_len // config.block_size))
    return loaded if parallel.upcycle is None else upcycle(loaded, parallel.upcycle)
