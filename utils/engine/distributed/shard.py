"""Which part of a model a rank holds, and how it reads only that part from the files."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from torch import Tensor

from utils.engine.config.model import ModelConfig


def partition(total: int, parts: int, index: int) -> range:
    """The numbers below `total` that part `index` gets. Where it doesn't divide, the first parts
    get one more."""
    least, more = divmod(total, parts)
    begin = index * least + min(index, more)
    return range(begin, begin + least + (index < more))


def get_pp_indices(num_hidden_layers: int, pp_rank: int, pp_size: int) -> tuple[int, int]:
    """The layers `start_layer` to `end_layer - 1` of a pipeline stage.

    As in vLLM: layers that are left over go to the stages before the last, which has the output
    embedding to compute.
    """
    sizes = [num_hidden_layers // pp_size] * pp_size
    for i in range(num_hidden_layers % pp_size):
        sizes[-2 - i] += 1
    start = sum(sizes[:pp_rank])
    return start, start + sizes[pp_rank]


@dataclass(frozen=True)
class Shard:
    """What one rank holds of a model.

    Args:
        model: the whole model's shape.
        tp_rank, tp_size: which part of each layer.
        pp_rank, pp_size: which layers.
    """

    model: ModelConfig
    tp_rank: int = 0
    tp_size: int = 1
    pp_rank: int = 0
    pp_size: int = 1

    @property
    def layers(self) -> range:
        return range(*get_pp_indices(self.model.num_hidden_layers, self.pp_rank, self.pp_size))

    @property
    def kv_heads(self) -> range:
        """Each with its query heads: those that share a KV head stay with it."""
        return partition(self.model.num_key_value_heads, self.tp_size, self.tp_rank)

    @property
    def intermediate(self) -> range:
        """Columns of `gate_up_proj`, and the rows of `down_proj` that take what they yield."""
        return partition(self.model.intermediate_size, self.tp_size, self.tp_rank)

    @property
    def vocabulary(self) -> range:
        return partition(self.model.vocab_size, self.tp_size, self.tp_rank)

    @property
    def has_embedding(self) -> bool:
        return self.pp_rank == 0

    @property
    def has_lm_head(self) -> bool:
        return self.pp_rank == self.pp_size - 1

    def config(self) -> ModelConfig:
        """The shape of this rank's part, as if it were a model."""
        group_size = self.model.num_attention_heads // self.model.num_key_value_heads
        return replace(
            self.model,
            num_hidden_layers=len(self.layers),
            num_attention_heads=len(self.kv_heads) * group_size,
            num_key_value_heads=len(self.kv_heads),
            intermediate_size=len(self.intermediate),
            vocab_size=len(self.vocabulary),
        )

    def source(self, name: str) -> tuple[str, int, slice]:
        """Where a rank's weight comes from.

        Args:
            name: as in `checkpoint_views` of the rank's model, whose layers count from 0.

        Returns:
            Its name in the files, the dimension along which it is cut, and which part of it.
        """
        head_dim = self.model.head_dim
        group_size = self.model.num_attention_heads // self.model.num_key_value_heads
        if name.startswith("model.layers."):
            _, _, layer, rest = name.split(".", 3)
            name = f"model.layers.{self.layers[int(layer)]}.{rest}"
        elif name == "lm_head.weight" and self.model.tie_word_embeddings:
            return "model.embed_tokens.weight", 0, _slice(self.vocabulary)
        kinds: dict[str, tuple[int, range, int]] = {
            "q_proj": (0, self.kv_heads, group_size * head_dim),
            "k_proj": (0, self.kv_heads, head_dim),
            "v_proj": (0, self.kv_heads, head_dim),
            "o_proj": (1, self.kv_heads, group_size * head_dim),
            "gate_proj": (0, self.intermediate, 1),
            "up_proj": (0, self.intermediate, 1),
            "down_proj": (1, self.intermediate, 1),
            "embed_tokens": (0, self.vocabulary, 1),
            "lm_head": (0, self.vocabulary, 1),
        }
        kind = name.split(".")[-2]
        if kind not in kinds:
            return name, 0, slice(None)  # norms: everybody has the whole
        dim, part, width = kinds[kind]
        return name, dim, _slice(part, width)


def _slice(part: range, width: int = 1) -> slice:
    return slice(part.start * width, part.stop * width)


def load_shard(path: Path, shard: Shard, targets: dict[str, Tensor]) -> None:
    """Fill a rank's weights from the safetensors files in `path`. Only its part is read.

    Args:
        targets: by the weights' names, see `Shard.source`.

    Raises:
        ValueError: a weight is missing, has another shape than config.json implies, or is damaged.
    """
    index = path / "model.safetensors.index.json"
    files: Callable[[str], str] = lambda _: "model.safetensors"  # noqa: E731
    if index.is_file():
        files = json.loads(index.read_text())["weight_map"].get
    opened: dict[str, Any] = {}
    for name, target in targets.items():
        stored, dim, part = shard.source(name)
        try:
            file = files(stored)
            if file not in opened:
                opened[file] = safe_open(path / file, framework="pt")
            whole = opened[file].get_slice(stored)
            tensor = whole[part] if dim == 0 else whole[:, part]
        except (SafetensorError, OSError, TypeError) as error:
            raise ValueError(
                f"Weight {stored!r} cannot be read from {path} ({error}). Fetch the model again."
            ) from error
        if tensor.shape != target.shape:
            raise ValueError(
                f"Weight {stored!r}: this rank's part has shape {list(tensor.shape)}, but "
                f"config.json implies {list(target.shape)}."
            )
        target.copy_(tensor)
