"""Tiny models with random weights, their answers by Hugging Face, and engines for them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from utils.checks.kit.near_ties import find_parting, hf_oracle
from utils.engine import LLM, MedusaHeads
from utils.engine.sample.draw import Noise
from utils.hub import load_tokenizer


def tiny_llama(folder: Path, seed: int, vocab_size: int = 13, layers: int = 2) -> LlamaForCausalLM:
    """A Llama whose answers differ much with the prompt, and which stops now and then."""
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=vocab_size,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=128,
        initializer_range=0.3,
        eos_token_id=2,
    )
    model = LlamaForCausalLM(config).eval()
    model.save_pretrained(folder)
    words = Tokenizer(WordLevel({f"w{i}": i for i in range(vocab_size)}, unk_token="w0"))
    words.pre_tokenizer = WhitespaceSplit()  # else a whole text is one word, which it does not know
    PreTrainedTokenizerFast(tokenizer_object=words, unk_token="w0").save_pretrained(folder)
    return model


def tiny_speaker(folder: Path, model_path: Path) -> Path:
    """A tiny Llama with the tokenizer of another model: a real one's words are made of letters, so
    it can follow forms, and it knows what a conversation looks like."""
    tokenizer = load_tokenizer(model_path)
    tiny_llama(folder, seed=3, vocab_size=len(tokenizer))
    tokenizer.save_pretrained(folder)
    return folder


def tiny_medusa(folder: Path, num_heads: int, hidden_size: int = 32) -> Path:
    """Heads with random weights. They guess badly, and sometimes well."""
    torch.manual_seed(9)
    folder.mkdir(exist_ok=True)
    heads = MedusaHeads(num_heads, hidden_size)
    save_file(heads.state_dict(), folder / "model.safetensors")
    config = {"num_heads": num_heads, "hidden_size": hidden_size}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def tiny_eagle(folder: Path, target: LlamaForCausalLM) -> EagleOracle:
    """An EAGLE layer with random weights for a tiny target, and an oracle that guesses with it."""
    torch.manual_seed(10)
    config = LlamaConfig(**(target.config.to_dict() | {"num_hidden_layers": 1}))
    config.architectures = ["LlamaForCausalLM"]
    layer = LlamaForCausalLM(config).model.layers[0].eval()
    layer.input_layernorm = torch.nn.Identity()
    width = config.hidden_size
    fc = torch.nn.Linear(2 * width, width, bias=False).requires_grad_(False)
    config.save_pretrained(folder)
    weights = {f"layers.0.{name}": tensor for name, tensor in layer.state_dict().items()}
    save_file(weights | {"fc.weight": fc.weight.data}, folder / "model.safetensors")
    return EagleOracle(target, fc, layer)


class EagleOracle:
    """Guesses of an EAGLE layer, by Hugging Face's classes, without any cache."""

    def __init__(
        self, target: LlamaForCausalLM, fc: torch.nn.Module, layer: torch.nn.Module
    ) -> None:
        self.target, self.fc, self.layer = target, fc, layer
        self.states = lru_cache(maxsize=None)(self._states)

    @torch.inference_mode()
    def _states(self, tokens: tuple[int, ...]) -> torch.Tensor:
        return self.target.model(torch.tensor([tokens])).last_hidden_state[0]

    @torch.inference_mode()
    def scores(self, tokens: Sequence[int], guesses: Sequence[int]) -> torch.Tensor:
        """[vocab_size], of what follows the guesses that follow the target's tokens."""
        before = [torch.zeros(self.target.config.hidden_size), *self.states(tuple(tokens))[:-1]]
        ids, hidden = list(tokens), torch.empty(0)
        for guess in [None, *guesses]:
            if guess is not None:
                ids.append(guess)
                before.append(hidden[-1])
            x = torch.cat(
                [self.target.model.embed_tokens(torch.tensor(ids)), torch.stack(before)], 1
            )
            places = torch.arange(len(ids))[None]
            turned = self.target.model.rotary_emb(x[None], places)
            hidden = self.layer(self.fc(x)[None], position_embeddings=turned)[0]
        return self.target.lm_head(hidden[-1])


class Oracle:
    """Answers of a Hugging Face model, one token after the other, without any cache.

    Greedy ones, or drawn at temperature 1 with the noise of a seed: the largest sum of logit and
    Gumbel noise.
    """

    def __init__(self, model: LlamaForCausalLM) -> None:
        self.model = model
        self.logits = lru_cache(maxsize=None)(self._logits)

    @torch.inference_mode()
    def _logits(self, tokens: tuple[int, ...]) -> torch.Tensor:
        return self.model(torch.tensor([tokens])).logits[0, -1]

    def answer(self, prompt: Sequence[int], max_tokens: int, seed: int | None = None) -> list[int]:
        tokens = list(prompt)
        for _ in range(max_tokens):
            scores = self.logits(tuple(tokens)) + self._gumbel(seed, len(tokens))
            tokens.append(int(scores.argmax()))
            if tokens[-1] == 2:
                break
        return tokens[len(prompt) :]

    def _gumbel(self, seed: int | None, position: int) -> torch.Tensor:
        size = self.model.config.vocab_size
        if seed is None:
            return torch.zeros(size)
        return -Noise(seed, position).exponential(size, torch.device("cpu")).log()

    def explains(
        self, prompt: Sequence[int], answer: Sequence[int], max_tokens: int, seed: int | None = None
    ) -> bool:
        """Whether an answer is the model's, or parts from it where two tokens score the same."""

        def scores(prompt: Sequence[int], answer: Sequence[int]) -> torch.Tensor:
            places = range(len(prompt), len(prompt) + len(answer))
            noise = torch.stack([self._gumbel(seed, place) for place in places])
            return hf_oracle(self.model)(prompt, answer) + noise

        expected = self.answer(prompt, max_tokens, seed)
        parting = find_parting(scores, prompt, answer, expected)
        return parting is None or parting.is_tie()


@torch.inference_mode()
def gaps_below_best(model: Any, prompt: list[int], answer: list[int]) -> torch.Tensor:
    """How far each token of `answer` lies below the most probable one there, in logits: [N].

    Args:
        model: of Hugging Face; it reads the prompt and the answer in one pass, without a cache.
    """
    logits = hf_oracle(model)(prompt, answer)
    chosen = logits.gather(1, torch.tensor(answer, device=logits.device)[:, None])[:, 0]
    return logits.max(dim=1).values - chosen


def nothing_is_held(llm: LLM) -> bool:
    """Whether all blocks, of the device and of the host, are free again."""
    engine = llm.llm_engine
    manager = engine.kv_cache_manager
    swap = manager.swap_space
    return (
        manager.usage == 0
        and not manager.req_to_blocks
        and not engine.requests
        and not engine.output_processor.request_states
        and not engine.output_processor.parent_requests
        and not engine.scheduler.running
        and not engine.scheduler.waiting
        and swap.num_free_blocks == swap.num_cpu_blocks
    )
