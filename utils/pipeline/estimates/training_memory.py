"""How much memory training takes, from a model's shape alone: full fine-tuning, LoRA and QLoRA.

The recipe is mixed precision with Adam, as in Rajbhandari et al., "ZeRO", 2019, section 3.1,
https://arxiv.org/abs/1910.02054: of each trained number a 16-bit weight, a 16-bit gradient, and in
float32 a master copy and Adam's two running means. QLoRA's bits per weight: Dettmers et al., 2023,
section 3, https://arxiv.org/abs/2305.14314. All results are in bytes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Literal

from utils.pipeline.estimates.train_shapes import ALL_LINEAR, TrainShape

Method = Literal["full", "lora", "qlora"]
METHODS: tuple[Method, ...] = ("full", "lora", "qlora")
HALF, FULL = 2, 4  # bytes of a 16-bit number and of a float32
ADAM_STATES = 2  # running means of the gradient and of its square, both float32
NF4_BLOCK = 64  # weights that share one scale
NF4_SCALES = 256  # scales that share one scale of their own, under double quantization


@dataclass(frozen=True)
class TrainingMemory:
    """Bytes by what they hold, at the worst moment of a training step.

    `weights`: the model, with 16-bit LoRA matrices where there are any. `gradients`: of the trained
    numbers, 16 bit. `optimizer`: float32 master copies and Adam's states. `activations`: what the
    forward pass keeps for the backward pass. `recomputed`: under checkpointing, the one layer that
    the backward pass computes again. `logits`: the float32 log-probabilities that the loss keeps.
    `workspace`: the largest temporary tensors.
    """

    weights: int
    gradients: int
    optimizer: int
    activations: int
    recomputed: int
    logits: int
    workspace: int

    @property
    def total(self) -> int:
        return sum(asdict(self).values())

    @property
    def fixed(self) -> int:
        """What is needed however short the texts are."""
        return self.weights + self.gradients + self.optimizer


def training_memory(
    shape: TrainShape,
    method: Method,
    num_tokens: int,
    *,
    num_predicted: int | None = None,
    r: int = 16,
    target_modules: Sequence[str] = ALL_LINEAR,
    checkpointing: bool = False,
    double_quant: bool = True,
    paged_optimizer: bool = False,
) -> TrainingMemory:
    """Predict the memory of one training step.

    Args:
        shape: of the model.
        method: "full" trains all weights; "lora" matrices beside 16-bit weights; "qlora" matrices
            beside NF4 weights.
        num_tokens: in one batch, all sequences together.
        num_predicted: tokens of the batch that the loss looks at. Default: all.
        r, target_modules: of LoRA; without meaning for "full".
        checkpointing: keep only each layer's input, and compute the rest again when it is needed.
        double_quant: of NF4.
        paged_optimizer: its state may move to the host's memory, so it is counted as 0.

    Raises:
        ValueError: unknown method, negative number of tokens, or bad `r` or `target_modules`.
    """
    if method not in METHODS:
        raise ValueError(f"method must be one of {', '.join(METHODS)}, got {method!r}.")
    predicted = num_tokens if num_predicted is None else num_predicted
    if num_tokens < 0 or not 0 <= predicted <= num_tokens:
        raise ValueError(
            f"num_tokens ({num_tokens}) must not be negative, and num_predicted ({predicted}) must "
            "lie between 0 and num_tokens."
        )
    if method == "full":
        trained, adapter = shape.num_parameters(), 0
    else:
        trained = adapter = shape.lora_parameters(r, target_modules)
    base = HALF * shape.num_parameters()
    temporary = 0
    if method == "qlora":
        base = nf4_model_bytes(shape, double_quant)
        # A layer's weights are spelled out in 16 bit while they multiply.
        temporary = HALF * max(i * o for i, o in shape.linears().values())
    logits = predicted * shape.vocab_size
    return TrainingMemory(
        weights=base + HALF * adapter,
        gradients=HALF * trained,
        optimizer=0 if paged_optimizer else FULL * (1 + ADAM_STATES) * trained,
        activations=activation_bytes(
            shape,
            method,
            num_tokens,
            r=r,
            target_modules=target_modules,
            checkpointing=checkpointing,
        ),
        recomputed=checkpointing
        * layer_activation_bytes(shape, method, num_tokens, r, target_modules),
        logits=FULL * logits,
        # While the loss is computed: the 16-bit logits and their float32 copy.
        workspace=max(temporary, (HALF + FULL) * logits),
    )


def layer_activation_bytes(
    shape: TrainShape,
    method: Method,
    num_tokens: int,
    r: int = 16,
    target_modules: Sequence[str] = ALL_LINEAR,
) -> int:
    """What one decoder layer keeps for the backward pass, without checkpointing.

    Compute is in 16 bit, RMSNorm in float32, and attention does not keep its scores. A trained
    weight needs its input; a frozen one does not. But what lies between the weights is kept either
    way, and a LoRA matrix needs the same input as the weight beside it.
    """
    targets = set(ALL_LINEAR if method == "full" else target_modules)
    hidden, inner = shape.hidden_size, shape.intermediate_size
    norms = 2 * _norm_bytes(shape, method)
    attention = HALF * (2 * shape.q_size + 2 * shape.kv_size)  # query, key, value, and the output
    mlp = HALF * 3 * inner  # gate, its SiLU, up
    inputs = HALF * hidden * bool(targets & {"q_proj", "k_proj", "v_proj"})
    inputs += HALF * hidden * bool(targets & {"gate_proj", "up_proj"})
    inputs += HALF * inner * ("down_proj" in targets)
    inside = 0 if method == "full" else HALF * r * len(targets)  # A x, which B needs
    return num_tokens * (norms + attention + mlp + inputs + inside)


def activation_bytes(
    shape: TrainShape,
    method: Method,
    num_tokens: int,
    *,
    r: int = 16,
    target_modules: Sequence[str] = ALL_LINEAR,
    checkpointing: bool = False,
) -> int:
    """What the forward pass keeps for the backward pass, the loss excluded.

    With checkpointing: the input of each layer alone (Chen et al., "Training Deep Nets with
    Sublinear Memory Cost", 2016, https://arxiv.org/abs/1604.06174).
    """
    layers = shape.num_hidden_layers
    # The final norm's result goes into the loss, which keeps it too if the output layer is trained.
    last = num_tokens * _norm_bytes(shape, method)
    last += num_tokens * HALF * shape.hidden_size if method == "full" else 0
    if checkpointing:
        return layers * num_tokens * HALF * shape.hidden_size + last
    kept = layers * layer_activation_bytes(shape, method, num_tokens, r, target_modules) + last
    if method != "full":
        # Nothing below the first LoRA matrices is trained: the first norm needs no gradient.
        kept -= num_tokens * _norm_bytes(shape, method)
    return kept


def _norm_bytes(shape: TrainShape, method: Method) -> int:
    """RMSNorm, per token: its input in float32; and what its weight multiplies, if trained."""
    return (FULL + (HALF if method == "full" else 0)) * shape.hidden_size


# --- NF4 ----------------------------------------------------------------------------------------


def nf4_bits_per_weight(double_quant: bool = True) -> float:
    """4 bits for the code, and the share of the scales: 0.5 bits, or 0.127 quantized twice."""
    if not double_quant:
        return 4 + 32 / NF4_BLOCK
    return 4 + 8 / NF4_BLOCK + 32 / (NF4_BLOCK * NF4_SCALES)


def nf4_bytes(num_weights: int, double_quant: bool = True) -> int:
    """Bytes of one tensor in bitsandbytes' NF4, with its small tables."""
    scales = math.ceil(num_weights / NF4_BLOCK)
    codes = math.ceil(num_weights / 2) + 16 * FULL  # and the 16 values of the code book
    if not double_quant:
        return codes + FULL * scales
    # The scales in 8 bit, their code book of 256 values, their scales, and their mean.
    return codes + scales + 256 * FULL + FULL * math.ceil(scales / NF4_SCALES) + FULL


def nf4_model_bytes(shape: TrainShape, double_quant: bool = True) -> int:
    """Bytes of a model whose linear layers are in NF4 and all else in 16 bit."""
    layer = sum(nf4_bytes(i * o, double_quant) for i, o in shape.linears().values())
    return shape.num_hidden_layers * layer + HALF * shape.other_parameters()
