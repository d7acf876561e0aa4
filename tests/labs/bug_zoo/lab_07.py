"""Right answers to lab 07, written differently; most wrong ones are in `lab_07.yaml`."""

from __future__ import annotations

import itertools
import random

import numpy as np
import torch
import torch.nn.functional as F

from tests.labs.bug_zoo.zoo import Zoo
from utils.checks.lab_07 import answers
from utils.engine.sample.rejection_sampler import RejectionSampler
from utils.engine.spec_decode.ngram_proposer import NgramProposer

zoo = Zoo(answers)
wrong, right = zoo.wrong, zoo.right

# 1 propose


@right("propose")
def by_slices_of_the_text(token_ids, prompt_lookup_min, prompt_lookup_max, num_speculative_tokens):
    best = (0, 0)
    for begin in range(len(token_ids) - 1):
        for n in range(prompt_lookup_min, prompt_lookup_max + 1):
            same = token_ids[begin : begin + n] == token_ids[len(token_ids) - n :]
            if begin + n < len(token_ids) and same and n > best[0]:
                best = (n, begin + n)
    n, behind = best
    return token_ids[behind:][:num_speculative_tokens] if n else []


@right("propose")
def the_engines_own(token_ids, prompt_lookup_min, prompt_lookup_max, num_speculative_tokens):
    proposer = NgramProposer(prompt_lookup_min, prompt_lookup_max)
    return proposer.propose(token_ids, num_speculative_tokens)


# 2 verify_greedy


@right("verify_greedy")
def with_takewhile(draft_token_ids, target_token_ids):
    pairs = zip(draft_token_ids, target_token_ids, strict=False)
    agreed = list(itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))
    return target_token_ids[: len(agreed) + 1]


@right("verify_greedy")
def by_recursion(draft_token_ids, target_token_ids):
    if not draft_token_ids or draft_token_ids[0] != target_token_ids[0]:
        return [target_token_ids[0]]
    return [draft_token_ids[0], *by_recursion(draft_token_ids[1:], target_token_ids[1:])]


@right("verify_greedy")
def with_numpy(draft_token_ids, target_token_ids):
    k = len(draft_token_ids)
    same = np.array(draft_token_ids, dtype=int) == np.array(target_token_ids[:k], dtype=int)
    return list(np.array(target_token_ids)[: int(np.cumprod(same).sum()) + 1])


# 3 is_accepted


@right("is_accepted")
def as_a_product(token_id, target_probs, draft_probs, uniform):
    return bool(uniform * draft_probs[token_id] < target_probs[token_id])


@right("is_accepted")
def with_the_minimum(token_id, target_probs, draft_probs, uniform):
    return uniform < torch.clamp(target_probs / draft_probs, max=1.0)[token_id]


# 4 recovered_probs


@right("recovered_probs")
def by_minimum(target_probs, draft_probs):
    missing = target_probs - torch.minimum(target_probs, draft_probs)
    return missing / (1 - torch.minimum(target_probs, draft_probs).sum())


@right("recovered_probs")
def with_relu(target_probs, draft_probs):
    return F.normalize(F.relu(target_probs - draft_probs), p=1, dim=-1)


@right("recovered_probs")
def by_lists(target_probs, draft_probs):
    left = [max(0.0, p - q) for p, q in zip(target_probs.tolist(), draft_probs.tolist())]  # noqa: B905
    total = sum(left)
    return torch.tensor([x / total for x in left])


# 5 rejection_sample


def sampler(draft, draft_probs, target_probs, generator, draw=None, recover=None):
    """A right one; how tokens are drawn can be exchanged."""
    draw = draw or (lambda probs, g: torch.multinomial(probs, 1, generator=g).item())
    recover = recover or (lambda p, q: (p - q).clamp(min=0))
    out = []
    for i, token in enumerate(draft):
        p = target_probs[i]
        q = F.one_hot(torch.tensor(token), len(p)) if draft_probs is None else draft_probs[i]
        if torch.rand((), generator=generator).item() * q[token] >= p[token]:
            return [*out, draw(recover(p, q), generator)]
        out.append(token)
    return [*out, draw(target_probs[-1], generator)]


@right("rejection_sample")
def engines_sample(draft_token_ids, draft_probs, target_probs, generator):
    return RejectionSampler().sample(draft_token_ids, draft_probs, target_probs, generator)


@right("rejection_sample")
def all_at_once(draft_token_ids, draft_probs, target_probs, generator):
    k, vocab_size = len(draft_token_ids), target_probs.shape[-1]
    ids = torch.tensor(draft_token_ids, dtype=torch.long)
    q = F.one_hot(ids, vocab_size).float() if draft_probs is None else draft_probs
    p = target_probs[:k]
    each = torch.arange(k)
    accepted = torch.rand(k, generator=generator) * q[each, ids] < p[each, ids]
    count = int(accepted.long().cumprod(0).sum())
    padded = torch.cat([q, torch.zeros(1, vocab_size)])
    weights = (target_probs[count] - padded[count]).clamp(min=0)
    last = torch.multinomial(weights, 1, generator=generator).item()
    return [*draft_token_ids[:count], last]


@right("rejection_sample")
def by_inverse_transform(draft_token_ids, draft_probs, target_probs, generator):
    def pick(weights, generator):
        cumulative = weights.double().cumsum(-1)
        point = torch.rand((), generator=generator).item() * cumulative[-1]
        return int(torch.searchsorted(cumulative, point, right=True))

    return sampler(draft_token_ids, draft_probs, target_probs, generator, pick)


@right("rejection_sample")
def by_an_exponential_race(draft_token_ids, draft_probs, target_probs, generator):
    """As vLLM draws on a GPU."""

    def pick(weights, generator):
        return int((weights / torch.empty_like(weights).exponential_(generator=generator)).argmax())

    return sampler(draft_token_ids, draft_probs, target_probs, generator, pick)


@right("rejection_sample")
def by_gumbel_max(draft_token_ids, draft_probs, target_probs, generator):
    def pick(weights, generator):
        uniform = torch.rand(len(weights), generator=generator)
        return int((weights.log() - (-uniform.log()).log()).argmax())

    return sampler(draft_token_ids, draft_probs, target_probs, generator, pick)


@wrong("rejection_sample", "you accept too few guesses")
def draws_and_compares(d, q, p, g):
    out = []
    for i in range(len(d) + 1):
        out.append(int(torch.multinomial(p[i], 1, generator=g)))
        if i == len(d) or out[-1] != d[i]:
            return out


# 6 expected_tokens


@right("expected_tokens")
def closed_form(acceptance_rate, num_speculative_tokens):
    a, k = acceptance_rate, num_speculative_tokens
    return k + 1 if a == 1 else (1 - a ** (k + 1)) / (1 - a)


@right("expected_tokens")
def step_by_step(acceptance_rate, num_speculative_tokens):
    total = 1.0
    for _ in range(num_speculative_tokens):
        total = 1.0 + acceptance_rate * total
    return total


@right("expected_tokens")
def in_float32(acceptance_rate, num_speculative_tokens):
    return float((torch.tensor(acceptance_rate) ** torch.arange(num_speculative_tokens + 1)).sum())


# 7 choose_num_speculative_tokens


@right("choose_num_speculative_tokens")
def with_a_loop(acceptance_rate, max_num_speculative_tokens, draft_token_cost):
    best, best_gain = 0, 1.0
    for k in range(1, max_num_speculative_tokens + 1):
        gain = closed_form(acceptance_rate, k) / (1 + k * draft_token_cost)
        if gain > best_gain:
            best, best_gain = k, gain
    return best


@right("choose_num_speculative_tokens")
def least_time_per_token(acceptance_rate, max_num_speculative_tokens, draft_token_cost):
    def time(k):
        return (1 + k * draft_token_cost) / step_by_step(acceptance_rate, k)

    return min(range(max_num_speculative_tokens + 1), key=time)


@right("choose_num_speculative_tokens")
def all_in_float32(acceptance_rate, max_num_speculative_tokens, draft_token_cost):
    k = torch.arange(max_num_speculative_tokens + 1)
    return int(((acceptance_rate**k).cumsum(0) / (1 + k * draft_token_cost)).argmax())


# 8 guess_better


def places(tokens, low, high):
    """Where the longest suffix stands: what follows begins there."""
    for n in range(min(high, len(tokens) - 1), low - 1, -1):
        found = [s + n for s in range(len(tokens) - n) if tokens[s : s + n] == tokens[-n:]]
        if found:
            return found
    return []


@right("guess_better")
def the_last_place(token_ids, num_speculative_tokens):
    found = places(token_ids, 2, 8)
    return token_ids[found[-1] :][:num_speculative_tokens] if found else []


@right("guess_better")
def what_follows_most_often(token_ids, num_speculative_tokens):
    text = list(token_ids)
    for _ in range(num_speculative_tokens):
        followers = [text[place] for place in places(text, 2, 4)]
        text += [max(followers, key=followers.count)] if followers else []
    return text[len(token_ids) :]


@wrong("guess_better", "Exercise 1's give")
def the_first_place(token_ids, num_speculative_tokens):
    return answers.propose(token_ids, 2, 4, num_speculative_tokens)


@wrong("guess_better", "Exercise 1's give")
def the_first_of_the_longest(token_ids, num_speculative_tokens):
    return answers.propose(token_ids, 2, 30, num_speculative_tokens)


@wrong("guess_better", "guesses are rejected")
def a_single_token_is_enough(token_ids, num_speculative_tokens):
    return answers.propose(token_ids, 1, 4, num_speculative_tokens)


@wrong("guess_better", "1.00 tokens per step")
def no_guesses(token_ids, num_speculative_tokens):
    return []


@wrong("guess_better", "changes the list")
def extends_the_text(token_ids, num_speculative_tokens):
    token_ids += the_last_place(token_ids, 1)
    return []


@wrong("guess_better", "more than `num_speculative_tokens`")
def all_the_rest(token_ids, num_speculative_tokens):
    return the_last_place(token_ids, 1000)


@wrong("guess_better", "two different answers")
def at_random(token_ids, num_speculative_tokens):
    return random.choices(token_ids or [0], k=num_speculative_tokens)


@wrong("guess_better", "Expected a list of ints")
def forgets_to_return(token_ids, num_speculative_tokens):
    return the_last_place(token_ids, num_speculative_tokens) or None


# 9 engine


class Proposer:
    def __init__(self, low=2):
        self.low = low

    def propose(self, token_ids, num_speculative_tokens):
        return answers.propose(token_ids, self.low, 4, num_speculative_tokens)


class Silent:
    def propose(self, token_ids, num_speculative_tokens):
        return []


class Verifier:
    """Calls functions, as the lab's own class does."""

    def __init__(self, greedy=with_takewhile, sample=sampler):
        self.greedy, self.sample = greedy, sample


@right("engine")
def plugged():
    return Proposer(), Verifier()


def without_the_guess(draft, draft_probs, target_probs, generator):
    return sampler(draft, draft_probs, target_probs, generator, recover=lambda p, q: p * (q == 0))


for _name, _says, _parts in (
    ("the_engines_proposer", "engine's own parts", lambda: (NgramProposer(2, 4), Verifier())),
    ("the_engines_sampler", "engine's own parts", lambda: (Proposer(), RejectionSampler())),
    (
        "a_proposer_of_its_kind",
        "engine's own parts",
        lambda: (type("Mine", (NgramProposer,), {})(2, 4), Verifier()),
    ),
    ("only_one_part", "must return a pair", Proposer),
    (
        "believes_every_guess",
        "Exercise 2 is not right yet",
        lambda: (Proposer(), Verifier(lambda draft, target: [*draft, target[-1]])),
    ),
    ("never_guesses", "Exercise 1 is not right yet", lambda: (Silent(), Verifier())),
    ("guesses_by_one_token_too", "Exercise 1 is not right yet", lambda: (Proposer(1), Verifier())),
    (
        "removes_only_the_guess",
        "Exercise 5 is not right yet",
        lambda: (Proposer(), Verifier(sample=without_the_guess)),
    ),
):
    _parts.__name__ = _name
    wrong("engine", _says)(_parts)
