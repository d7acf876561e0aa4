"""What a simulated replica can do."""

from __future__ import annotations

from dataclasses import dataclass

from utils.sim.cluster.cost import CostModel


@dataclass(frozen=True)
class ReplicaConfig:
    """What a replica can do. Names as vLLM's options.

    Attributes:
        cost: seconds per step.
        num_blocks: blocks of the prefix cache; None for no limit.
        block_size: tokens in a block.
        max_num_batched_tokens: budget of tokens in a step.
        max_num_seqs: requests that decode at once.
        blocks_after_prefill: a prompt's blocks count as cached, and events tell of them, only when
            its whole prefill has ended, and a prompt is looked up when its own prefill begins.
            False: its blocks are looked up and count as cached the moment it arrives. vLLM is in
            between: it looks up when the prefill begins, and stores chunk by chunk.
    """

    cost: CostModel
    num_blocks: int | None
    block_size: int = 512
    max_num_batched_tokens: int = 8192
    max_num_seqs: int = 256
    blocks_after_prefill: bool = False

    def __post_init__(self) -> None:
        if self.block_size < 1 or not 1 <= self.max_num_seqs < self.max_num_batched_tokens:
            raise ValueError(
                "block_size and max_num_seqs must be at least 1, and max_num_batched_tokens more "
                f"than max_num_seqs, or prompts starve; got {self.block_size}, "
                f"{self.max_num_seqs} and {self.max_num_batched_tokens}"
            )
