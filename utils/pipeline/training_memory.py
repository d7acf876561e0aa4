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
from typing import Any, Literal

Method = Literal["full", "lora", "qlora"]
METHODS: tuple[Method, ...] = ("full", "lora", "qlora")
ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
MLP = ("gate_proj", "up_proj", "down_proj")
ALL_LINEAR = ATTENTION + MLP

HALF, FULL = 2, 4  # bytes of a 16-bit number and of a float32
ADAM_STATES = 2  # running means of the gradient and of its square, both float32
NF4_BLOCK = 64  # weights that share one scale
NF4_SCALES = 256  # scales that share one scale of their own, under double quantization


@dataclass(frozen=True)
class TrainShape:
    """The numbers of a Llama-like `config.json` that decide how much memory training takes."""

    name: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    tie_word_embeddings: bool

    @classmethod
    def from_config(cls, config: Any, name: str = "") -> TrainShape:
        """Read the shape from a transformers config of the Llama family (Mistral included)."""
        heads = config.num_attention_heads
        head_dim = getattr(config, "head_dim", None) or config.hidden_size // heads
        return cls(
            name=name or config.model_type,
            vocab_size=config.vocab_size,
            hidden_size=config.hidden_size,
            intermediate_size=config.intermediate_size,
            num_hidden_layers=config.num_hidden_layers,
            num_attention_heads=heads,
            num_key_value_heads=config.num_key_value_heads,
            head_dim=head_dim,
            tie_word_embeddings=config.tie_word_embeddings,
        )

    @property
    def q_size(self) -> int:
        """Width of all query heads together."""
        return self.num_attention_heads * self.head_dim

    @property
    def kv_size(self) -> int:
        """Width of all key heads together."""
        return self.num_key_value_heads * self.head_dim

    def linears(self) -> dict[str, tuple[int, int]]:
        """(in_features, out_features) of the seven linear layers of one decoder layer."""
        hidden, inner = self.hidden_size, self.intermediate_size
        return {
            "q_proj": (hidden, self.q_size),
            "k_proj": (hidden, self.kv_size),
            "v_proj": (hidden, self.kv_size),
            "o_proj": (self.q_size, hidden),
            "gate_proj": (hidden, inner),
            "up_proj": (hidden, inner),
            "down_proj": (inner, hidden),
        }

    def linear_parameters(self) -> int:
        """Weights in the linear layers of all decoder layers: what QLoRA quantizes."""
        return self.num_hidden_layers * sum(i * o for i, o in self.linears().values())

    def other_parameters(self) -> int:
        """Embedding, output layer (if it is not the embedding) and norms: they stay in 16 bit."""
        tables = 1 if self.tie_word_embeddings else 2
        norms = (2 * self.num_hidden_layers + 1) * self.hidden_size
        return tables * self.vocab_size * self.hidden_size + norms

    def num_parameters(self) -> int:
        """All weights of the model."""
        return self.linear_parameters() + self.other_parameters()

    def lora_parameters(self, r: int, target_modules: Sequence[str] = ALL_LINEAR) -> int:
        """Trained numbers: A has r x in_features, B has out_features x r, for each target.

        Raises:
            ValueError: r below 1, or a target that no decoder layer has.
        """
        linears = self.linears()
        unknown = sorted(set(target_modules) - set(linears))
        if r < 1 or unknown:
            raise ValueError(
                f"r must be at least 1, got {r}; target_modules must be among "
                f"{', '.join(linears)}; unknown: {unknown or 'none'}."
            )
        return self.num_hidden_layers * sum(r * sum(linears[name]) for name in set(target_modules))


# From the models' published config.json. Mistral-7B is mistralai/Mistral-7B-Instruct-v0.3.
TRAIN_SHAPES = {
    shape.name: shape
    for shape in (
        TrainShape("SmolLM2-135M", 49152, 576, 1536, 30, 9, 3, 64, True),
        TrainShape("SmolLM2-1.7B", 49152, 2048, 8192, 24, 32, 32, 64, True),
        TrainShape("Mistral-7B", 32768, 4096, 14336, 32, 32, 8, 128, False),
    )
}


@dataclass(frozen=True)
class TrainingMemory:
    """Bytes by what they hold, at the worst moment of a training step.

    `weights`: the model, with 16-bit LoRA matrices where there are any. `gradients`: of the trained
    numbers, 16 bit. `optimizer`: float32 master copies and Adam's states. `activations`: what the
    forward pass keeps for the backward pass. `logits`: the float32 log-probabilities that the loss
    keeps. `workspace`: the largest temporary tensors.
    """

    weights: int
    gradients: int
    optimizer: int
    activations: int
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
            shape, method, num_tokens, r=r, target_modules=target_modules,
            checkpointing=checkpointing,
        ),
        logits=FULL * logits,
        # While the loss is computed: the 16-bit logits and their float32 copy.
        workspace=max(temporary, (HALF + FULL) * logits),
    )  # fmt: skip


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

    Counted along one decoder layer (compute in 16 bit, RMSNorm in float32, attention that does not
    keep its scores). A trained weight needs its input; a frozen one does not. But what lies between
    the weights is kept either way, and a LoRA matrix needs the same input as the weight beside it.
    """
    targets = set(ALL_LINEAR if method == "full" else target_modules)
    hidden, inner = shape.hidden_size, shape.intermediate_size
    norms = 2 * FULL * hidden + (2 * HALF * hidden if method == "full" else 0)
    attention = HALF * (2 * shape.q_size + 2 * shape.kv_size)  # query, key, value, and the output
    mlp = HALF * 3 * inner  # gate, its SiLU, up
    inputs = HALF * hidden * bool(targets & {"q_proj", "k_proj", "v_proj"})
    inputs += HALF * hidden * bool(targets & {"gate_proj", "up_proj"})
    inputs += HALF * inner * ("down_proj" in targets)
    inside = 0 if method == "full" else HALF * r * len(targets)  # A x, which B needs
    per_layer = norms + attention + mlp + inputs + inside
    last_norm = FULL * hidden + (2 * HALF * hidden if method == "full" else 0)
    if checkpointing:
        kept = shape.num_hidden_layers * HALF * hidden + per_layer
    else:
        kept = shape.num_hidden_layers * per_layer
    return num_tokens * (kept + last_norm)


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
