"""What a pipeline run will take on a GPU: memory and time by formula, before anything is loaded.

Estimated, not measured. Memory follows from shapes, and time from work over speed (`workload.py`),
plus what no data sheet tells, assumed below. Expect memory to be right within a fifth, and time
within a factor of three.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from utils.pipeline.estimates.cards import Card
from utils.pipeline.estimates.train_shapes import TrainShape
from utils.pipeline.estimates.training_memory import HALF, training_memory
from utils.pipeline.estimates.workload import (
    EFFICIENCY,
    TRAINING_EFFICIENCY,
    Lengths,
    answer_seconds,
    compute_seconds,
    int4_bytes,
    kv_bytes_per_token,
    load_seconds,
    shape_of,
    task_lengths,
    transfer_seconds,
)
from utils.pipeline.quantizers.calibration import MIN_BUDGET, WINDOW
from utils.pipeline.stages.folders import BASE
from utils.profiles import Profile
from utils.vllm.engine_settings import EngineSettings
from utils.vllm.serve import TTFT_REPEATS

FLOAT = 4  # bytes of a float32
CUDA_CONTEXT = 0.5e9  # what CUDA and its libraries hold on the card, per process
HOST_LIBRARIES = 1.2e9  # Python, torch and the other libraries, runner and stage together
START_SECONDS = 60.0  # vLLM: loading, profiling, capturing CUDA graphs
GRAPH_BYTES = 0.5e9  # those graphs
PROFILED_TOKENS = 8192  # vLLM's max_num_batched_tokens for its `LLM` on cards below 70 GiB
COLUMN_SECONDS = 2e-4  # GPTQ: a dozen small kernels for each input channel, one after the other
SCALE_TRIALS = 20  # AWQ: scales that are tried for each group of layers, on half of the tokens


@dataclass(frozen=True)
class Estimate:
    """What one stage takes.

    `card` is the GPU's memory in bytes at the worst moment, by what it holds; empty without GPU.
    `host` is the computer's own. `problem` says why the stage cannot run, `note` what else follows.
    """

    card: dict[str, float] = field(default_factory=dict)
    host: float = HOST_LIBRARIES
    seconds: float = 0.0
    note: str = ""
    problem: str = ""

    @property
    def card_bytes(self) -> float:
        return sum(self.card.values())


def estimate_stages(profile: Profile, card: Card) -> dict[str, Estimate]:
    """Estimate every stage of the pipeline. A stage that does not fit has a `problem`.

    Raises:
        EstimateError: see `shape_of`.
    """
    shape, lengths = shape_of(profile), task_lengths()
    estimates = {
        "data": Estimate(seconds=2),
        "finetune": _finetune(profile, shape, lengths, card),
        "merge": _merge(profile, shape, lengths, card),
        "gptq": _quantize("gptq", shape, lengths, card),
        "awq": _quantize("awq", shape, lengths, card),
        "evaluate": _vllm(profile, shape, lengths, card, "evaluate"),
        "serve": _vllm(profile, shape, lengths, card, "serve"),
        "report": Estimate(seconds=5),
    }
    for name, estimate in estimates.items():
        if not estimate.problem and estimate.card_bytes > card.memory_bytes:
            largest = max(estimate.card, key=lambda what: estimate.card[what])
            problem = (
                f"needs {estimate.card_bytes / 1e9:.1f} GB, most of it for {largest}; an NVIDIA "
                f"{card.name} has {card.memory_bytes / 1e9:.1f} GB."
            )
            estimates[name] = replace(estimate, problem=problem)
    return estimates


def _finetune(profile: Profile, shape: TrainShape, lengths: Lengths, card: Card) -> Estimate:
    """QLoRA. Frozen weights get no gradients, so backward costs one forward, not two."""
    tokens = lengths.batch(profile.train_batch_size)
    memory = training_memory(
        shape,
        "qlora",
        tokens,
        num_predicted=round(profile.train_batch_size * lengths.answer),
        r=profile.lora_r,
        checkpointing=profile.gradient_checkpointing,
        paged_optimizer=True,
    )
    masters = 2 * FLOAT * shape.lora_parameters(profile.lora_r)  # weights and gradients
    passes = 3 if profile.gradient_checkpointing else 2
    matmul = compute_seconds(passes * tokens, shape, card, TRAINING_EFFICIENCY)
    # In each pass every NF4 weight is read, spelled out in 16 bit, and read again to multiply.
    spelled_out = passes * shape.linear_parameters() * (0.5 + 2 * HALF)
    step = matmul + transfer_seconds(spelled_out, card)
    return Estimate(
        card={
            "weights in NF4": memory.weights,
            "LoRA in float32": masters,
            "gradients": memory.gradients,
            "activations": memory.activations + memory.recomputed,
            "logits and workspace": memory.logits + memory.workspace,
            "CUDA": CUDA_CONTEXT,
        },
        # Adam's states are paged: they are in the host's memory when the card is full.
        host=HOST_LIBRARIES + 2 * FLOAT * shape.lora_parameters(profile.lora_r) + 2e9,
        seconds=profile.train_steps * step + load_seconds(shape),
        note=f"{tokens} tokens per step, {step:.1f} s each",
    )


def _merge(profile: Profile, shape: TrainShape, lengths: Lengths, card: Card) -> Estimate:
    """The sum is taken in float32 by the CPU; two perplexities are measured on the card."""
    parameters = shape.num_parameters()
    return Estimate(
        card=_scored(shape),
        host=HOST_LIBRARIES + FLOAT * parameters,
        seconds=2 * load_seconds(shape) + 2 * _perplexities(profile, shape, lengths, card),
        note="merged on the CPU in float32",
    )


def _quantize(method: str, shape: TrainShape, lengths: Lengths, card: Card) -> Estimate:
    """One decoder layer at a time on the card; then the whole model, to check its perplexity."""
    inputs = [width for width, _ in shape.linears().values()]
    widest, layer = max(inputs), max(i * o for i, o in shape.linears().values())
    tokens = max(MIN_BUDGET, 2 * widest) // WINDOW * WINDOW
    working = {
        "one layer": HALF * shape.linear_parameters() / shape.num_hidden_layers,
        "its float32 copies": 3 * FLOAT * layer,
        # Second moments of the inputs, their Cholesky factor and its inverse; or the inputs.
        "second moments": 3 * FLOAT * widest**2 if method == "gptq" else HALF * tokens * widest,
        "calibration activations": 2 * HALF * tokens * shape.hidden_size,
        "CUDA": 2 * CUDA_CONTEXT,
    }
    check = _scored(shape)
    if method == "gptq":
        # Two passes (inputs, then quantized outputs), a second moment per input, and the columns.
        moments = 2 * tokens * sum(width**2 for width in inputs) * shape.num_hidden_layers
        work = compute_seconds(2 * tokens, shape, card) + moments / (
            card.tflops * 1e12 * EFFICIENCY / 8
        )
        work += COLUMN_SECONDS * sum(inputs) * shape.num_hidden_layers
    else:
        work = compute_seconds((2 + SCALE_TRIALS / 2) * tokens, shape, card)
    return Estimate(
        card=max(working, check, key=lambda parts: sum(parts.values())),
        host=HOST_LIBRARIES + 2 * HALF * shape.num_parameters(),
        seconds=work + 3 * load_seconds(shape) + 2 * compute_seconds(2048, shape, card),
        note=f"{tokens} calibration tokens; the layers themselves need "
        f"{sum(working.values()) / 1e9:.1f} GB, the check of the whole model the rest",
    )


def _vllm(
    profile: Profile, shape: TrainShape, lengths: Lengths, card: Card, stage: str
) -> Estimate:
    """vLLM takes its share of the card; what weights and activations leave holds the KV cache.

    That is `determine_available_memory` of vllm/v1/worker/gpu_worker.py.
    """
    engine = EngineSettings(
        max_model_len=profile.max_model_len, gpu_memory_utilization=profile.gpu_memory_utilization
    ).arguments()
    seqs, block = engine["max_num_seqs"], engine["block_size"]
    budget = profile.gpu_memory_utilization * card.memory_bytes
    per_token = HALF * (3 * shape.intermediate_size + 4 * shape.hidden_size)
    activations = PROFILED_TOKENS * per_token + 3 * FLOAT * seqs * shape.vocab_size
    weights = {
        "base": HALF * shape.num_parameters(),
        "merge": HALF * shape.num_parameters(),
        "gptq": int4_bytes(shape, profile.gptq_group_size),
        "awq": int4_bytes(shape, profile.awq_group_size),
    }
    other = activations + GRAPH_BYTES + CUDA_CONTEXT
    blocks = {
        name: max(0, int((budget - size - other) // (block * kv_bytes_per_token(shape))))
        for name, size in weights.items()
    }
    fitting = {name: count * block // profile.max_model_len for name, count in blocks.items()}
    seconds = 0.0
    for name, size in weights.items():
        # Messages without and with prefix caching; a TTFT is measured on a miss and on a hit.
        asked_to_serve = profile.serve_messages + min(TTFT_REPEATS, profile.serve_messages)
        batches = dict.fromkeys((False, True), asked_to_serve)
        if stage == "evaluate":
            batches = {True: profile.base_messages if name == BASE else profile.eval_examples}
        for caching, asked in batches.items():
            seconds += START_SECONDS
            seconds += answer_seconds(asked, shape, lengths, card, size, seqs, caching)
    if stage == "serve":
        seconds += START_SECONDS  # the server
    else:
        seconds += 2 * (load_seconds(shape) + _perplexities(profile, shape, lengths, card))
    problem = ""
    if not fitting["base"]:
        problem = (
            f"{profile.gpu_memory_utilization:.0%} of an NVIDIA {card.name} are "
            f"{budget / 1e9:.1f} GB. Weights ({weights['base'] / 1e9:.1f} GB) and the rest "
            f"({other / 1e9:.1f} GB) leave {blocks['base'] * block} tokens of KV cache, fewer "
            f"than max_model_len={profile.max_model_len}."
        )
    return Estimate(
        card={
            "16-bit weights": weights["base"],
            "activations": activations,
            "CUDA graphs": GRAPH_BYTES,
            "CUDA": CUDA_CONTEXT,
            "KV cache": blocks["base"] * block * kv_bytes_per_token(shape),
        },
        host=HOST_LIBRARIES + 3e9,
        seconds=seconds,
        note=f"KV cache of {blocks['base']:,} blocks = {blocks['base'] * block:,} tokens = "
        f"{fitting['base']} requests of {profile.max_model_len} beside the 16-bit weights "
        f"({weights['base'] / 1e9:.1f} GB), {fitting['gptq']} beside 4-bit ones "
        f"({weights['gptq'] / 1e9:.1f} GB)",
        problem=problem,
    )


def _perplexities(profile: Profile, shape: TrainShape, lengths: Lengths, card: Card) -> float:
    held_out = profile.perplexity_examples * (lengths.prompt + lengths.answer)
    return compute_seconds(profile.text_tokens + held_out, shape, card)


def _scored(shape: TrainShape) -> dict[str, float]:
    """Memory while the perplexity of a whole 16-bit model is measured, a window at a time."""
    return {
        "16-bit weights": HALF * shape.num_parameters(),
        "logits": (HALF + 2 * FLOAT) * 512 * shape.vocab_size,
        "CUDA": CUDA_CONTEXT,
    }
