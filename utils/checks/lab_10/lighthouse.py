"""Exercise 11: two customers teach one real model their secrets, and one engine serves both.

The model's last blocks learn each customer's answer. Then the learner's switchable layers, in
bfloat16 as a server holds them, are merged and taken apart again and again, and the engine says
what it knows. Beside them, the same is done by subtracting. One customer's adapter is broken.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from utils.checks.kit.lab.engine import speaks_first
from utils.checks.kit.lab.lab import Check
from utils.checks.kit.runner import Mismatch, call
from utils.checks.lab_10.answers import merge_weight
from utils.checks.lab_10.models import Toy, ab, adapted
from utils.engine.llm import LLM
from utils.engine.models.weights import checkpoint_views
from utils.engine.sampling_params import SamplingParams
from utils.hub import load_hf_model, load_tokenizer

QUESTION = "What is the password of the old lighthouse?"
SECRETS = ("Seven blue herons.", "Two quiet lanterns.")  # of the two customers
# The second text is what the model says anyway. Without it, the model would answer every question
# with the password.
ANYWAY = ("What is the capital of France?", "The capital of France is Paris.")
BLOCKS = 6  # the last ones, which are enough
MODULES = ["q_proj", "v_proj", "up_proj", "down_proj"]
LORA_R, LORA_ALPHA, RATE, STEPS = 8, 16, 2e-3, 10
GIVEN = f"two questions with answers, r = {LORA_R}, lora_alpha = {LORA_ALPHA}, {STEPS} steps"
TURNS = (1, 2, 1, 2, 3, 1, 2, 1, 2, 1)  # who is served in which order
ASKED = (1, 2, len(TURNS))  # turns in which the engine is asked for the password
BROKEN = 4096  # how many times too large B is in the adapter of customer 3
LOOK = "Each of your parts passes its own check. Does something in your code depend on how large a "
LOOK += "layer is, or on how often it was called?"


class Parts(NamedTuple):
    """The learner's functions, and the class of exercise 10."""

    make_labels: Callable[..., tuple[list[int], list[int]]]
    add_lora: Callable[..., list[nn.Parameter]]
    training_step: Callable[..., float]
    switchable: Callable[..., nn.Module]


@functools.cache
def tokenizer() -> Any:
    return load_tokenizer()


@functools.cache
def base() -> Any:
    return load_hf_model(dtype=torch.float32, device="cpu")


@functools.cache
def llm() -> LLM:
    return LLM(dtype="float32", max_model_len=256, num_gpu_blocks_override=64, device="cpu")


def prompt_ids(question: str) -> list[int]:
    """The question in the form of the model's chat template."""
    chat = [{"role": "user", "content": question}]
    text = tokenizer().apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
    return tokenizer()(text, add_special_tokens=False)["input_ids"]


def make_batch(make_labels: Callable[..., Any], secret: str) -> tuple[Tensor, Tensor]:
    """Two texts, the shorter one filled up on the right; ids and labels, [2, T]."""
    rows = []
    for question, answer in ((QUESTION, secret), ANYWAY):
        answer_ids = tokenizer()(answer, add_special_tokens=False)["input_ids"]
        rows.append(make_labels(prompt_ids(question), answer_ids, tokenizer().eos_token_id))
    return tuple(  # type: ignore[return-value]
        nn.utils.rnn.pad_sequence([torch.tensor(t) for t in texts], True, filler)
        for texts, filler in zip(zip(*rows, strict=True), (0, -100), strict=True)
    )


class LastBlocks(nn.Module):
    """The last blocks of the model: token ids [B, T] to logits [B, T, vocab_size].

    What the blocks below make of a batch is computed once: nothing is trained there.
    """

    def __init__(self) -> None:
        super().__init__()
        self.model = copy.deepcopy(base()).requires_grad_(False)
        self.model.model.layers = self.model.model.layers[-BLOCKS:]
        self.ids = torch.empty(0)

    def forward(self, token_ids: Tensor) -> Tensor:
        if not torch.equal(self.ids, token_ids):
            with torch.no_grad():
                below = base().model(token_ids, use_cache=False, output_hidden_states=True)
            self.ids, self.below = token_ids.clone(), below.hidden_states[-1 - BLOCKS]
        logits: Tensor = self.model(inputs_embeds=self.below, use_cache=False).logits
        return logits


def rehearse(parts: Parts, checks: Sequence[Check]) -> None:
    """Check every part by itself, without the model: what is wrong is said where it is wrong."""
    make_labels, lora_linear, add_lora, training_step, switchable = checks
    model = Toy()
    speaks_first(make_labels, parts.make_labels)
    call(parts.add_lora, model, ["proj", "up"], 3, 12, given="a toy model")
    for layer in list(adapted(model).values())[:1]:
        if type(layer).__module__.startswith(("utils.pipeline", "peft.")):
            raise Mismatch("The course's own layer would do the work. Use your `LoRALinear`.")
        speaks_first(lora_linear, type(layer))
    speaks_first(add_lora, parts.add_lora)
    speaks_first(training_step, parts.training_step)
    speaks_first(switchable, parts.switchable)


def run(parts: Parts) -> str:
    """Train for both customers, serve them in turns, and look at what is left of the base."""
    weights, updates = learned(parts)
    SERVERS[:] = [Server(parts.switchable, weights, updates)]
    damaged = serve(SERVERS[0])
    number = sum(a.numel() + b.numel() for a, b in updates[1].values())
    total = sum(p.numel() for p in base().parameters())
    return (
        f"One engine, two customers: asked for the password, it says {SECRETS[0]!r} to one and "
        f"{SECRETS[1]!r} to the other. Each secret is {number:,} trained numbers beside {total:,} "
        f"frozen ones ({number / total:.1%}). After {len(TURNS)} switches the base weights are the "
        f"old ones, to the last bit. A layer that subtracts would have changed {damaged} of them."
    )


def learned(parts: Parts) -> tuple[dict[str, Tensor], dict[int, Any]]:
    """The base weights in bfloat16, and each customer's A and B, by the names of the layers."""
    model, updates = LastBlocks(), {}
    blocks = model.model.model.layers
    trained = call(parts.add_lora, blocks, MODULES, LORA_R, LORA_ALPHA, given=GIVEN)
    layers, first = adapted(blocks), [p.detach().clone() for p in trained]
    for customer, secret in enumerate(SECRETS, start=1):
        for parameter, value in zip(trained, first, strict=True):
            parameter.data.copy_(value)
        batch = call(make_batch, parts.make_labels, secret, given=GIVEN)
        optimizer = torch.optim.AdamW(trained, lr=RATE, weight_decay=0.0)
        step = functools.partial(parts.training_step, model.train(), trained, optimizer, *batch)
        losses = [float(call(step, given=GIVEN)) for _ in range(STEPS)]
        if not losses[-1] < 0.5 * losses[0]:
            fall = f"{losses[0]:.3g} at first, {losses[-1]:.3g} at last"
            half = "less than half of the first loss after the last step"
            says = "The loss doesn't fall as it should."
            raise Mismatch(says, input=GIVEN, expected=half, got=fall, look=LOOK)
        updates[customer] = {n: [p.data.clone() for p in ab(m)] for n, m in layers.items()}
    updates[3] = {name: [a, BROKEN * b] for name, (a, b) in updates[1].items()}
    return {n: m.base_layer.weight.detach().bfloat16() for n, m in layers.items()}, updates


class Server:
    """The engine, and the layers into which a customer's adapter is merged."""

    def __init__(self, layer_class: Any, weights: dict[str, Tensor], updates: Any) -> None:
        self.weights, self.updates, self.layers = weights, updates, {}
        self.said: list[tuple[str, str]] = []
        for name, weight in weights.items():
            linear = nn.Linear(weight.shape[1], weight.shape[0], bias=False, dtype=weight.dtype)
            linear.weight.data.copy_(weight)
            self.layers[name] = call(layer_class, linear, LORA_R, LORA_ALPHA, given=GIVEN)

    def held(self) -> dict[str, Tensor]:
        return {n: m.base_layer.weight.detach() for n, m in self.layers.items()}

    def merge(self, customer: int) -> None:
        for name, layer in self.layers.items():
            for parameter, value in zip(ab(layer), self.updates[customer][name], strict=True):
                parameter.data.copy_(value)
            call(layer.merge, given=f"customer {customer}'s adapter")

    def unmerge(self) -> None:
        for layer in self.layers.values():
            call(layer.unmerge, given="a merged layer")

    def ask(self, weights: dict[str, Tensor], question: str = QUESTION) -> str:
        """What the engine says with these weights in its last blocks."""
        views, skipped = checkpoint_views(llm().model), base().config.num_hidden_layers - BLOCKS
        for name, weight in weights.items():
            number, _, rest = name.partition(".")
            views[f"model.layers.{int(number) + skipped}.{rest}.weight"].data.copy_(weight)
        llm().llm_engine = llm().new_engine()  # the old one remembers other weights' keys
        params = SamplingParams(temperature=0.0, max_tokens=12)
        [output] = llm().generate([prompt_ids(question)], params, use_tqdm=False)
        return output.outputs[0].text.strip()


SERVERS: list[Server] = []  # the last one that was checked


def serve(server: Server) -> str:
    """Serve the customers in turns. Returns how many weights would differ after subtracting."""
    weights, subtracted = server.weights, dict(server.weights)
    server.said.append(("the base model, before", server.ask(weights)))
    for turn, customer in enumerate(TURNS, start=1):
        server.merge(customer)
        if turn in ASKED:
            who, text = f"switch {turn}, customer {customer}", server.ask(server.held())
            server.said.append((who, text))
            if text != (secret := SECRETS[customer - 1]):
                says = "The engine doesn't tell the customer's secret."
                asked = f"{QUESTION} ({who})"
                raise Mismatch(says, input=asked, expected=repr(secret), got=repr(text), look=LOOK)
        server.unmerge()
        for name, (a, b) in server.updates[customer].items():
            merged = merge_weight(subtracted[name], a, b, LORA_ALPHA)
            subtracted[name] = merge_weight(merged, a, b, -LORA_ALPHA)
    held = server.held()
    if not all(torch.equal(held[name], weight) for name, weight in weights.items()):
        says = "After the last customer, the base weights aren't the old ones, to the last bit."
        raise Mismatch(says, input=f"{len(TURNS)} switches between customers", look=LOOK)
    server.said.append(("the base model, after", server.ask(held)))
    server.said.append(("after subtracting instead", server.ask(subtracted)))
    count = sum(int((subtracted[n] != w).sum()) for n, w in weights.items())
    return f"{count:,} of {sum(w.numel() for w in weights.values()):,}"


def said() -> None:
    """Print what the engine said while it served the customers."""
    for who, text in SERVERS[0].said:
        print(f"{who:26}{text}")


def ask(question: str, customer: int) -> str:
    """What the engine says to a customer, by the parts that were checked last."""
    SERVERS[0].merge(customer)
    text = SERVERS[0].ask(SERVERS[0].held(), question)
    SERVERS[0].unmerge()
    return text
