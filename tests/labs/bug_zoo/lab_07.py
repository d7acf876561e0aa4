"""Wrong and right answers to lab 07, each as a learner might write it."""

from __future__ import annotations

import itertools
import random

import torch
import torch.nn.functional as F

from tests.labs.bug_zoo.zoo import Zoo
from utils.engine.sample.rejection_sampler import RejectionSampler
from utils.engine.spec_decode.ngram_proposer import NgramProposer
from utils.engine.spec_decode.tree import follow_tree as engines_follow_tree

zoo = Zoo()
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


def lookup(token_ids, sizes, k, starts=lambda end, n: range(end - n)):
    for n in sizes:
        for start in starts(len(token_ids), n):
            if token_ids[start : start + n] == token_ids[-n:]:
                return token_ids[start + n : start + n + k]
    return []


@wrong("propose", "suffix finds itself")
def finds_itself_at_the_end(token_ids, low, high, k):
    return lookup(token_ids, range(high, low - 1, -1), k, lambda end, n: range(end - n, -1, -1))


@wrong("propose", "suffix finds itself")
def last_index_of_each(token_ids, low, high, k):
    for n in range(high, low - 1, -1):
        windows = [token_ids[i : i + n] for i in range(len(token_ids) - n + 1)]
        if token_ids[-n:] in windows:
            start = len(windows) - 1 - windows[::-1].index(token_ids[-n:])
            return token_ids[start + n : start + n + k]
    return []


@wrong("propose", "shorter ones are never tried")
def finds_itself_if_nothing_else(token_ids, low, high, k):
    sizes = [n for n in range(high, low - 1, -1) if n <= len(token_ids)]
    return lookup(token_ids, sizes, k, lambda end, n: range(end - n + 1))


@wrong("propose", "shortest suffix is tried first")
def shortest_first(token_ids, low, high, k):
    return lookup(token_ids, range(low, high + 1), k)


@wrong("propose", "shorter ones are never tried")
def longest_only(token_ids, low, high, k):
    return lookup(token_ids, [high], k)


@wrong("propose", "shorter than `prompt_lookup_min`")
def down_to_one(token_ids, low, high, k):
    return lookup(token_ids, range(high, 0, -1), k)


@wrong("propose", "longer than `prompt_lookup_max`")
def up_to_the_whole_text(token_ids, low, high, k):
    return lookup(token_ids, range(len(token_ids) - 1, low - 1, -1), k)


@wrong("propose", "exactly `prompt_lookup_min` tokens are never tried")
def range_ends_too_early(token_ids, low, high, k):
    return lookup(token_ids, range(high, low, -1), k)


@wrong("propose", "exactly `prompt_lookup_max` tokens are never tried")
def range_begins_too_late(token_ids, low, high, k):
    return lookup(token_ids, reversed(range(low, high)), k)


@wrong("propose", "the last is taken")
def last_occurrence(token_ids, low, high, k):
    return lookup(token_ids, range(high, low - 1, -1), k, lambda e, n: range(e - n - 1, -1, -1))


@wrong("propose", "More than `num_speculative_tokens`")
def all_that_follow(token_ids, low, high, k):
    return lookup(token_ids, range(high, low - 1, -1), len(token_ids))


@wrong("propose", "the match itself")
def the_match_too(token_ids, low, high, k):
    for n in range(high, low - 1, -1):
        for start in range(len(token_ids) - n):
            if token_ids[start : start + n] == token_ids[-n:]:
                return token_ids[start : start + k]
    return []


@wrong("propose", "one token too early")
def begins_too_early(token_ids, low, high, k):
    for n in range(high, low - 1, -1):
        for start in range(len(token_ids) - n):
            if token_ids[start : start + n] == token_ids[-n:]:
                return token_ids[start + n - 1 : start + n - 1 + k]
    return []


@wrong("propose", "one token too late")
def begins_too_late(token_ids, low, high, k):
    for n in range(high, low - 1, -1):
        for start in range(len(token_ids) - n):
            if token_ids[start : start + n] == token_ids[-n:]:
                return token_ids[start + n + 1 : start + n + 1 + k]
    return []


@wrong("propose", "overlaps the suffix is not found")
def no_overlap(token_ids, low, high, k):
    return lookup(token_ids, range(high, low - 1, -1), k, lambda end, n: range(max(0, end - 2 * n)))


@wrong("propose", "filled up")
def padded(token_ids, low, high, k):
    return (lookup(token_ids, range(high, low - 1, -1), k) + [0] * k)[:k]


@wrong("propose", "thrown away")
def all_or_nothing(token_ids, low, high, k):
    found = lookup(token_ids, range(high, low - 1, -1), k)
    return found if len(found) == k else []


@wrong("propose", "returned None")
def none_if_nothing_is_found(token_ids, low, high, k):
    return lookup(token_ids, range(high, low - 1, -1), k) or None


@wrong("propose", "changes the list")
def takes_the_suffix_off(token_ids, low, high, k):
    found = lookup(list(token_ids), range(high, low - 1, -1), k)
    token_ids.pop()
    return found


@wrong("propose", "not the tokens behind the first place")
def what_followed_the_last_token(token_ids, low, high, k):
    where = [i for i, token in enumerate(token_ids[:-1]) if token == token_ids[-1]]
    return token_ids[where[-1] + 1 : where[-1] + 1 + k] if where else []


# 2 verify_greedy


@right("verify_greedy")
def with_takewhile(draft_token_ids, target_token_ids):
    pairs = zip(draft_token_ids, target_token_ids, strict=False)
    agreed = list(itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))
    return target_token_ids[: len(agreed) + 1]


@right("verify_greedy")
def engines_greedy(draft_token_ids, target_token_ids):
    return RejectionSampler().greedy(draft_token_ids, target_token_ids)


def agreeing(draft, target):
    return len(with_takewhile(draft, target)) - 1


@wrong("verify_greedy", "own token behind them is missing")
def accepted_only(draft, target):
    return draft[: agreeing(draft, target)]


@wrong("verify_greedy", "bonus token is missing")
def no_bonus(draft, target):
    out = []
    for guess, token in zip(draft, target, strict=False):
        out.append(token)
        if guess != token:
            break
    return out


@wrong("verify_greedy", "bonus token is taken after a rejection")
def bonus_in_place_of_the_recovered(draft, target):
    return draft[: agreeing(draft, target)] + target[-1:]


@wrong("verify_greedy", "bonus token is taken after a rejection")
def recovered_and_bonus(draft, target):
    count = agreeing(draft, target)
    recovered = target[count : count + 1] if count < len(draft) else []
    return draft[:count] + recovered + [target[-1]]


@wrong("verify_greedy", "rejected guess is returned")
def keeps_the_rejected(draft, target):
    for i, guess in enumerate(draft):
        if guess != target[i]:
            return draft[: i + 1]
    return [*draft, target[-1]]


@wrong("verify_greedy", "All of the target's tokens")
def the_whole_target(draft, target):
    return list(target)


@wrong("verify_greedy", "accepted behind a wrong one")
def each_on_its_own(draft, target):
    return [g for g, t in zip(draft, target, strict=False) if g == t] + [target[-1]]


@wrong("verify_greedy", "one place too late")
def shifted_by_one(draft, target):
    count = 0
    while count < len(draft) and draft[count] == target[count + 1]:
        count += 1
    return [*draft[:count], target[count]]


@wrong("verify_greedy", "rejects all of them")
def all_or_one(draft, target):
    return list(target) if draft == target[:-1] else target[:1]


@wrong("verify_greedy", "All guesses are accepted")
def believes_everything(draft, target):
    return [*draft, target[-1]]


@wrong("verify_greedy", "IndexError")
def fails_without_guesses(draft, target):
    return with_takewhile(draft, target) if draft[0] is not None else []


# 3 is_accepted


@right("is_accepted")
def as_a_product(token_id, target_probs, draft_probs, uniform):
    return bool(uniform * draft_probs[token_id] < target_probs[token_id])


@right("is_accepted")
def with_the_minimum(token_id, target_probs, draft_probs, uniform):
    return uniform < torch.clamp(target_probs / draft_probs, max=1.0)[token_id]


@wrong("is_accepted", "wrong way round")
def above_the_ratio(token_id, p, q, uniform):
    return uniform > (p[token_id] / q[token_id]).item()


@wrong("is_accepted", "probability q / p")
def upside_down(token_id, p, q, uniform):
    return bool(uniform < q[token_id] / p[token_id])


@wrong("is_accepted", "probability p, and ignore")
def target_alone(token_id, p, q, uniform):
    return uniform < p[token_id].item()


@wrong("is_accepted", "probability q, and ignore the target")
def draft_alone(token_id, p, q, uniform):
    return uniform < q[token_id].item()


@wrong("is_accepted", "p / (p + q)")
def barker(token_id, p, q, uniform):
    return uniform < (p[token_id] / (p[token_id] + q[token_id])).item()


@wrong("is_accepted", "exactly where p >= q")
def no_chance(token_id, p, q, uniform):
    return bool(p[token_id] >= q[token_id])


@wrong("is_accepted", "exactly where p > q")
def no_chance_and_strict(token_id, p, q, uniform):
    return bool(p[token_id] > q[token_id])


@wrong("is_accepted", "greedy verification")
def only_the_best(token_id, p, q, uniform):
    return token_id == int(p.argmax())


@wrong("is_accepted", "two largest probabilities")
def of_the_maxima(token_id, p, q, uniform):
    return uniform < float(p.max() / q.max())


@wrong("is_accepted", "would never make can be accepted")
def at_most(token_id, p, q, uniform):
    return uniform <= float(p[token_id] / q[token_id])


@wrong("is_accepted", "Every guess is accepted")
def always(token_id, p, q, uniform):
    return True


@wrong("is_accepted", "expected True or False")
def returns_the_ratio(token_id, p, q, uniform):
    return min(1.0, float(p[token_id] / q[token_id]))


@wrong("is_accepted", "judged wrongly")
def draws_again(token_id, p, q, uniform):
    return random.Random(int(uniform * 1000)).random() < float(p[token_id] / q[token_id])


# 4 recovered_probs


@right("recovered_probs")
def by_minimum(target_probs, draft_probs):
    missing = target_probs - torch.minimum(target_probs, draft_probs)
    return missing / (1 - torch.minimum(target_probs, draft_probs).sum())


@right("recovered_probs")
def with_relu(target_probs, draft_probs):
    return F.normalize(F.relu(target_probs - draft_probs), p=1, dim=-1)


@wrong("recovered_probs", "target's own distribution")
def from_the_target(p, q):
    return p.clone()


@wrong("recovered_probs", "does not sum to 1")
def not_renormalised(p, q):
    return (p - q).clamp(min=0)


@wrong("recovered_probs", "wrong way round")
def q_minus_p(p, q):
    residual = (q - p).clamp(min=0)
    return residual / residual.sum()


@wrong("recovered_probs", "absolute difference")
def absolute(p, q):
    return (p - q).abs() / (p - q).abs().sum()


@wrong("recovered_probs", "not set to 0")
def not_clamped(p, q):
    return p - q


@wrong("recovered_probs", "divide before you clamp")
def divided_too_early(p, q):
    return ((p - q) / (p - q).sum()).clamp(min=0)


@wrong("recovered_probs", "softmax gives every token")
def softmax(p, q):
    return (p - q).clamp(min=0).softmax(-1)


@wrong("recovered_probs", "you keep all of p")
def masked(p, q):
    kept = torch.where(p > q, p, torch.zeros_like(p))
    return kept / kept.sum()


@wrong("recovered_probs", "draft's distribution")
def from_the_draft(p, q):
    return q.clone()


@wrong("recovered_probs", "in place")
def writes_into_p(p, q):
    p -= q
    p.clamp_(min=0)
    return p / p.sum()


# 5 rejection_sample


def draw(probs, generator):
    return torch.multinomial(probs, 1, generator=generator).item()


def uniform_from(generator):
    return torch.rand((), generator=generator).item()


def row_of(draft_probs, i, token, p):
    return F.one_hot(torch.tensor(token), len(p)) if draft_probs is None else draft_probs[i]


def residual_of(p, q, token):
    return (p - q).clamp(min=0)


def sampler(
    draft, draft_probs, target_probs, generator, *, accept=None, recover=residual_of,
    draw_one=draw, row=lambda i: i, bonus=lambda p, q: p[-1], one_uniform=False,
    bonus_after_rejection=False, go_on=False,
):  # fmt: skip
    """The right one, with parts that can be exchanged."""
    accept = accept or (lambda p, q, token, u: u < p[token] / q[token])
    out = []
    u = uniform_from(generator)
    for i, token in enumerate(draft):
        p = target_probs[row(i)]
        q = row_of(draft_probs, i, token, p)
        u = u if one_uniform else uniform_from(generator)
        if accept(p, q, token, u):
            out.append(token)
            continue
        weights = recover(p, q, token)
        if weights is not None:
            out.append(draw_one(weights, generator))
        if go_on:
            continue
        if bonus_after_rejection:
            break
        return out
    last = bonus(target_probs, draft_probs)
    return out if last is None else [*out, draw_one(last, generator)]


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
    return [*draft_token_ids[:count], draw(weights, generator)]


@right("rejection_sample")
def by_inverse_transform(draft_token_ids, draft_probs, target_probs, generator):
    def pick(weights, generator):
        cumulative = weights.double().cumsum(-1)
        point = uniform_from(generator) * cumulative[-1]
        return int(torch.searchsorted(cumulative, point, right=True))

    return sampler(draft_token_ids, draft_probs, target_probs, generator, draw_one=pick)


@wrong("rejection_sample", "draw from the target, not from the residual")
def resamples_from_the_target(d, q, p, g):
    return sampler(d, q, p, g, recover=lambda p, q, token: p)


@wrong("rejection_sample", "without the rejected guess")
def only_the_guess_removed(d, q, p, g):
    def without(p, q, token):
        return p * (1 - F.one_hot(torch.tensor(token), len(p)))

    return sampler(d, q, p, g, recover=without)


@wrong("rejection_sample", "draw from the draft's distribution")
def resamples_from_the_draft(d, q, p, g):
    return sampler(d, q, p, g, recover=lambda p, q, token: q.float())


@wrong("rejection_sample", "q - p instead of p - q")
def residual_backwards(d, q, p, g):
    return sampler(d, q, p, g, recover=lambda p, q, token: (q - p).clamp(min=0).float())


@wrong("rejection_sample", "absolute differences")
def residual_absolute(d, q, p, g):
    return sampler(d, q, p, g, recover=lambda p, q, token: (p - q).abs())


@wrong("rejection_sample", "can be any token")
def residual_by_softmax(d, q, p, g):
    return sampler(d, q, p, g, recover=lambda p, q, token: (p - q).softmax(-1))


@wrong("rejection_sample", "most probable one of the residual")
def residual_argmax(d, q, p, g):
    def best(p, q, token):
        return F.one_hot((p - q).argmax(), len(p)).float()

    return sampler(d, q, p, g, recover=best)


@wrong("rejection_sample", "no token is recovered")
def nothing_recovered(d, q, p, g):
    return sampler(d, q, p, g, recover=lambda p, q, token: None)


@wrong("rejection_sample", "bonus token instead of a recovered one")
def bonus_in_its_place(d, q, p, g):
    return sampler(d, q, p, g, recover=lambda p, q, token: None, bonus_after_rejection=True)


@wrong("rejection_sample", "bonus token is taken after a rejection")
def bonus_after_a_rejection(d, q, p, g):
    return sampler(d, q, p, g, bonus_after_rejection=True)


@wrong("rejection_sample", "bonus token is missing")
def without_bonus(d, q, p, g):
    return sampler(d, q, p, g, bonus=lambda p, q: None)


@wrong("rejection_sample", "draft's last row")
def bonus_from_the_draft(d, q, p, g):
    return sampler(d, q, p, g, bonus=lambda p, q: p[-1] if q is None else q[-1])


@wrong("rejection_sample", "row of the last guess")
def bonus_from_the_row_before(d, q, p, g):
    return sampler(d, q, p, g, bonus=lambda p, q: p[max(0, len(d) - 1)])


@wrong("rejection_sample", "most probable one. It must be drawn")
def bonus_argmax(d, q, p, g):
    return sampler(d, q, p, g, bonus=lambda p, q: F.one_hot(p[-1].argmax(), p.shape[1]).float())


@wrong("rejection_sample", "when the random number is *above*")
def accepts_above(d, q, p, g):
    return sampler(d, q, p, g, accept=lambda p, q, token, u: u > p[token] / q[token])


@wrong("rejection_sample", "probability q / p")
def ratio_upside_down(d, q, p, g):
    return sampler(d, q, p, g, accept=lambda p, q, token, u: u < q[token] / p[token])


@wrong("rejection_sample", "probability p, and ignore")
def accepts_by_p(d, q, p, g):
    return sampler(d, q, p, g, accept=lambda p, q, token, u: u < p[token])


@wrong("rejection_sample", "exactly where p >= q")
def accepts_without_chance(d, q, p, g):
    return sampler(d, q, p, g, accept=lambda p, q, token, u: p[token] >= q[token])


@wrong("rejection_sample", "Every guess is accepted")
def accepts_all(d, q, p, g):
    return sampler(d, q, p, g, accept=lambda p, q, token, u: True)


@wrong("rejection_sample", "Every guess that the target could make")
def accepts_the_possible(d, q, p, g):
    return sampler(d, q, p, g, accept=lambda p, q, token, u: p[token] > 0)


@wrong("rejection_sample", "greedy verification")
def greedy_in_disguise(d, q, p, g):
    best = p.argmax(-1).tolist()
    return with_takewhile(list(d), best)


@wrong("rejection_sample", "greedy verification")
def accepts_the_best(d, q, p, g):
    def is_best(p, q, token, u):
        return token == int(p.argmax())

    return sampler(d, q, p, g, accept=is_best, recover=lambda p, q, token: p)


@wrong("rejection_sample", "One random number serves for all")
def one_number_for_all(d, q, p, g):
    return sampler(d, q, p, g, one_uniform=True)


@wrong("rejection_sample", "row one place too late")
def target_row_too_late(d, q, p, g):
    return sampler(d, q, p, g, row=lambda i: i + 1)


@wrong("rejection_sample", "another guess's row")
def draft_row_before(d, q, p, g):
    return sampler(d, None if q is None else q.roll(1, 0), p, g)


@wrong("rejection_sample", "go on with the next guess")
def goes_on_after_a_rejection(d, q, p, g):
    return sampler(d, q, p, g, go_on=True)


@wrong("rejection_sample", "even where the guess was drawn from `draft_probs`")
def ignores_the_draft(d, q, p, g):
    return sampler(d, None, p, g)


@wrong("rejection_sample", "even where the guess was drawn from `draft_probs`")
def draws_and_compares(d, q, p, g):
    out = []
    for i in range(len(d) + 1):
        out.append(draw(p[i], g))
        if i == len(d) or out[-1] != d[i]:
            return out


@wrong("rejection_sample", "chose among all tokens alike")
def certain_means_uniform(d, q, p, g):
    if q is None:
        q = torch.full((len(d), p.shape[1]), 1 / p.shape[1])
    return sampler(d, q, p, g)


@wrong("rejection_sample", "TypeError")
def none_is_forgotten(d, q, p, g):
    return sampler(d, q[: len(d)], p, g)


@wrong("rejection_sample", "expected a list of ints")
def returns_tensors(d, q, p, g):
    return [torch.tensor(token) for token in sampler(d, q, p, g)]


@wrong("rejection_sample", "changes `draft_token_ids`")
def appends_to_the_guesses(d, q, p, g):
    out = sampler(d, q, p, g)
    d[:] = out
    return d


@wrong("rejection_sample", "changes `target_probs`")
def subtracts_in_place(d, q, p, g):
    return sampler(d, q, p, g, recover=lambda p, q, token: p.sub_(q).clamp_(min=0))


@wrong("rejection_sample", "not all random numbers come from `generator`")
def global_random_numbers(d, q, p, g):
    accept = lambda p, q, token, u: random.random() < p[token] / q[token]  # noqa: E731
    return sampler(d, q, p, g, accept=accept)


@wrong("rejection_sample", "is accepted too seldom")
def ratio_squared(d, q, p, g):
    return sampler(d, q, p, g, accept=lambda p, q, token, u: u < (p[token] / q[token]) ** 2)


@wrong("rejection_sample", "is accepted too often")
def ratio_rooted(d, q, p, g):
    return sampler(d, q, p, g, accept=lambda p, q, token, u: u < (p[token] / q[token]) ** 0.5)


@wrong("rejection_sample", "random number that rejected the guess")
def recovers_with_the_same_number(d, q, p, g):
    """The number that rejected the guess picks the recovered token, too."""
    for i, token in enumerate(d):
        row = row_of(q, i, token, p[i])
        u = uniform_from(g)
        if not u < p[i][token] / row[token]:
            cumulative = (p[i] - row).clamp(min=0).double().cumsum(-1)
            picked = torch.searchsorted(cumulative, u * cumulative[-1], right=True)
            return [*d[:i], int(picked)]
    return [*d, draw(p[-1], g)]


@wrong("rejection_sample", "not distributed as the target says")
def residual_squared(d, q, p, g):
    return sampler(d, q, p, g, recover=lambda p, q, token: (p - q).clamp(min=0) ** 2)


@wrong("rejection_sample", "bonus token is not distributed")
def bonus_by_softmax(d, q, p, g):
    def hotter(p, q):
        return p[-1].clamp(min=1e-9).sqrt() * (p[-1] > 0)

    return sampler(d, q, p, g, bonus=hotter)


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


@wrong("expected_tokens", "step's own token is missing")
def guesses_only(a, k):
    return sum(a**i for i in range(1, k + 1))


@wrong("expected_tokens", "bonus token is missing")
def one_term_less(a, k):
    return sum(a**i for i in range(k))


@wrong("expected_tokens", "one term too many")
def one_term_more(a, k):
    return sum(a**i for i in range(k + 2))


@wrong("expected_tokens", "each guess on its own")
def linear(a, k):
    return 1 + k * a


@wrong("expected_tokens", "only the case that all guesses")
def all_accepted(a, k):
    return (k + 1) * a**k


@wrong("expected_tokens", "0 / 0")
def zero_by_zero(a, k):
    return (1 - a ** (k + 1)) / (1 - a)


@wrong("expected_tokens", "The number is wrong")
def a_product(a, k):
    return (1 + a) ** k


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


@wrong("choose_num_speculative_tokens", "never choose 0")
def at_least_one(a, most, cost):
    return max(1, with_a_loop(a, most, cost))


@wrong("choose_num_speculative_tokens", "never choose 0")
def range_from_one(a, most, cost):
    return max(range(1, most + 1), key=lambda k: closed_form(a, k) / (1 + k * cost), default=0)


@wrong("choose_num_speculative_tokens", "does not matter to your cost")
def most_tokens(a, most, cost):
    return max(range(most + 1), key=lambda k: closed_form(a, k))


@wrong("choose_num_speculative_tokens", "itself is never chosen")
def range_to_most(a, most, cost):
    return max(range(most), key=lambda k: closed_form(a, k) / (1 + k * cost), default=0)


@wrong("choose_num_speculative_tokens", "take the cost off")
def difference(a, most, cost):
    return max(range(most + 1), key=lambda k: closed_form(a, k) - k * cost)


@wrong("choose_num_speculative_tokens", "cost of the step itself is missing")
def guesses_cost_only(a, most, cost):
    return max(range(most + 1), key=lambda k: closed_form(a, k) / (k * cost or 1))


@wrong("choose_num_speculative_tokens", "does not matter to your cost")
def one_guess_costs(a, most, cost):
    return max(range(most + 1), key=lambda k: closed_form(a, k) / (1 + cost))


@wrong("choose_num_speculative_tokens", "worst number")
def minimum(a, most, cost):
    return min(range(most + 1), key=lambda k: closed_form(a, k) / (1 + k * cost))


@wrong("choose_num_speculative_tokens", "expected an int, the number of guesses")
def returns_the_gain(a, most, cost):
    return max(closed_form(a, k) / (1 + k * cost) for k in range(most + 1))


# 8 tree_attention_mask


@right("tree_attention_mask")
def by_walking_up(parents):
    mask = torch.zeros(1 + len(parents), 1 + len(parents), dtype=torch.bool)
    mask[:, 0] = True
    for guess in range(len(parents)):
        node = guess
        while node != -1:
            mask[guess + 1, node + 1] = True
            node = parents[node]
    return mask


@right("tree_attention_mask")
def by_powers(parents):
    """Reachable in any number of steps up."""
    size = 1 + len(parents)
    up = torch.eye(size)
    for guess, parent in enumerate(parents):
        up[guess + 1, parent + 1] = 1
    return torch.linalg.matrix_power(up, size) > 0


@wrong("tree_attention_mask", "causal mask of a chain")
def causal(parents):
    return torch.ones(1 + len(parents), 1 + len(parents), dtype=torch.bool).tril()


@wrong("tree_attention_mask", "A token does not see itself")
def not_itself(parents):
    return by_walking_up(parents) & ~torch.eye(1 + len(parents), dtype=torch.bool)


@wrong("tree_attention_mask", "A guess does not see itself")
def guesses_not_themselves(parents):
    mask = not_itself(parents)
    mask[0, 0] = True
    return mask


@wrong("tree_attention_mask", "grandparents are missing")
def parent_and_self(parents):
    mask = torch.eye(1 + len(parents), dtype=torch.bool)
    for guess, parent in enumerate(parents):
        mask[guess + 1, parent + 1] = True
    return mask


@wrong("tree_attention_mask", "grandparents are missing")
def root_parent_and_self(parents):
    mask = parent_and_self(parents)
    mask[:, 0] = True
    return mask


@wrong("tree_attention_mask", "do not see the last confirmed token")
def without_the_root(parents):
    mask = by_walking_up(parents)
    mask[1:, 0] = False
    return mask


@wrong("tree_attention_mask", "Rows and columns are exchanged")
def transposed(parents):
    return by_walking_up(parents).T.clone()


@wrong("tree_attention_mask", "off by one")
def parents_not_shifted(parents):
    mask = torch.eye(1 + len(parents), dtype=torch.bool)
    mask[:, 0] = True
    for guess, parent in enumerate(parents):
        mask[guess + 1] |= mask[max(parent, 0)]
    return mask


@wrong("tree_attention_mask", "siblings")
def sees_siblings(parents):
    mask = by_walking_up(parents)
    for one, parent in enumerate(parents):
        for other, others_parent in enumerate(parents):
            if parent == others_parent:
                mask[one + 1, other + 1] = True
    return mask


@wrong("tree_attention_mask", "Everybody sees everybody")
def everything(parents):
    return torch.ones(1 + len(parents), 1 + len(parents), dtype=torch.bool)


@wrong("tree_attention_mask", "True and False are exchanged")
def inverted(parents):
    return ~by_walking_up(parents)


@wrong("tree_attention_mask", "has no row")
def guesses_only_mask(parents):
    return by_walking_up(parents)[1:, 1:]


@wrong("tree_attention_mask", "dtype")
def as_numbers(parents):
    return by_walking_up(parents).long()


# 9 follow_tree


@right("follow_tree")
def the_engines_walk(draft_token_ids, parents, target_token_ids):
    return engines_follow_tree(draft_token_ids, parents, target_token_ids)


@right("follow_tree")
def recursively(draft_token_ids, parents, target_token_ids, node=-1):
    for child, parent in enumerate(parents):
        if parent == node and draft_token_ids[child] == target_token_ids[node + 1]:
            return [child, *recursively(draft_token_ids, parents, target_token_ids, child)]
    return []


@wrong("follow_tree", "first child, whatever the target says")
def first_child(tokens, parents, target):
    path, node = [], -1
    while node in parents:
        node = parents.index(node)
        path.append(node)
    return path


@wrong("follow_tree", "Only the first child is looked at")
def first_child_if_right(tokens, parents, target):
    path, node = [], -1
    while node in parents and tokens[parents.index(node)] == target[node + 1]:
        node = parents.index(node)
        path.append(node)
    return path


@wrong("follow_tree", "no child of the current one")
def any_node_behind(tokens, parents, target):
    path, node = [], -1
    for i, token in enumerate(tokens):
        if token == target[node + 1]:
            path.append(i)
            node = i
    return path


@wrong("follow_tree", "row of the depth")
def row_by_depth(tokens, parents, target):
    path, node = [], -1
    for i, token in enumerate(tokens):
        if parents[i] == node and token == target[len(path)]:
            path.append(i)
            node = i
    return path


@wrong("follow_tree", "rows are off by one")
def rows_not_shifted(tokens, parents, target):
    path, node = [], -1
    for i, token in enumerate(tokens):
        if parents[i] == node and token == target[max(node, 0)]:
            path.append(i)
            node = i
    return path


@wrong("follow_tree", "stop after the first right guess")
def one_level(tokens, parents, target):
    return recursively(tokens, parents, target)[:1]


@wrong("follow_tree", "return the tokens")
def tokens_of_the_path(tokens, parents, target):
    return [tokens[i] for i in recursively(tokens, parents, target)]


@wrong("follow_tree", "root is in your path")
def with_the_root(tokens, parents, target):
    return [-1, *recursively(tokens, parents, target)]


@wrong("follow_tree", "rows of the mask")
def rows_in_place_of_numbers(tokens, parents, target):
    return [i + 1 for i in recursively(tokens, parents, target)]


@wrong("follow_tree", "below a rejected one")
def all_that_fit_their_parent(tokens, parents, target):
    return [i for i, token in enumerate(tokens) if token == target[parents[i] + 1]]


@wrong("follow_tree", "wrong order")
def upwards(tokens, parents, target):
    return recursively(tokens, parents, target)[::-1]


@wrong("follow_tree", "Only the last accepted node")
def the_last_one(tokens, parents, target):
    return recursively(tokens, parents, target)[-1:]


# 10 engine


class Proposer:
    def propose(self, token_ids, num_speculative_tokens):
        return lookup(token_ids, range(4, 1, -1), num_speculative_tokens)


class Verifier:
    """Calls functions, as the lab's own class does."""

    def __init__(self, greedy=with_takewhile, sample=sampler):
        self.greedy, self.sample = greedy, sample


@right("engine")
def plugged():
    return Proposer(), Verifier()


@wrong("engine", "engine's own parts")
def the_engines_proposer():
    return NgramProposer(2, 4), Verifier()


@wrong("engine", "engine's own parts")
def the_engines_sampler():
    return Proposer(), RejectionSampler()


@wrong("engine", "must return a pair")
def only_one_part():
    return Proposer()


@wrong("engine", "says something else than without")
def believes_every_guess():
    return Proposer(), Verifier(greedy=believes_everything)


@wrong("engine", "more steps than predicted")
def never_guesses():
    class Silent:
        def propose(self, token_ids, num_speculative_tokens):
            return []

    return Silent(), Verifier()


@wrong("engine", "fewer steps than predicted")
def guesses_by_one_token_too():
    class Bold:
        def propose(self, token_ids, num_speculative_tokens):
            return lookup(token_ids, range(4, 0, -1), num_speculative_tokens)

    return Bold(), Verifier()


@wrong("engine", "answers are distributed otherwise", "n-gram proposer")
def samples_from_the_target_again():
    return Proposer(), Verifier(sample=resamples_from_the_target)


@wrong("engine", "answers are distributed otherwise", "draft model")
def removes_only_the_guess():
    """Right for n-grams, and wrong for a draft model."""
    return Proposer(), Verifier(sample=only_the_guess_removed)


@wrong("engine", "The rejection sampler returned")
def returns_too_much():
    return Proposer(), Verifier(greedy=recovered_and_bonus)
