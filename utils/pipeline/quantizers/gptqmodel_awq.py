"""AWQ by gptqmodel, the maintained successor of autoawq. Runs as a subprocess.

Lin et al., "AWQ: Activation-aware Weight Quantization for On-Device LLM Compression and
Acceleration", 2023, https://arxiv.org/abs/2306.00978
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from utils.pipeline.float32_products import multiply_in_float32
from utils.pipeline.quantizers.classic.clip_search import best_clip
from utils.pipeline.quantizers.classic.worker import report_layers, run_job


def use_fast_clip_search() -> None:
    """Let gptqmodel search its clipping with `best_clip`, which chooses the same and is faster.

    gptqmodel has no option for the search's cost. Of its 17 minutes on two cores, 15 go here.
    """
    from gptqmodel.looper.awq_processor import AWQProcessor

    def compute_best_clip(self: Any, w: Tensor, input_feat: Tensor) -> Tensor:
        def round_trip(weight: Tensor) -> Tensor:
            rounded: Tensor = self.pseudo_quantize_tensor(weight)[0]
            return rounded

        return best_clip(w, input_feat, self.qcfg.group_size, round_trip)

    AWQProcessor._compute_best_clip = compute_best_clip


def search_scales_on_half_of_the_windows() -> None:
    """Let gptqmodel try its twenty scales per group of layers on half of the calibration windows.

    Each trial runs the layers on all windows; that is where most of the time goes. AWQ learns one
    number from it, and the same one from half: the error on held-out text does not change. The
    windows lie in random order, so the first half is as good as any.
    """
    from gptqmodel.looper.awq_processor import AWQProcessor

    search = AWQProcessor._search_best_scale

    def search_best_scale(self: Any, *args: Any, inp: Tensor, **named: Any) -> Any:
        windows = inp[: max(1, len(inp) // 2)] if inp.dim() == 3 else inp  # [N, T, H]
        return search(self, *args, inp=windows, **named)

    AWQProcessor._search_best_scale = search_best_scale


def awq(job: dict[str, Any]) -> None:
    """Quantize `job["model_dir"]` into `job["out_dir"]` (see `worker.run_job`)."""
    from gptqmodel import BACKEND, GPTQModel, QuantizeConfig
    from gptqmodel.quantization import FORMAT, METHOD

    use_fast_clip_search()
    search_scales_on_half_of_the_windows()
    config = QuantizeConfig(
        bits=4,
        group_size=job["group_size"],
        sym=False,
        method=METHOD.AWQ,
        format=FORMAT.GEMM,
        offload_to_disk=False,
    )
    # The weights must stay 16-bit: from float32 on a CPU, the copy that the scale search restores
    # from would be an alias of the weights it changes.
    multiply_in_float32()
    model = GPTQModel.load(job["model_dir"], config, dtype=getattr(torch, job["dtype"]))
    report_layers(model.model)
    # The default backend for AWQ needs CUDA even where none is used.
    backend = BACKEND.AUTO if torch.cuda.is_available() else BACKEND.AWQ_TORCH
    model.quantize(job["calibration"], batch_size=1, backend=backend)
    model.save(job["out_dir"])


if __name__ == "__main__":
    run_job(awq)
