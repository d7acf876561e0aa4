"""4-bit checkpoints: GPTQ or AWQ, each by its original tool or by its maintained successor.

| method | tool       | runs in                                          |
|--------|------------|--------------------------------------------------|
| gptq   | gptqmodel  | Part II's environment (see environment)          |
| gptq   | auto-gptq  | an environment of its own (see classic)          |
| awq    | gptqmodel  | Part II's environment (see environment)          |
| awq    | autoawq    | an environment of its own (see classic)          |

Same calibration data, same two formats (gptq; awq gemm), all of them readable by vLLM. Each route
is a subprocess: it has its own threads, its memory is freed, and its crash is an error message.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from utils.environments.pipeline import package_version, pipeline_python
from utils.model_folder import check_weights
from utils.pipeline.quantizers.calibration import calibration_windows
from utils.pipeline.quantizers.checkpoint import quantization_config, write_checkpoint, write_source
from utils.pipeline.quantizers.classic.environment import classic_python, locked_packages
from utils.pipeline.quantizers.tool_process import run_tool
from utils.pipeline.stages.perplexity import check_perplexity, perplexity
from utils.profiles import PROFILES, half_dtype

# The tool that is right and fast, by profile and method.
DEFAULT_TOOLS = {
    name: {"gptq": profile.gptq_tool, "awq": profile.awq_tool} for name, profile in PROFILES.items()
}

# A sound 4-bit model has a perplexity of about 1.05 to 1.3 times its source's. One whose weights
# are wrong has hundreds or thousands of times as much.
MAX_PERPLEXITY_RATIO = 1.5
CHECK_TOKENS = 2048
_QUANTIZERS = Path(__file__).parents[1] / "quantizers"


@dataclass(frozen=True)
class Route:
    """How one tool is started: with which Python, on which worker script."""

    script: Path
    python: Callable[[], Path]
    tool_version: Callable[[], str]


ROUTES = {
    ("gptq", "gptqmodel"): Route(
        _QUANTIZERS / "gptqmodel_gptq.py", pipeline_python, lambda: package_version("gptqmodel")
    ),
    ("awq", "gptqmodel"): Route(
        _QUANTIZERS / "gptqmodel_awq.py", pipeline_python, lambda: package_version("gptqmodel")
    ),
    ("gptq", "auto-gptq"): Route(
        _QUANTIZERS / "classic" / "run_auto_gptq.py",
        classic_python,
        lambda: locked_packages()["auto-gptq"],
    ),
    ("awq", "autoawq"): Route(
        _QUANTIZERS / "classic" / "run_autoawq.py",
        classic_python,
        lambda: locked_packages()["autoawq"],
    ),
}


def quantize(
    method: str,
    tool: str,
    model_dir: Path,
    out_dir: Path,
    calibration_texts: list[str],
    *,
    group_size: int = 64,
    seed: int = 0,
    check_tokens: int = CHECK_TOKENS,
    calibration_tokens: int | None = None,
    use_tqdm: bool = True,
) -> dict[str, Any]:
    """Quantize the linear layers of a model to 4 bits, check the result, and keep it if sound.

    Args:
        method: "gptq" (symmetric, no activation order) or "awq" (zero points, gemm layout).
        tool: "gptqmodel"; or the original: "auto-gptq" for gptq, "autoawq" for awq.
        model_dir: the 16-bit model, a Hugging Face folder with safetensors.
        out_dir: the checkpoint's folder. It appears complete or not at all.
        calibration_texts: texts like those the model will see. See `calibration_windows`.
        group_size: input channels that share one scale. It must divide the width of every linear
            layer, and be a multiple of 32, which is what the kernels handle.
        seed: picks the calibration windows.
        check_tokens: how many tokens the check of the result reads.
        calibration_tokens: how many tokens the tool sees; None for as many as `calibration_windows`
            thinks right.
        use_tqdm: show a progress bar.

    Returns:
        `method`, `tool`, `version`, `group_size`, `calibration_tokens`, `seconds` (of the tool),
        `peak_memory_bytes` (of its process), `bytes_on_disk` (of the weights),
        `perplexity_before` and `perplexity` (of the result), both on the same short text.

    Raises:
        ValueError: an argument is wrong; nothing was started.
        ModelError: a weight file of the model is missing or cut off; nothing was started.
        QuantizeError: the tool failed.
        BrokenModelError: the tool finished, and its result is no working model.
    """
    model_dir, out_dir = Path(model_dir), Path(out_dir)
    route = _route(method, tool)
    config = _model_config(model_dir)
    _check_group_size(group_size, config)
    _check_out_dir(out_dir)
    if isinstance(calibration_texts, str) or not any(calibration_texts):
        raise ValueError("calibration_texts must be a list of texts, and it holds none.")
    widest = max(_input_widths(config).values())
    windows = calibration_windows(model_dir, calibration_texts, widest, seed, calibration_tokens)
    python = route.python()

    out_dir.parent.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix=f".{out_dir.name}-", dir=out_dir.parent))
    try:
        source, weights, result = work / "source", work / "weights", work / "result"
        for folder in (source, weights, result):
            folder.mkdir()
        write_source(model_dir, source)
        job = {
            "model_dir": str(source),
            "out_dir": str(weights),
            "calibration": windows,
            "group_size": group_size,
            "seed": seed,
            "dtype": half_dtype(),
            "report": str(work / "report.json"),
        }
        (work / "job.json").write_text(json.dumps(job))
        started = time.perf_counter()
        run_tool(python, route.script, work / "job.json", f"{method} by {tool}", use_tqdm)
        seconds = time.perf_counter() - started
        tool_version = route.tool_version()
        entry = quantization_config(method, group_size, tool, tool_version)
        write_checkpoint(model_dir, weights, result, entry)
        before, after = _check_perplexities(check_tokens, model_dir, result)
        check_perplexity(f"{method} by {tool}", before, after, MAX_PERPLEXITY_RATIO)
        os.replace(result, out_dir)
        report = json.loads((work / "report.json").read_text())
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return {
        "method": method,
        "tool": tool,
        "version": tool_version,
        "group_size": group_size,
        "calibration_tokens": sum(map(len, windows)),
        "seconds": seconds,
        **report,
        "bytes_on_disk": sum(file.stat().st_size for file in out_dir.glob("*.safetensors")),
        "perplexity_before": before,
        "perplexity": after,
    }


# --- checks before anything starts --------------------------------------------------------------


def _route(method: str, tool: str) -> Route:
    if (method, tool) not in ROUTES:
        pairs = ", ".join(f"{m} by {t}" for m, t in ROUTES)
        raise ValueError(f"No route for method {method!r} by tool {tool!r}. There are: {pairs}.")
    return ROUTES[method, tool]


def _model_config(model_dir: Path) -> dict[str, Any]:
    file = model_dir / "config.json"
    if not file.is_file() or not any(model_dir.glob("*.safetensors")):
        raise ValueError(
            f"No model in {model_dir}: expected a folder with config.json and safetensors. "
            "Run the merge stage first, or pass the folder of utils.hub.resolve_model()."
        )
    check_weights(model_dir)
    config: dict[str, Any] = json.loads(file.read_text())
    if config.get("quantization_config"):
        raise ValueError(f"{model_dir} is quantized already. Pass the 16-bit model it came from.")
    return config


def _input_widths(config: dict[str, Any]) -> dict[str, int]:
    """Input channels of the linear layers of a Llama-like model, by config field."""
    hidden = config["hidden_size"]
    head_dim = config.get("head_dim") or hidden // config["num_attention_heads"]
    return {
        "hidden_size": hidden,
        "num_attention_heads * head_dim": config["num_attention_heads"] * head_dim,
        "intermediate_size": config["intermediate_size"],
    }


def _check_group_size(group_size: int, config: dict[str, Any]) -> None:
    widths = _input_widths(config)
    if group_size < 32 or group_size % 32:
        raise ValueError(f"{group_size=} must be a positive multiple of 32, such as 64 or 128.")
    for name, width in widths.items():
        if width % group_size:
            fitting = [g for g in (32, 64, 128) if not any(w % g for w in widths.values())]
            raise ValueError(
                f"{group_size=} does not divide {name}={width}. For this model use one of "
                f"{fitting}."
            )


def _check_out_dir(out_dir: Path) -> None:
    if out_dir.exists() and (not out_dir.is_dir() or any(out_dir.iterdir())):
        raise ValueError(f"{out_dir} exists and is not empty. Remove it, or name another folder.")


def _check_perplexities(max_tokens: int, *folders: Path) -> tuple[float, ...]:
    # On a GPU in 16 bits: in 32, the larger models would not fit.
    dtype = getattr(torch, half_dtype()) if torch.cuda.is_available() else torch.float32
    return tuple(
        perplexity(folder, max_tokens=max_tokens, dtype=dtype, use_tqdm=False) for folder in folders
    )
