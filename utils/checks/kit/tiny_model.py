"""A tiny random Llama from transformers: the model that loops are checked on."""

from __future__ import annotations

import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM


class TinyModel:
    """A random Llama of a few thousand weights; the same on each machine and in each call."""

    vocab_size = 32

    def __init__(self) -> None:
        config = LlamaConfig(
            vocab_size=self.vocab_size,
            hidden_size=32,
            intermediate_size=48,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=8,
            initializer_range=0.4,
            max_position_embeddings=256,
            bos_token_id=None,
            eos_token_id=None,
            pad_token_id=0,
            tie_word_embeddings=False,
        )
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(7)
            self.hf = LlamaForCausalLM(config).eval()

    @torch.no_grad()
    def __call__(self, token_ids: Tensor) -> Tensor:
        """Logits [T, vocab] of one sequence [T], computed from scratch."""
        return self.hf(token_ids[None], use_cache=False).logits[0]

    @torch.no_grad()
    def greedy(self, prompt: list[int], max_tokens: int, eos: set[int] | None = None) -> list[int]:
        """The new tokens of Hugging Face `generate`, EOS included."""
        out = self.hf.generate(
            torch.tensor([prompt]),
            attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
            max_new_tokens=max_tokens,
            do_sample=False,
            eos_token_id=sorted(eos) if eos else None,
        )
        return out[0, len(prompt) :].tolist()
