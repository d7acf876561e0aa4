"""One draw from a distribution over the vocabulary, with a generator or with a seed's own noise.

Without a seed, one random number picks a point on the cumulative distribution.

With a seed, the draw depends on the seed and the position alone, not on how many draws came before.
Each token of the vocabulary gets a random number, exponentially distributed, and the token with the
largest probability / number is drawn. It is token i with exactly its probability p[i]. (In
logarithms: the largest log p plus Gumbel noise, hence the names "Gumbel-max trick" and, in vLLM,
`gumbel_sample`.) So a guess can be verified by drawing and comparing: the request gets the tokens
that it would get without guesses, without company, without preemption.

Two similar distributions mostly draw the same token with the same numbers, so a draft's draw is
mostly the target's: with probability (1 - d) / (1 + d) at least, where d is the total variation
distance. Rejection sampling accepts with probability 1 - d, the best that any method can do.
Daliri et al. 2024, "Coupling without Communication and Drafter-Invariant Speculative Decoding".
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import NamedTuple, cast

import torch
from torch import Tensor


class Noise(NamedTuple):
    """Names the random numbers of one position of one request."""

    seed: int
    position: int  # of the token to draw: how many tokens the request has before it

    def exponential(self, vocab_size: int, device: torch.device) -> Tensor:
        """The numbers [vocab_size], exponentially distributed, always the same on one device.

        In float64: of 24 random bits the smallest number would be 6e-8, and a token less probable
        than that would never be drawn.
        """
        # Hashed, because generators with neighboring seeds may begin alike.
        name = hashlib.blake2b(f"{self.seed}:{self.position}".encode(), digest_size=7).digest()
        generator = torch.Generator(device).manual_seed(int.from_bytes(name))
        uniform = torch.rand(vocab_size, generator=generator, device=device, dtype=torch.float64)
        return uniform.log_().neg_()


def source_of(
    seed: int | None, position: int, generator: torch.Generator
) -> torch.Generator | Noise:
    """What a request's token at a position is drawn with: its seed's noise, or else a generator."""
    return generator if seed is None else Noise(seed, position)


def draw(probs: Tensor, sources: Sequence[torch.Generator | Noise]) -> Tensor:
    """Draw one token per row of `probs` [B, vocab]: -> [B].

    Row `i` takes its random numbers from `sources[i]`, so what a seed's noise draws does not depend
    on the rest of the batch.
    """
    seeded = {i: source for i, source in enumerate(sources) if isinstance(source, Noise)}
    if not seeded:
        return inverse_transform(probs, cast(Sequence[torch.Generator], sources))
    tokens = torch.empty(len(probs), dtype=torch.int64, device=probs.device)
    tokens[list(seeded)] = gumbel_sample(probs[list(seeded)], list(seeded.values()))
    generators = {i: s for i, s in enumerate(sources) if isinstance(s, torch.Generator)}
    if generators:
        drawn = inverse_transform(probs[list(generators)], list(generators.values()))
        tokens[list(generators)] = drawn
    return tokens


def inverse_transform(probs: Tensor, generators: Sequence[torch.Generator]) -> Tensor:
    """Draw one token per row of `probs` [B, vocab], with one number of its generator each: -> [B].

    Its point on the cumulative distribution says which token.
    """
    cumulative = probs.double().cumsum(dim=-1)  # [B, vocab], ends near 1
    uniform = torch.cat([torch.rand(1, generator=g, device=g.device) for g in generators])
    point = uniform.to(probs.device, torch.float64)[:, None] * cumulative[:, -1:]
    return torch.searchsorted(cumulative, point, right=True)[:, 0]


def gumbel_sample(probs: Tensor, noises: Sequence[Noise]) -> Tensor:
    """Draw one token per row of `probs` [B, vocab] with that row's noise: -> [B]."""
    numbers = torch.stack([noise.exponential(probs.shape[1], probs.device) for noise in noises])
    return (probs / numbers).max(dim=-1).indices  # argmax is slow on a CPU
