"""Wrong and right answers to lab 07, each as a learner might write it."""

from __future__ import annotations

import itertools
import random
from functools import partial

import torch
import torch.nn.functional as F

from tests.labs.bug_zoo.zoo import Zoo
from utils.engine.sample.rejection_sampler import RejectionSampler
from utils.engine.spec_decode.ngram_proposer import NgramProposer
from utils.engine.spec_decode.tree import follow_tree as engines_follow_tree

zoo = Zoo()
wrong, right = zoo.wrong, zoo.right


def table(exercise, parameters, *wrong_ones):
    """Answers of one line: a name, words that the feedback must contain, the expression."""
    for name, says, expression in wrong_ones:
        answer = eval(f"lambda {parameters}: {expression}", globals())
        answer.__name__ = name
        wrong(exercise, says)(answer)


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


def lookup(text, sizes, k, starts=lambda end, n: range(end - n), begin=lambda start, n: start + n):
    for n in sizes:
        for start in starts(len(text), n):
            if text[start : start + n] == text[-n:]:
                return text[begin(start, n) :][:k]
    return []


def down(low, high):
    return range(high, low - 1, -1)


table(
    "propose",
    "text, low, high, k",
    (
        "all_that_follow",
        "More than `num_speculative_tokens`",
        "lookup(text, down(low, high), len(text))",
    ),
    (
        "the_match_too",
        "not the tokens behind the first place",
        "lookup(text, down(low, high), k, begin=lambda start, n: start)",
    ),
    (
        "padded",
        "A made-up token is a wrong guess",
        "(lookup(text, down(low, high), k) + [0] * k)[:k]",
    ),
    ("none_if_nothing_is_found", "returned None", "lookup(text, down(low, high), k) or None"),
    (
        "takes_the_suffix_off",
        "changes the list",
        "(lookup(list(text), down(low, high), k), text.pop() if text else 0)[0]",
    ),
    ("within_a_window", "A match is not found", "lookup(text[-64:], down(low, high), k)"),
)


@wrong("propose", "thrown away")
def all_or_nothing(token_ids, low, high, k):
    found = lookup(token_ids, down(low, high), k)
    return found if len(found) == k else []


@wrong("propose", "there is nothing to guess")
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


table(
    "verify_greedy",
    "draft, target",
    (
        "fails_without_guesses",
        "IndexError",
        "with_takewhile(draft, target) if draft[0] is not None else []",
    ),
)


# 3 is_accepted


@right("is_accepted")
def as_a_product(token_id, target_probs, draft_probs, uniform):
    return bool(uniform * draft_probs[token_id] < target_probs[token_id])


@right("is_accepted")
def with_the_minimum(token_id, target_probs, draft_probs, uniform):
    return uniform < torch.clamp(target_probs / draft_probs, max=1.0)[token_id]


table(
    "is_accepted",
    "i, p, q, uniform",
    ("returns_the_ratio", "expected True or False", "min(1.0, float(p[i] / q[i]))"),
    (
        "draws_again",
        "judged wrongly",
        "random.Random(int(uniform * 1000)).random() < float(p[i] / q[i])",
    ),
    ("in_hundredths", "judged wrongly", "round(uniform, 2) < float(p[i] / q[i])"),
    ("with_an_epsilon", "judged wrongly", "uniform < float(p[i] / (q[i] + 1e-8))"),
)


# 4 recovered_probs


@right("recovered_probs")
def by_minimum(target_probs, draft_probs):
    missing = target_probs - torch.minimum(target_probs, draft_probs)
    return missing / (1 - torch.minimum(target_probs, draft_probs).sum())


@right("recovered_probs")
def with_relu(target_probs, draft_probs):
    return F.normalize(F.relu(target_probs - draft_probs), p=1, dim=-1)


def shared(weights):
    return weights / weights.sum()


table(
    "recovered_probs",
    "p, q",
    ("absolute", "absolute difference", "shared((p - q).abs())"),
    ("softmax", "softmax gives every token", "(p - q).clamp(min=0).softmax(-1)"),
    ("writes_into_p", "in place", "shared(p.sub_(q).clamp_(min=0))"),
    (
        "divides_by_a_little_more",
        "numbers are wrong",
        "(p - q).clamp(min=0) / ((p - q).clamp(min=0).sum() + 1e-6)",
    ),
)


# 5 rejection_sample


def draw(probs, generator):
    return torch.multinomial(probs, 1, generator=generator).item()


def uniform_from(generator):
    return torch.rand((), generator=generator).item()


def one_hot(token, like):
    return F.one_hot(torch.tensor(token), len(like)).float()


def sampler(
    draft,
    draft_probs,
    target_probs,
    generator,
    *,
    accept=lambda p, q, token, u: u < p[token] / q[token],
    recover=lambda p, q, token: (p - q).clamp(min=0),
    draw_one=draw,
    row=lambda i: i,
    bonus=lambda p, q: p[-1],
    one_uniform=False,
    bonus_after_rejection=False,
    go_on=False,
):
    """The right one, with parts that can be exchanged."""
    out = []
    u = uniform_from(generator)
    for i, token in enumerate(draft):
        p = target_probs[row(i)]
        q = one_hot(token, p) if draft_probs is None else draft_probs[i]
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


@right("rejection_sample")
def by_an_exponential_race(draft_token_ids, draft_probs, target_probs, generator):
    """As vLLM draws on a GPU."""

    def pick(weights, generator):
        return int((weights / torch.empty_like(weights).exponential_(generator=generator)).argmax())

    return sampler(draft_token_ids, draft_probs, target_probs, generator, draw_one=pick)


for _name, _says, _switches in (
    (
        "resamples_from_the_target",
        "draw from the target, not from the residual",
        {"recover": lambda p, q, token: p},
    ),
    (
        "only_the_guess_removed",
        "without the rejected guess",
        {"recover": lambda p, q, token: p * (1 - one_hot(token, p))},
    ),
    ("resamples_from_the_draft", "in place of guess 0", {"recover": lambda p, q, token: q}),
    (
        "residual_backwards",
        "q - p instead of p - q",
        {"recover": lambda p, q, token: (q - p).clamp(min=0)},
    ),
    ("residual_absolute", "absolute differences", {"recover": lambda p, q, token: (p - q).abs()}),
    (
        "residual_by_softmax",
        "in place of guess 0",
        {"recover": lambda p, q, token: (p - q).softmax(-1)},
    ),
    (
        "residual_argmax",
        "most probable one of the residual",
        {"recover": lambda p, q, token: one_hot(int((p - q).argmax()), p)},
    ),
    (
        "residual_squared",
        "drawn in their place are at fault",
        {"recover": lambda p, q, token: (p - q).clamp(min=0) ** 2},
    ),
    ("nothing_recovered", "then one token", {"recover": lambda p, q, token: None}),
    (
        "bonus_in_its_place",
        "bonus token is taken after a rejection",
        {"recover": lambda p, q, token: None, "bonus_after_rejection": True},
    ),
    (
        "bonus_after_a_rejection",
        "bonus token is taken after a rejection",
        {"bonus_after_rejection": True},
    ),
    ("without_bonus", "bonus token is missing", {"bonus": lambda p, q: None}),
    (
        "bonus_from_the_draft",
        "bonus token can only be",
        {"bonus": lambda p, q: p[-1] if q is None or not len(q) else q[-1]},
    ),
    (
        "bonus_from_the_row_before",
        "row of the last guess",
        {"bonus": lambda p, q: p[max(0, len(p) - 2)]},
    ),
    (
        "bonus_argmax",
        "bonus token is not distributed",
        {"bonus": lambda p, q: one_hot(int(p[-1].argmax()), p[-1])},
    ),
    (
        "bonus_by_softmax",
        "bonus token is not distributed",
        {"bonus": lambda p, q: p[-1].clamp(min=1e-9).sqrt() * (p[-1] > 0)},
    ),
    (
        "accepts_above",
        "when the random number is *above*",
        {"accept": lambda p, q, token, u: u > p[token] / q[token]},
    ),
    (
        "ratio_upside_down",
        "probability q / p",
        {"accept": lambda p, q, token, u: u < q[token] / p[token]},
    ),
    ("accepts_by_p", "probability p, and ignore", {"accept": lambda p, q, token, u: u < p[token]}),
    (
        "accepts_without_chance",
        "no random number decides",
        {"accept": lambda p, q, token, u: p[token] >= q[token]},
    ),
    ("accepts_all", "Every guess is accepted", {"accept": lambda p, q, token, u: True}),
    ("accepts_the_possible", "accepted too often", {"accept": lambda p, q, token, u: p[token] > 0}),
    (
        "accepts_the_best",
        "greedy verification",
        {"accept": lambda p, q, token, u: token == int(p.argmax()), "recover": lambda p, q, t: p},
    ),
    ("one_number_for_all", "One random number serves for all", {"one_uniform": True}),
    ("target_row_too_late", "guess 0", {"row": lambda i: i + 1}),
    ("goes_on_after_a_rejection", "go on with the next guess", {"go_on": True}),
    (
        "subtracts_in_place",
        "changes what it was given",
        {"recover": lambda p, q, token: p.sub_(q).clamp_(min=0)},
    ),
    (
        "global_random_numbers",
        "Not all random numbers come from `generator`",
        {"accept": lambda p, q, token, u: random.random() < p[token] / q[token]},
    ),
    (
        "ratio_squared",
        "is accepted too seldom",
        {"accept": lambda p, q, token, u: u < (p[token] / q[token]) ** 2},
    ),
    (
        "ratio_rooted",
        "is accepted too often",
        {"accept": lambda p, q, token, u: u < (p[token] / q[token]) ** 0.5},
    ),
):
    _answer = partial(sampler, **_switches)
    _answer.__name__ = _name
    wrong("rejection_sample", _says)(_answer)


@wrong("rejection_sample", "guess 0 can only be accepted here")
def draws_and_compares(d, q, p, g):
    out = []
    for i in range(len(d) + 1):
        out.append(draw(p[i], g))
        if i == len(d) or out[-1] != d[i]:
            return out


@wrong("rejection_sample", "too often")
def certain_means_uniform(d, q, p, g):
    if q is None:
        q = torch.full((len(d), p.shape[1]), 1 / p.shape[1])
    return sampler(d, q, p, g)


@wrong("rejection_sample", "changes what it was given")
def appends_to_the_guesses(d, q, p, g):
    d[:] = sampler(d, q, p, g)
    return d


@wrong("rejection_sample", "`generator` is seeded anew")
def seeds_it_anew(d, q, p, g):
    return sampler(d, q, p, g.manual_seed(0))


table(
    "rejection_sample",
    "d, q, p, g",
    (
        "greedy_in_disguise",
        "bonus token is not distributed",
        "with_takewhile(list(d), p.argmax(-1).tolist())",
    ),
    (
        "draft_row_before",
        "drawn in their place are at fault",
        "sampler(d, None if q is None else q.roll(1, 0), p, g)",
    ),
    ("none_is_forgotten", "TypeError", "sampler(d, q[: len(d)], p, g)"),
    (
        "returns_tensors",
        "expected a list of ints",
        "[torch.tensor(token) for token in sampler(d, q, p, g)]",
    ),
    (
        "own_generator",
        "another generator is used",
        "sampler(d, q, p, torch.Generator().manual_seed(0))",
    ),
)


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


table("expected_tokens", "a, k", ("a_product", "times what it should be", "(1 + a) ** k"))


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


def gain(a, cost):
    return lambda k: step_by_step(a, k) / (1 + k * cost)


table(
    "choose_num_speculative_tokens",
    "a, most, cost",
    (
        "difference",
        "take the cost off",
        "max(range(most + 1), key=lambda k: step_by_step(a, k) - k * cost)",
    ),
    (
        "one_guess_costs",
        "gives more tokens per time",
        "max(range(most + 1), key=lambda k: step_by_step(a, k) / (1 + cost))",
    ),
    ("minimum", "worst number", "min(range(most + 1), key=gain(a, cost))"),
    (
        "the_largest_of_equals",
        "A smaller number gives as many",
        "max(range(most, -1, -1), key=gain(a, cost))",
    ),
    (
        "returns_the_gain",
        "expected an int, the number of guesses",
        "max(map(gain(a, cost), range(most + 1)))",
    ),
)


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


def parent_and_self(parents):
    mask = torch.eye(1 + len(parents), dtype=torch.bool)
    for guess, parent in enumerate(parents):
        mask[guess + 1, parent + 1] = True
    return mask


@right("tree_attention_mask")
def by_powers(parents):
    """Reachable in any number of steps up."""
    return torch.linalg.matrix_power(parent_and_self(parents).float(), 1 + len(parents)) > 0


def eye(size):
    return torch.eye(size, dtype=torch.bool)


table(
    "tree_attention_mask",
    "parents, mask=by_walking_up",
    ("as_numbers", "dtype", "mask(parents).long()"),
    ("of_64_at_most", "should be True", "mask(parents) & (torch.arange(1 + len(parents)) < 64)"),
)


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


table(
    "follow_tree",
    "d, p, t, good=recursively",
    (
        "rows_in_place_of_numbers",
        "not the numbers of the longest path",
        "[i + 1 for i in good(d, p, t)]",
    ),
    ("upwards", "not the numbers of the longest path", "good(d, p, t)[::-1]"),
    ("the_last_one", "not the numbers of the longest path", "good(d, p, t)[-1:]"),
    ("to_a_depth_of_3", "not the numbers of the longest path", "good(d, p, t)[:3]"),
)


# 10 engine


class Proposer:
    def propose(self, token_ids, num_speculative_tokens):
        return lookup(token_ids, down(2, 4), num_speculative_tokens)


class Silent:
    def propose(self, token_ids, num_speculative_tokens):
        return []


class Bold:
    def propose(self, token_ids, num_speculative_tokens):
        return lookup(token_ids, down(1, 4), num_speculative_tokens)


class Verifier:
    """Calls functions, as the lab's own class does."""

    def __init__(self, greedy=with_takewhile, sample=sampler):
        self.greedy, self.sample = greedy, sample


@right("engine")
def plugged():
    return Proposer(), Verifier()


table(
    "engine",
    "",
    ("the_engines_proposer", "engine's own parts", "(NgramProposer(2, 4), Verifier())"),
    ("the_engines_sampler", "engine's own parts", "(Proposer(), RejectionSampler())"),
    (
        "a_proposer_of_its_kind",
        "engine's own parts",
        "(type('Mine', (NgramProposer,), {})(2, 4), Verifier())",
    ),
    ("only_one_part", "must return a pair", "Proposer()"),
    (
        "believes_every_guess",
        "Exercise 2 is not right yet",
        "(Proposer(), Verifier(lambda draft, target: [*draft, target[-1]]))",
    ),
    (
        "never_guesses",
        "Exercise 1 is not right yet. There is never a guess",
        "(Silent(), Verifier())",
    ),
    ("guesses_by_one_token_too", "Exercise 1 is not right yet", "(Bold(), Verifier())"),
    (
        "samples_from_the_target_again",
        "Exercise 5 is not right yet. After a rejection you draw",
        "(Proposer(), Verifier(sample=lambda *a: sampler(*a, recover=lambda p, q, token: p)))",
    ),
    (
        "removes_only_the_guess",
        "Exercise 5 is not right yet",
        "(Proposer(), Verifier(sample=lambda *a: sampler(*a, recover=lambda p, q, token: "
        "p * (1 - one_hot(token, p)))))",
    ),
    (
        "returns_too_much",
        "Exercise 2 is not right yet",
        "(Proposer(), Verifier(lambda draft, target: with_takewhile(draft, target) + target[-1:]))",
    ),
)
