"""The five problems of notebook 14b, with numbers that a seed draws."""

from __future__ import annotations

import math
from collections.abc import Callable
from random import Random

from utils.distributed.hardware import GIB, GPUS
from utils.distributed.layouts import GPU_MEMORY_UTILIZATION
from utils.distributed.shapes import SHAPES, num_parameters
from utils.planning.plan import HOUR, MILLION, Deployment
from utils.planning.problem import Problem


def problem(number: int, seed: int) -> Problem:
    """One of the five, with the numbers of that seed.

    Raises:
        ValueError: there is no such problem.
    """
    if number not in DRAWN:
        raise ValueError(f"There are problems 1 to {len(DRAWN)}, got {number}.")
    return DRAWN[number](Random(f"{number} {seed}"))


def _fits(draw: Random) -> Problem:
    """How many requests have room at once?"""
    setups = [("Llama-3-8B", "L4", 1), ("Llama-3-8B", "A100 40GB", 1)]
    setups += [("Llama-3-70B", "H100", 4), ("Llama-3-70B", "H200", 2)]
    model, gpu, cards = draw.choice(setups)
    tokens = draw.choice([1500, 2000, 3000, 4000])
    shape, memory = SHAPES[model], Deployment(model, gpu, cards).memory
    layers, kv_heads, width = shape.num_hidden_layers, shape.num_key_value_heads, shape.head_dim
    per_token, parameters = 2 * layers * kv_heads * width * 2, num_parameters(shape)
    usable = GPU_MEMORY_UTILIZATION * cards * GPUS[gpu].memory
    room = usable - 2 * parameters
    all_heads = per_token * shape.num_attention_heads / kv_heads
    return Problem(
        "Problem 1: does it fit?",
        f"{model} has {parameters / 1e9:.2f} billion parameters, {layers} layers and {kv_heads} KV "
        f"heads of {width} numbers (and {shape.num_attention_heads} query heads). Everything is in "
        f"16 bits. You have {cards} x {gpu} with {GPUS[gpu].memory / GIB:.0f} GiB each, of which "
        f"the engine may use {GPU_MEMORY_UTILIZATION:.0%}. How many requests of {tokens:,} tokens "
        "have room at the same time?",
        memory.tokens // tokens,
        "requests at once",
        (
            f"Memory that the engine may use: {usable / GIB:.1f} GiB",
            f"The weights take 2 bytes a parameter: {2 * parameters / GIB:.1f} GiB, which leaves "
            f"{room / GIB:.1f} GiB",
            f"A token takes 2 x {layers} x {kv_heads} x {width} x 2 bytes: {per_token:,} bytes",
            f"A request of {tokens:,} tokens takes {per_token * tokens / GIB:.3f} GiB: "
            f"{room / per_token / tokens:.1f} of them have room",
        ),
        {
            "Did you subtract the weights? Look at step 2.": usable / per_token / tokens,
            "Keys and values have KV heads, not query heads. Look at step 3.": room
            / all_heads
            / tokens,
            "A token has a key and a value, of 2 bytes a number. Look at step 3.": 2
            * room
            / per_token
            / tokens,
        },
        whole=True,
    )


def _step(draw: Random) -> Problem:
    """How long does a decode step take?"""
    gpu = draw.choice(["L4", "A100 80GB", "H100", "H200"])
    requests, context = draw.choice([8, 16, 24]), draw.choice([1000, 2000])
    shape, share = SHAPES["Llama-3-8B"], draw.choice([0.6, 0.7, 0.8])
    deployment = Deployment(shape.name, gpu, reach_bandwidth=share)
    table = shape.vocab_size * shape.hidden_size
    weights = 2 * (num_parameters(shape) - table)
    kv = requests * context * deployment.memory.kv_per_token
    speed = share * GPUS[gpu].bandwidth
    return Problem(
        "Problem 2: how long is a step?",
        f"A decode step of Llama-3-8B reads {weights / 1e9:.2f} GB of weights, and "
        f"{deployment.memory.kv_per_token:,} bytes for each token in the KV cache. {requests} "
        f"requests are running, with {context:,} tokens each. The {gpu}'s data sheet says "
        f"{GPUS[gpu].bandwidth / 1e9:,.0f} GB/s, and you measured that you reach {share:.0%} of "
        "them. How many milliseconds does the step take?",
        1e3 * deployment.decode_seconds(requests, context),
        "ms",
        (
            f"Bytes of weights, read once for all requests: {weights / 1e9:.2f} GB",
            f"Bytes of keys and values, of every request: {kv / 1e9:.2f} GB",
            f"The bandwidth that you reach: {speed / 1e9:,.0f} GB/s",
            f"Bytes by bandwidth: {1e3 * (weights + kv) / speed:.1f} ms",
        ),
        {
            "The weights are read once for all requests. Look at step 1.": 1e3
            * (requests * weights + kv)
            / speed,
            "Every request has keys and values of its own. Look at step 2.": 1e3
            * (weights + kv / requests)
            / speed,
            "Does a card reach its data sheet? Look at step 3.": 1e3
            * (weights + kv)
            / GPUS[gpu].bandwidth,
            "Are keys and values free? Look at step 2.": 1e3 * weights / speed,
        },
    )


def _million(draw: Random) -> Problem:
    """What does a million tokens out cost?"""
    cards, rate = draw.choice([2, 4]), draw.choice([2.0, 3.0, 4.0])
    requests, step = draw.choice([16, 32, 64]), draw.choice([20, 25, 40])
    used = draw.choice([0.3, 0.4, 0.5])
    per_second = cards * rate / HOUR
    answer = MILLION * per_second * step / 1e3 / requests / used
    return Problem(
        "Problem 3: what does a million tokens cost?",
        f"A replica has {cards} cards at ${rate:.2f} an hour each. A decode step with {requests} "
        f"requests takes {step} ms. Averaged over day and night, you use {used:.0%} of what the "
        "replica could do. What do a million tokens *out* cost you, in dollars?",
        answer,
        "dollars for a million tokens out",
        (
            f"A second of the replica: {cards} x ${rate:.2f} / 3,600 = ${per_second:.5f}",
            f"A token's share of a step: {step} ms / {requests} = {step / requests:.3f} ms",
            f"A million tokens at full use: ${used * answer:.2f}",
            f"Unused time is paid by the used time: ${used * answer:.2f} / {used:g} = "
            f"${answer:.2f}",
        ),
        {
            "Does one card make the replica? Look at step 1.": answer / cards,
            "How many tokens does a step give? Look at step 2.": answer * requests,
            "Who pays for the time that isn't used? Look at step 4.": answer * used,
            "Unused time makes tokens dearer, not cheaper. Look at step 4.": answer * used * used,
        },
    )


def _cards(draw: Random) -> Problem:
    """How many cards carry the peak?"""
    cards, read, step = draw.choice([2, 4]), draw.choice([0.2, 0.3]), draw.choice([25, 30])
    requests, answer = draw.choice([16, 32]), draw.choice([200, 300])
    hit, share = draw.choice([0.5, 0.75]), draw.choice([0.6, 0.7])
    peak = draw.choice([20, 30, 40])
    seconds = read * (1 - hit) + answer * step / 1e3 / requests
    able = 1 / seconds

    def cards_for(rate: float) -> int:
        return cards * math.ceil(peak / rate)

    return Problem(
        "Problem 4: how many cards?",
        f"A prompt takes a replica of {cards} cards {read:g} s if nothing of it is found in the "
        f"cache, and {hit:.0%} is found. A decode step with {requests} requests takes {step} ms, "
        f"and an answer has {answer} tokens. You found that your promise holds up to {share:.0%} "
        f"of what a replica can do (the knee of notebook 14). At the peak {peak} requests arrive "
        "each second. How many cards do you need?",
        cards_for(share * able),
        "cards",
        (
            f"The prompt takes of the replica: {read:g} s x {1 - hit:g} = {read * (1 - hit):.3f} s",
            f"The answer takes its share of the steps: {answer} x {step} ms / {requests} = "
            f"{answer * step / 1e3 / requests:.3f} s",
            f"A replica can do 1 / {seconds:.3f} s = {able:.2f} requests a second, and the promise "
            f"holds up to {share * able:.2f}",
            f"Replicas: {peak} / {share * able:.2f}, rounded up: {math.ceil(peak / share / able)}",
            f"Cards: {cards} for each replica",
        ),
        {
            "You counted replicas. Look at step 5.": math.ceil(peak / share / able),
            "Is the whole prompt computed? Look at step 1.": cards_for(
                share / (seconds + read * hit)
            ),
            "Does the promise hold up to the last request? Look at step 3.": cards_for(able),
            "How many answers does a step serve? Look at step 2.": cards_for(
                share / (read * (1 - hit) + answer * step / 1e3)
            ),
        },
        whole=True,
    )


def _rent(draw: Random) -> Problem:
    """From which load on is a card of your own cheaper than an API?"""
    cards, rate = draw.choice([2, 4]), draw.choice([3.0, 4.0])
    price_in, price_out = draw.choice([0.2, 0.3]), draw.choice([0.9, 1.1])
    prompt, answer = draw.choice([1000, 2000]), draw.choice([200, 400])
    day = 24 * cards * rate
    request = (prompt * price_in + answer * price_out) / MILLION
    swapped = (prompt * price_out + answer * price_in) / MILLION
    return Problem(
        "Problem 5: rent tokens, or rent cards?",
        f"Somebody's API costs ${price_in:.2f} for a million tokens in and ${price_out:.2f} for a "
        f"million out. Your requests have {prompt:,} tokens in and {answer} out. Instead you could "
        f"rent {cards} cards at ${rate:.2f} an hour, day and night. From "
        "how many requests a day on are your cards cheaper?",
        day / request,
        "requests a day",
        (
            f"A day of your cards: 24 x {cards} x ${rate:.2f} = ${day:.0f}",
            f"A request at the API: {prompt:,} x ${price_in:.2f} / 1,000,000 + {answer} x "
            f"${price_out:.2f} / 1,000,000 = ${request:.6f}",
            f"The two cost the same at {day / request:,.0f} requests a day, if your cards can "
            f"serve that many: {day / request / 86400:.1f} each second, day and night",
        ),
        {
            "A day has 24 hours. Look at step 1.": day / 24 / request,
            "Which of the two prices is for tokens in? Look at step 2.": day / swapped,
            "How many cards do you rent? Look at step 1.": day / cards / request,
            "Did you forget the tokens out? Look at step 2.": day / (prompt * price_in / MILLION),
            "Did you forget the tokens in? Look at step 2.": day / (answer * price_out / MILLION),
        },
    )


DRAWN: dict[int, Callable[[Random], Problem]] = {1: _fits, 2: _step, 3: _million, 4: _cards}
DRAWN[5] = _rent
