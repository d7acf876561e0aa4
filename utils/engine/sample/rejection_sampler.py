"""Verification: which guessed tokens stay, and the token that follows them."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from utils.engine.core.sched.output import ScheduledRequest
from utils.engine.sample.draw import draw

TINY = 1e-38  # in place of a probability of 0, which no drawn guess has


def is_for_rejection_sampling(request: ScheduledRequest) -> bool:
    """Whether its guesses are kept with a probability: a chain, sampled, without a seed."""
    draft, params = request.draft, request.sampling_params
    is_chain = bool(draft.token_ids) and draft.parents is None
    return is_chain and params.temperature > 0 and params.seed is None


class RejectionSampler:
    """Accepts guesses such that the answer is distributed as if there had been none.

    Leviathan et al. 2023, "Fast Inference from Transformers via Speculative Decoding", section 2.3
    and appendix A.1; Chen et al. 2023, "Accelerating Large Language Model Decoding with
    Speculative Sampling", algorithm 2.
    """

    def greedy(self, draft_token_ids: list[int], target_token_ids: list[int]) -> list[int]:
        """Keep the guesses up to the first that the model would not have chosen.

        Args:
            draft_token_ids: the k guesses.
            target_token_ids: the model's k + 1 choices: after the tokens so far, after the first
                guess, ..., after the last.

        Returns:
            The accepted guesses, then the model's own choice: the recovered token after a
            rejection, or the bonus token after the last guess.
        """
        num_accepted = 0
        while (
            num_accepted < len(draft_token_ids)
            and draft_token_ids[num_accepted] == target_token_ids[num_accepted]
        ):
            num_accepted += 1
        return [*draft_token_ids[:num_accepted], target_token_ids[num_accepted]]

    def sample(
        self,
        draft_token_ids: list[int],
        draft_probs: Tensor | None,
        target_probs: Tensor,
        generator: torch.Generator,
    ) -> list[int]:
        """Keep each guess with probability min(1, p / q), up to the first rejection.

        A rejected guess is replaced by a draw from max(p - q, 0), renormalised: the mass that the
        guesses leave uncovered. Both ways together, each token comes with probability
        min(p, q) + max(p - q, 0) = p.

        Args:
            draft_token_ids: the k guesses.
            draft_probs: q, [k, vocab_size], what they were drawn from. None: they were not drawn
                but chosen, so q is 1 for each guess.
            target_probs: p, [k + 1, vocab_size], the model's own distributions.
            generator: source of random numbers.

        Returns:
            The accepted guesses, then the recovered token, or the bonus token after the last.
        """
        accepted: list[int] = []
        for i, token in enumerate(draft_token_ids):
            q = 1.0 if draft_probs is None else float(draft_probs[i, token])
            uniform = float(torch.rand(1, generator=generator, device=generator.device))
            # As a product, so that nothing is divided by 0. `uniform` is below 1.
            if uniform * q < float(target_probs[i, token]):
                accepted.append(token)
                continue
            residual = target_probs[i].clone()
            if draft_probs is None:
                residual[token] = 0
            else:
                residual = (residual - draft_probs[i]).clamp_(min=0)
            # Where p and q are all but equal, rounding may leave nothing: then p itself will do.
            weights = residual if residual.sum() > 0 else target_probs[i]
            return [*accepted, _draw_one(weights, generator)]
        return [*accepted, _draw_one(target_probs[len(accepted)], generator)]


class BlockRejectionSampler(RejectionSampler):
    """Judges a chain as a whole, and keeps at least as many guesses on average.

    A guess that the model likes less than the draft did (p / q below 1) isn't rejected at once: one
    after it that the model likes more (p / q above 1) may make up for it. So all guesses are tried,
    and the last that stands decides.

    Sun et al. 2024, "Block Verification Accelerates Speculative Decoding",
    https://arxiv.org/abs/2403.10444, algorithm 2. In vLLM: `rejection_sample_method="block"`.
    """

    def sample(
        self,
        draft_token_ids: list[int],
        draft_probs: Tensor | None,
        target_probs: Tensor,
        generator: torch.Generator,
    ) -> list[int]:
        """See `RejectionSampler.sample`."""
        if draft_probs is None:
            draft_probs = F.one_hot(torch.tensor(draft_token_ids), target_probs.shape[1])
            draft_probs = draft_probs.to(target_probs)
        num_accepted, last = 0, len(draft_token_ids)
        joint = 1.0  # min(1, p / q) of the guesses so far, as one block
        residual = (target_probs[0] - draft_probs[0]).clamp_(min=0)  # after what is accepted
        for i, token in enumerate(draft_token_ids, start=1):
            p, q = float(target_probs[i - 1, token]), float(draft_probs[i - 1, token])
            joint = min(1.0, joint * p / max(q, TINY))
            left = target_probs[i]
            if i < last:  # what the next guess leaves uncovered, should it not stand
                left = (joint * left - draft_probs[i]).clamp_(min=0)
            mass = float(left.sum())
            chance = mass / (mass + 1 - joint) if i < last and joint < 1 else joint
            if float(torch.rand(1, generator=generator, device=generator.device)) < chance:
                num_accepted, residual = i, left
        weights = residual if residual.sum() > 0 else target_probs[num_accepted]
        return [*draft_token_ids[:num_accepted], _draw_one(weights, generator)]


def _draw_one(weights: Tensor, generator: torch.Generator) -> int:
    """Draw a token in proportion to its weight [vocab_size]."""
    return int(draw(weights[None], [generator]))
