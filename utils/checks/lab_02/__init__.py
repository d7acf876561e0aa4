"""The checks of lab 02: what is drawn, and what is right.

Oracles: the sizes of real tensors, exact fractions, the engine's cache, a loop without a cache.
`tests/` holds these against transformers' caches and `generate`.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import torch
from matplotlib.figure import Figure
from torch import Tensor

from utils.checks.kit import pictures
from utils.checks.kit.contracts import Choices, Given, InLockstep, Raised, Returns, Stage
from utils.checks.kit.contracts.guards import share_memory
from utils.checks.kit.contracts.inputs import LAYOUTS, laid_out
from utils.checks.kit.contracts.pretended_device import PRETENDED, PretendedDevice
from utils.checks.kit.lab.engine import as_hugging_face, not_the_engines, speaks_first
from utils.checks.kit.lab.lab import Lab
from utils.checks.kit.lab.story import Story
from utils.checks.kit.runner import Mismatch
from utils.checks.lab_02 import answers
from utils.engine.attention.kv_cache import ContiguousKVCache
from utils.engine.config.model import ModelConfig
from utils.engine.llm import LLM
from utils.engine.models.llama import LlamaOps, silu_and_mul

LAB = Lab(__file__)
BYTES = {1: torch.int8, 2: torch.bfloat16, 4: torch.float32}
WIDTHS = (2, 1, 4)
DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
GIVEN = ("all", "defaults", "another device", "a device's name")
SHOWN = 12  # tokens


def model_config(layers: int, heads: int, kv_heads: int, head_dim: int, hidden: int) -> ModelConfig:
    """A model shape; only the fields that decide the size of the cache matter."""
    return ModelConfig(
        vocab_size=32,
        hidden_size=hidden,
        intermediate_size=2 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        head_dim=head_dim,
        rms_norm_eps=1e-5,
        rope_theta=10000.0,
        max_position_embeddings=8192,
        tie_word_embeddings=True,
        eos_token_ids=(2,),
    )


def draw_config(c: Choices, max_layers: int = 100, max_heads: int = 16) -> ModelConfig:
    """MHA, GQA and MQA; a head_dim that is hidden_size / heads, or is not."""
    layers, kv_heads, group = c.size(1, max_layers), c.size(1, max_heads), c.integer(1, 5)
    head_dim = 2 * c.size(1, 64)
    hidden = 2 * c.integer(1, 4096) if c.rarely(2) else kv_heads * group * head_dim
    return model_config(layers, kv_heads * group, kv_heads, head_dim, hidden)


def meta_bytes(*shape: int, width: int) -> int:
    """Bytes of a real tensor, which takes no memory."""
    return torch.empty(shape, dtype=BYTES[width], device="meta").nbytes


# Exercise 1


def draw_shape(c: Choices) -> Given:
    config, tokens = draw_config(c), c.size(1, 200_000)
    if c.rarely(4):
        return Given(config, tokens)
    most = config.num_hidden_layers + 1 if c.rarely(2) else 6
    return Given(config, tokens, c.size(1, 300, 3), c.pick(WIDTHS), c.integer(1, most))


def allocated(
    config: ModelConfig,
    num_tokens: int,
    batch_size: int = 1,
    bytes_per_value: int = 2,
    layers_per_cache: int = 1,
) -> int:
    """Layer by layer: who has a cache of his own, and what it takes."""
    owners = {layer // layers_per_cache for layer in range(config.num_hidden_layers)}
    shape = (2, batch_size, num_tokens, config.num_key_value_heads, config.head_dim)
    return len(owners) * meta_bytes(*shape, width=bytes_per_value)


def tell_shape(given: Given) -> str:
    c, tokens, *rest = given.args
    batch, width, share = rest or (1, 2, 1)
    return (
        f"{c.num_hidden_layers} layers, hidden_size {c.hidden_size}, {c.num_attention_heads} query "
        f"heads, {c.num_key_value_heads} KV heads, head_dim {c.head_dim}; {tokens} tokens, batch "
        f"{batch}, {width} bytes per value, {share} layers per cache"
        + ("" if rest else " (the last three by default)")
    )


def praise_bytes(answer: Any) -> str:
    llama = model_config(32, 32, 8, 128, 4096)
    return (
        "Equal to the memory of real tensors: MHA, GQA, MQA, and layers that share a cache. By "
        f"your count, Llama-3-8B in bfloat16 keeps {int(answer(llama, 1)):,} bytes per token, "
        f"{answer(llama, 8192) / 2**30:g} GiB for 8,192 tokens."
    )


kv_cache_bytes = LAB.check(
    answers.kv_cache_bytes, draw_shape, Returns(allocated), tell=tell_shape, passed=praise_bytes
)

# Exercise 2


def allocated_latents(
    num_layers: int, kv_lora_rank: int, qk_rope_head_dim: int, num_tokens: int, bytes_per_value: int
) -> int:
    latent = meta_bytes(num_layers, num_tokens, kv_lora_rank, width=bytes_per_value)
    return latent + meta_bytes(num_layers, num_tokens, qk_rope_head_dim, width=bytes_per_value)


def draw_latents(c: Choices) -> Given:
    return Given(c.size(1, 80), c.size(1, 2048), c.size(1, 256), c.size(1, 200_000), c.pick(WIDTHS))


def praise_latents(answer: Any) -> str:
    deepseek = answer(61, 512, 64, 1, 2)
    full = 61 * 128 * (192 + 128) * 2  # 128 heads of keys (128 + 64 numbers) and values (128)
    return (
        f"Equal to the memory of real tensors. By your count, DeepSeek-V3 keeps {int(deepseek):,} "
        "bytes per token; with full keys and values for its 128 heads it would be "
        f"{full / deepseek:.0f} times as many."
    )


latent_cache_bytes = LAB.check(
    answers.latent_cache_bytes, draw_latents, Returns(allocated_latents), passed=praise_latents
)

# Exercise 3


@dataclass(frozen=True)
class Setting:
    """How caches are made. `given`: which arguments, and how, one of GIVEN."""

    config: ModelConfig
    slots: tuple[int, ...]  # of each cache
    dtype: torch.dtype
    given: str
    layout: str  # of the tensors that are appended

    def __str__(self) -> str:
        c, slots = self.config, " and ".join(map(str, self.slots))
        more = {
            "defaults": ", dtype and device not given",
            "another device": f", on {PRETENDED}",
            "a device's name": ", device='cpu'",
        }
        return (
            f"{many(c.num_hidden_layers, 'layer')}, {many(c.num_key_value_heads, 'KV head')}, "
            f"head_dim {c.head_dim}, {many(len(self.slots), 'cache')} with {slots} "
            f"slot{'s' if self.slots[-1] > 1 else ''}, "
            f"{str(self.dtype).removeprefix('torch.')}{more.get(self.given, '')}"
            + ("" if self.layout == "contiguous" else f"; key and value are {self.layout}")
        )


class CacheStory(Story):
    """One or two caches. A token is a letter; its rows [H_kv, D] are known by their bytes."""

    kinds = ("step", "truncate", "append", "step")

    @classmethod
    def draw_setting(cls, c: Choices) -> Setting:
        deep, long = c.rarely(25), c.rarely(12)
        config = draw_config(c, max_layers=40 if deep else 3, max_heads=16 if deep else 3)
        given = c.pick(("all", *GIVEN))
        dtype = torch.float32 if given == "defaults" else c.pick(DTYPES)
        first = c.integer(100, 150) if long else c.integer(1, 8)
        more = c.pick(((), (), (first,), (5,)))
        return Setting(config, (first, *more), dtype, given, c.pick(LAYOUTS))

    @classmethod
    def longest(cls, setting: Setting) -> int:
        return 4 if setting.config.num_hidden_layers > 3 else cls.most

    @staticmethod
    def draw_step(c: Choices, setting: Setting) -> tuple[int, int]:
        size = c.pick((1, 2, 1, 2, 3, 4, 70 if setting.slots[0] > 8 else 1))
        return c.integer(0, len(setting.slots) - 1), size

    @classmethod
    def draw_append(cls, c: Choices, setting: Setting) -> tuple[int, int, int]:
        return *cls.draw_step(c, setting), c.integer(0, setting.config.num_hidden_layers - 1)

    @staticmethod
    def draw_truncate(c: Choices, setting: Setting) -> tuple[int, int]:
        number = c.pick((0, 1, 2, 3, 4, 71 if setting.slots[0] > 8 else 5))
        return c.integer(0, len(setting.slots) - 1), number

    def start(self, cache_class: Any) -> None:
        setting = self.setting
        self.names: dict[bytes, str] = {}  # of the rows that were appended
        self.first: dict[tuple[int, int], Any] = {}  # what was returned first, kept alive
        self.num_tokens = 0
        self.after_refused: dict[int, str] = {}  # what clauses of a cache begin with
        elsewhere = setting.given == "another device"
        self.device = PretendedDevice() if elsewhere else None
        arguments: list[Any] = [setting.dtype, PRETENDED if elsewhere else torch.device("cpu")]
        if setting.given == "defaults":
            arguments = []
        elif setting.given == "a device's name":
            arguments[1] = "cpu"
        self.caches = [
            self.see("new", self.on_device(cache_class, setting.config, n, *arguments), "a cache")
            for n in setting.slots
        ]
        for which in range(len(self.caches)):
            self.look(which, "new: num_tokens")

    def look(self, which: int, clause: str) -> None:
        """After a step on one cache: how many tokens each holds, and its own bytes."""
        for other, cache in enumerate(self.caches):
            here = clause if other == which else "other: num_tokens"
            number = self.stage.read(cache, "num_tokens")
            if isinstance(number, Tensor):
                self.stage.blame("int", "a plain int", number)
            self.stage.see(here, number)
        self.stage.see("nbytes", self.stage.read(self.caches[which], "nbytes"))

    def do_truncate(self, which: int, number: int) -> None:
        self.stage.step(f"{self.cache(which)}truncate({number})")
        got = self.see("truncate", self.stage.call(self.caches[which], "truncate", number))
        if isinstance(got, Raised):
            self.stage.refused()
            self.after_refused[which] = "refused truncate: "
        self.look(which, "truncate: num_tokens")

    def do_step(self, which: int, count: int) -> None:
        """A step of the model: an append to each layer, until one is refused."""
        for layer in range(self.setting.config.num_hidden_layers):
            if isinstance(self.do_append(which, count, layer), Raised):
                break

    def do_append(self, which: int, count: int, layer: int) -> Any:
        stage = self.stage
        letters = [letter(self.num_tokens + i) for i in range(count)]
        pair = [self.rows(kind, letters, which, layer) for kind in "kv"]
        self.num_tokens += count
        words = " ".join(letters[:3]) + (" ..." if count > 3 else "")
        stage.step(f"{self.cache(which)}append({layer}, {words})")
        got = self.on_device(lambda *a: self.caches[which].append(*a), layer, *pair)
        behind = self.after_refused.get(which, "")
        if isinstance(got, Raised):
            stage.see(f"{behind}append", got)
            stage.refused()
            self.look(which, "refused: num_tokens")
            return got
        if not (isinstance(got, tuple | list) and len(got) == 2) or not all(
            isinstance(t, Tensor) and t.dim() == 3 for t in got
        ):
            stage.blame("append", "a pair of tensors [L, H_kv, D]", got)
        stage.see(f"{behind}append", "a pair")
        stage.see("dtype", [str(t.dtype) for t in got])
        stage.see("shape", [tuple(t.shape[1:]) for t in got])
        named = [[self.names.get(as_bytes(row), "?") for row in t.detach()] for t in got]
        stage.see(f"{behind}tokens", named, listing, rows_picture)
        if self.device is not None:
            stage.see("device", [str(PRETENDED) if self.device.holds(t) else "cpu" for t in got])
        shares = any(share_memory(one, other) for one in pair for other in got)
        stage.see("shares", "the caller's tensors" if shares else "memory of its own")
        first = self.first.setdefault((which, layer), tuple(got))
        pairs = zip(("keys", "values"), first, got, strict=True)
        moved = [name for name, one, other in pairs if one.data_ptr() != other.data_ptr()]
        stage.see("place", f"{' and '.join(moved)} in a new place" if moved else "views")
        self.look(which, "append: num_tokens")
        for tensor in pair:
            tensor.fill_(-1)  # the caller may use its memory again
        return got

    def on_device(self, function: Any, *args: Any) -> Any:
        def inside(*args: Any) -> Any:
            with self.device or contextlib.nullcontext():
                return function(*args)

        return self.stage.do(inside, *args)

    def rows(self, kind: str, letters: list[str], which: int, layer: int) -> Tensor:
        """New rows of numbers [T, H_kv, D], whose bytes are noted."""
        shape = self.setting.config.num_key_value_heads, self.setting.config.head_dim
        seed = self.num_tokens * 64 + which * 16 + layer * 2 + (kind == "v")
        generator = torch.Generator().manual_seed(seed)
        rows = torch.randn(len(letters), *shape, generator=generator).to(self.setting.dtype)
        for name, row in zip(letters, rows, strict=True):
            self.names[as_bytes(row)] = f"{kind}:{name}{layer}"
        rows = laid_out(rows, self.setting.layout)
        return rows if self.device is None else self.device.mark(rows)

    def cache(self, which: int) -> str:
        return "" if len(self.caches) < 2 else f"cache {which + 1}: "


def many(number: int, what: str) -> str:
    return f"{number} {what}{'s' if number > 1 else ''}"


def letter(number: int) -> str:
    return chr(ord("a") + number % 26) + (str(number // 26) if number >= 26 else "")


def as_bytes(row: Tensor) -> bytes:
    return row.contiguous().view(torch.uint8).numpy().tobytes()


def listing(both: Any) -> str:
    return "; ".join(
        f"{name} {' '.join(rows[:SHOWN]) or 'nothing'}{' ...' * (len(rows) > SHOWN)} "
        f"({many(len(rows), 'token')})"
        for name, rows in zip(("keys", "values"), both, strict=True)
    )


def rows_picture(want: Any, got: Any) -> tuple[Figure, str]:
    expected, yours = ([rows[:SHOWN] for rows in side] for side in (want, got))
    figure = pictures.cache_rows(expected, yours, ["keys", "values"])
    return figure, "The slots of the cache, expected and yours."


kv_cache = LAB.check(
    answers.KVCache, CacheStory.draw, CacheStory.judge(ContiguousKVCache), examples=200
)

# Exercise 4

VOCAB_SIZE = 8


@dataclass(frozen=True)
class Request:
    prompt: tuple[int, ...]
    max_tokens: int
    eos: frozenset[int]
    left: int  # tokens of the request before, still in the cache
    broken_off: bool  # and one more in the first layer, of a step that didn't end
    later: tuple[int, ...] = ()  # the prompt of another request, on the same cache

    def __str__(self) -> str:
        more = len(self.prompt) - SHOWN
        prompt = f"{list(self.prompt[:SHOWN])}{f' and {more} more' if more > 0 else ''}"
        left = f"; tokens of the request before, still in the cache: {self.left}"
        if self.broken_off:
            left += ", and one more in layer 0, of a step that was broken off"
        return (
            f"prompt {prompt}, max_tokens {self.max_tokens}, EOS {sorted(self.eos) or 'none'}"
            + (left if self.left or self.broken_off else "")
            + (f"; then prompt {list(self.later)} on the same cache" if self.later else "")
        )


def draw_request(c: Choices) -> Request:
    def token() -> int:
        return c.integer(0, VOCAB_SIZE - 1)

    long = c.integer(1, 300) if c.rarely(8) else 0
    if c.rarely(50):
        long = 2100
    prompt = (*c.some(token, 1, 6), *(3,) * long)
    max_tokens = c.integer(30, 150) if c.rarely(8) and long < 2100 else c.integer(1, 6)
    eos = frozenset(c.some(token, 0, 3))
    left, broken_off = c.integer(0, 6), c.rarely(4)
    later = tuple(c.some(token, 1, 6)) if c.rarely(4) else ()
    return Request(prompt, max_tokens, eos, left, broken_off, later)


def after(state: int, token: int, position: int) -> int:
    """What the pretended model remembers of a text: each token and its position counts."""
    return (state * 1_000_003 + 31 * token + 7 * position + 5) % 2_147_483_647


def next_token(state: int) -> int:
    return (state >> 7) % VOCAB_SIZE


def from_scratch(request: Request, prompt: tuple[int, ...]) -> list[int]:
    """The whole text goes through the model for each token, without a cache."""
    text, end = list(prompt), len(prompt)
    while len(text) < end + request.max_tokens and not (text[end:] and text[-1] in request.eos):
        state = 1
        for position, token in enumerate(text):
            state = after(state, token, position)
        text.append(next_token(state))
    return text[end:]


class PretendedCache:
    """In place of keys and values it holds what the model remembers after each token."""

    def __init__(self, request: Request) -> None:
        self.states = list(range(1000, 1000 + request.left))
        self.broken_off = request.broken_off

    @property
    def num_tokens(self) -> int:
        return len(self.states)

    def truncate(self, num_tokens: int) -> None:
        if not 0 <= num_tokens <= len(self.states):
            raise ValueError(f"cannot keep {num_tokens} of {len(self.states)} tokens")
        del self.states[num_tokens:]
        self.broken_off = False


class Model:
    """A pretended model: says the next token, and blames who feeds it otherwise than agreed."""

    def __init__(self, stage: Stage, prompt: tuple[int, ...]) -> None:
        self.stage, self.text = stage, list(prompt)  # as far as it is known
        self.num_fed = self.num_calls = 0

    def __call__(self, token_ids: Tensor, positions: Tensor, kv_cache: PretendedCache) -> Tensor:
        stage, start, self.num_calls = self.stage, kv_cache.num_tokens, self.num_calls + 1
        stage.now(f"call {self.num_calls} of the model, tokens in the cache: {start}")
        for name, tensor in (("token_ids", token_ids), ("positions", positions)):
            right = isinstance(tensor, Tensor) and tensor.dim() == 1 and tensor.numel() > 0
            if not right or tensor.is_floating_point():
                stage.blame("tensors", f"{name}: whole numbers, shape [T]", tensor)
        if not self.num_fed:
            stage.expect("reset", 0, start)
            held = "layer 0 holds a token of the step that was broken off"
            stage.expect(
                "reset",
                "no layer holds a token",
                held if kv_cache.broken_off else "no layer holds a token",
            )
        if start < self.num_fed:
            stage.expect("again", f"{self.num_fed} tokens in the cache", f"{start}")
        tokens, places = token_ids.tolist(), positions.tolist()
        stage.expect("tokens", self.text[start : start + len(tokens)], tokens)
        stage.expect("positions", list(range(start, start + len(tokens))), places)
        self.num_fed = start + len(tokens)
        rows = torch.rand(len(tokens), VOCAB_SIZE, generator=torch.Generator().manual_seed(0)) - 9
        for row, token, position in zip(rows, tokens, places, strict=True):
            kv_cache.states.append(after((kv_cache.states or [1])[-1], token, position))
            row[next_token(kv_cache.states[-1])] += 3
        if self.num_fed == len(self.text):
            self.text.append(int(rows[-1].argmax()))
        return rows


def play_text(stage: Stage, loop: Any, request: Request) -> None:
    cache = PretendedCache(request)
    for prompt in (request.prompt, *([request.later] if request.later else [])):
        answer_prompt(stage, loop, request, prompt, cache)


def answer_prompt(
    stage: Stage, loop: Any, request: Request, tokens: tuple[int, ...], cache: PretendedCache
) -> None:
    model, expected = Model(stage, tokens), from_scratch(request, tokens)
    prompt, eos = list(tokens), set(request.eos)
    got = stage.do(loop, model, cache, prompt, request.max_tokens, eos)
    if isinstance(got, Raised):
        stage.blame("result", expected, got)
    stage.now("what your function returns")
    if not isinstance(got, list) or not all(isinstance(token, int) for token in got):
        stage.blame("ints", expected, got)
    stage.expect("result", expected, got)
    needed = len(prompt) + len(expected) - 1
    fed = max(model.num_fed, needed)
    stage.expect("once more", needed, fed, "{} tokens through the model".format)


generate_with_cache = LAB.check(
    answers.generate_with_cache, draw_request, InLockstep(play_text, answers.generate_with_cache)
)

# Exercise 5


def draw_machine(c: Choices) -> Given:
    """Made from the answer backwards, so that exact fits are frequent."""
    per_token, tokens = c.size(1, 2**18), c.size(1, 2**17)
    request, weights = per_token * tokens, c.size(1, 2**36)
    rest = c.integer(0, request - 1) if c.rarely(2) else 0
    used = weights + c.size(0, 3000, 4) * request + rest
    if c.rarely(4):
        used = c.integer(0, weights)  # the weights alone are too large
    part = c.pick((1, 2, 4, 0))
    if part or request < 1024:  # of so small requests no decimal is exact enough
        return Given(used * (part or 1), 1.0 / (part or 1), weights, per_token, tokens)
    utilization = c.pick((0.9, 0.29, c.integer(1, 999) / 1000))
    memory = int(used / utilization)
    room = (memory * utilization - weights) / request
    if abs(room - round(room)) < 1e-3:  # no float is 0.9: stay off the border
        memory += int(request / utilization / 2)
    return Given(memory, utilization, weights, per_token, tokens)


def requests_that_fit(
    memory_bytes: int,
    gpu_memory_utilization: float,
    weight_bytes: int,
    kv_bytes_per_token: int,
    tokens_per_request: int,
) -> int:
    """In exact fractions."""
    room = Fraction(gpu_memory_utilization) * memory_bytes - weight_bytes
    return max(0, int(room // (kv_bytes_per_token * tokens_per_request)))


max_num_requests = LAB.check(
    answers.max_num_requests, draw_machine, Returns(requests_that_fit, rtol=0.0)
)

# Exercise 6


@LAB.exercise
def engine(cache_class: Any) -> str:
    """The engine speaks as HF does with the learner's cache, and recomputes nothing."""
    not_the_engines(cache_class, ContiguousKVCache, "KVCache")
    speaks_first(kv_cache, cache_class)
    rows = 0

    def counting(gate_up: Tensor) -> Tensor:
        nonlocal rows
        rows += len(gate_up)
        return silu_and_mul(gate_up)

    llm = LLM(dtype="float32", ops=LlamaOps(silu_and_mul=counting), kv_cache_class=cache_class)
    outputs = as_hugging_face(llm, "Does something change keys or values later?")
    lens = [(len(o.prompt_token_ids), len(o.outputs[0].token_ids)) for o in outputs]
    through = rows // llm.model_config.num_hidden_layers
    needed = sum(prompt + new - 1 for prompt, new in lens)
    naive = sum(prompt + i for prompt, new in lens for i in range(new))
    if through != needed:
        raise Mismatch(
            "The text is right, but tokens are computed more than once.",
            expected=f"{needed} tokens through the model",
            got=f"{through}",
        )
    return (
        f"Token for token what Hugging Face generates. {through} tokens went through the model, "
        f"each once; without a cache it would have been {naive:,}. "
        f"The engine says: {outputs[0].outputs[0].text.strip()!r}"
    )
