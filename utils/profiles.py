"""Hardware profiles: the same notebooks on a laptop, on one small GPU, on one large GPU.

A profile names a model and the settings that fit the machine. It is chosen automatically; the
environment variable `COURSE_PROFILE` (cpu, gpu-bundled, gpu-small or gpu) overrides the choice.
"""

from __future__ import annotations

import ctypes
import os
from dataclasses import dataclass, replace

import torch

ENV_VAR = "COURSE_PROFILE"


@dataclass(frozen=True)
class Profile:
    """One machine class and what to run on it.

    `max_model_len` counts tokens (prompt plus answer). `gpu_memory_utilization` is the share of
    the card's memory that vLLM may take. A group size is the number of weights that share one
    quantization scale: 32 or 64 for the bundled model, because its width, 576, is not a multiple
    of 128.
    """

    name: str
    model: str
    dtype: str
    device: str
    max_model_len: int
    train_examples: int
    train_steps: int
    train_batch_size: int
    learning_rate: float
    lora_r: int
    lora_alpha: int
    gradient_checkpointing: bool
    eval_examples: int
    gptq_group_size: int
    awq_group_size: int
    gptq_tool: str
    awq_tool: str
    gpu_memory_utilization: float
    # How much the pipeline's measures read. The base model writes prose until it is stopped, so it
    # is asked fewer messages than the others (`promises.py` counts how sure they make it), and
    # speed takes fewer messages than accuracy does.
    base_messages: int = 60
    serve_messages: int = 12
    text_tokens: int = 4096
    perplexity_examples: int = 32
    max_answer_tokens: int = 128  # a right answer has 93 at most
    calibration_tokens: int | None = None  # that GPTQ and AWQ see; None: see `calibration_windows`
    judges_accuracy: bool = True  # False: trained too little for the promises about accuracy
    # What the helpers of speculative decoding learn from.
    draft_chats: int = 240
    draft_steps: int = 400


_CPU = Profile(
    name="cpu",
    model="bundled",
    dtype="float32",
    device="cpu",
    max_model_len=2048,
    train_examples=780,
    train_steps=130,
    train_batch_size=6,
    learning_rate=2e-3,
    lora_r=16,
    lora_alpha=32,
    gradient_checkpointing=False,
    eval_examples=120,
    # Small groups: a small model has little to spare.
    gptq_group_size=32,
    awq_group_size=32,
    gptq_tool="gptqmodel",
    awq_tool="gptqmodel",
    gpu_memory_utilization=0.0,
)
PROFILES = {
    profile.name: profile
    for profile in (
        _CPU,
        # The same on a card, for lessons that hold a model several times, and `make gpu-check`.
        # float16: every card has it, and vLLM's kernels for small 4-bit groups ask for it.
        replace(
            _CPU, name="gpu-bundled", device="cuda", dtype="float16", gpu_memory_utilization=0.5
        ),
        Profile(
            name="gpu-small",
            model="HuggingFaceTB/SmolLM2-1.7B-Instruct",
            dtype="float16",  # a T4 has no fast bfloat16
            device="cuda",
            max_model_len=2048,
            train_examples=2000,
            train_steps=250,
            train_batch_size=8,
            learning_rate=2e-4,
            lora_r=16,
            lora_alpha=32,
            gradient_checkpointing=True,
            eval_examples=200,
            gptq_group_size=128,
            awq_group_size=128,
            gptq_tool="gptqmodel",
            awq_tool="gptqmodel",
            gpu_memory_utilization=0.85,
        ),
        Profile(
            name="gpu",
            model="mistralai/Mistral-7B-Instruct-v0.3",
            dtype="bfloat16",
            device="cuda",
            max_model_len=4096,
            train_examples=2000,
            train_steps=250,
            train_batch_size=8,
            learning_rate=2e-4,
            lora_r=16,
            lora_alpha=32,
            gradient_checkpointing=True,
            eval_examples=200,
            gptq_group_size=128,
            awq_group_size=128,
            gptq_tool="gptqmodel",
            awq_tool="gptqmodel",
            gpu_memory_utilization=0.9,
        ),
    )
}
# The chain of `make test`: the same real libraries and the same model with a fifth of the work.
# A name for tests, so it is not among the profiles that people are offered.
PROOF_PROFILE = replace(
    _CPU,
    name="cpu-small",
    train_examples=400,
    train_steps=8,
    train_batch_size=2,
    eval_examples=12,
    base_messages=4,
    serve_messages=3,
    text_tokens=512,
    perplexity_examples=4,
    max_answer_tokens=32,
    calibration_tokens=1536,
    judges_accuracy=False,
    draft_chats=12,
    draft_steps=16,
)


def get_profile(name: str | None = None) -> Profile:
    """Return a profile by name, by `$COURSE_PROFILE`, or by looking at the machine.

    Without a name: no CUDA card gives "cpu"; a card with less than 14 GB gives "gpu-bundled", one
    with less than 22 GB "gpu-small", and a larger one "gpu".

    Raises:
        ValueError: no profile has that name.
    """
    name = name or os.environ.get(ENV_VAR) or _detect()
    if name == PROOF_PROFILE.name:
        return PROOF_PROFILE
    if name not in PROFILES:
        raise ValueError(
            f"Unknown profile {name!r}. Expected one of {', '.join(PROFILES)}. "
            f"It comes from the argument or from the environment variable {ENV_VAR}."
        )
    return PROFILES[name]


def bundled_profile() -> Profile:
    """The profile with the bundled model, on the card where there is one.

    For a lesson that holds a model several times over, which a large one would not survive.
    """
    profile = get_profile()
    return profile if profile.model == "bundled" else PROFILES["gpu-bundled"]


def require_device(profile: Profile) -> None:
    """Raise a RuntimeError when the machine lacks what `profile` needs."""
    if profile.device == "cuda" and not torch.cuda.is_available():
        raise RuntimeError(
            f"The profile {profile.name!r} needs a CUDA GPU and PyTorch sees none here. "
            f"Use {ENV_VAR}=cpu, or install the GPU environment (environment-gpu.yml)."
        )


def half_dtype() -> str:
    """The 16-bit type that this machine multiplies fast: "bfloat16", or "float16" on older cards.

    Cards before Ampere (compute capability 8.0), such as the T4, know no bfloat16.
    """
    if torch.cuda.is_available() and torch.cuda.get_device_capability()[0] < 8:
        return "float16"
    return "bfloat16"


def fast_dtype() -> str:
    """The type in which this machine computes fastest: `half_dtype()`, but float32 on most CPUs.

    A CPU without instructions for bfloat16 (AVX512-BF16 or AMX; most laptops) multiplies it several
    times slower than float32. See `benchmarks/ledger.md`.
    """
    cpu = torch.cpu
    if torch.cuda.is_available() or cpu._is_avx512_bf16_supported() or cpu._is_amx_tile_supported():
        return half_dtype()
    return "float32"


def driver_cuda_version() -> tuple[int, int] | None:
    """The newest CUDA that the NVIDIA driver here supports, such as (12, 4); None: no driver."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None
    version = ctypes.c_int()
    if driver.cuDriverGetVersion(ctypes.byref(version)):
        return None
    return version.value // 1000, version.value % 1000 // 10


def unused_card() -> str | None:
    """Why PyTorch leaves an NVIDIA card alone that has a driver here, in a sentence; else None."""
    version = driver_cuda_version()
    if version is None or torch.cuda.is_available():
        return None
    if torch.version.cuda is None:
        return (
            f"There is an NVIDIA driver here, but PyTorch {torch.__version__} is a build for CPUs. "
            "environment-gpu.yml installs the one for GPUs."
        )
    have, need = "{}.{}".format(*version), torch.version.cuda
    return (
        f"There is an NVIDIA driver here, but PyTorch {torch.__version__} cannot use the card: the "
        f"driver supports CUDA {have}, and this build was made for {need}."
    )


def _detect() -> str:
    if not torch.cuda.is_available():
        return "cpu"
    memory = torch.cuda.get_device_properties(0).total_memory
    if memory < 14e9:  # too little for the 1.7 billion parameters of gpu-small
        return "gpu-bundled"
    return "gpu" if memory >= 22e9 else "gpu-small"
