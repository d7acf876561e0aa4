"""Of each widget: how it is recorded, and which of its values are, where all are too many.

A lesson's own widget has its name, and a further one a name behind it: the cell with the tag
`widget-steps` in lesson 02 is `02_kv_cache-steps`.

A page's frames take at most `LIMIT` bytes together, which is some hundred pictures.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

LIMIT = 1_000_000


@dataclass(frozen=True)
class Evenly:
    """So many of a control's values, from the first to the last, and the one it begins with."""

    count: int


@dataclass(frozen=True)
class Grid:
    """An `Explorer`: a picture for each combination of its controls' values.

    Attributes:
        values: of controls that have too many. A control that is not named has all of its own.
        printed: names that are read from what the committed lesson printed, so that its page tells
            one story: name -> (pattern, factor).
    """

    values: Mapping[str, Sequence[object] | Evenly] = field(default_factory=dict)
    printed: Mapping[str, tuple[str, float]] = field(default_factory=dict)


@dataclass(frozen=True)
class Texts:
    """The tokens of some texts, in place of a field for any text."""

    examples: Sequence[str]


@dataclass(frozen=True)
class NextTokens:
    """A text that grows by the tokens you choose: a button for each of the first bars.

    Attributes:
        choices: bars that have a button.
        depth: tokens chosen one after another; what lies beyond is not recorded.
        temperatures: beside 1; each is recorded for the text at the start, and has a button.
    """

    choices: int
    depth: int
    temperatures: Sequence[float] = ()


@dataclass(frozen=True)
class Guesses:
    """A run and a step, shown as text."""


@dataclass(frozen=True)
class Prompts:
    """A prefix cache: buttons that send some of its examples, finish a request, and start again.

    Attributes:
        examples: numbers of the examples.
        depth: buttons pressed one after another; what lies beyond is not recorded.
    """

    examples: Sequence[int]
    depth: int


@dataclass(frozen=True)
class Loads:
    """The dashboard of a server: runs with so many users, each until several moments."""

    users: Sequence[int]
    moments: int


@dataclass(frozen=True)
class Calculator:
    """A formula that the page computes; `calculators.py` has the numbers it needs."""

    name: str


Plan = Grid | Texts | NextTokens | Guesses | Prompts | Loads | Calculator

PLANS: dict[str, Plan] = {
    "00_start_here-next": NextTokens(choices=4, depth=3, temperatures=(0.5, 2.0)),
    "00_start_here": Texts(
        (
            "The gentle breeze moved 1,299 leaves in Zürich.",
            "The gentle breeze moved 1299 leaves in Zurich.",
            "the gentle breeze",
            "THE GENTLE BREEZE",
            "antidisestablishmentarianism",
            "for i in range(10):\n    print(i)",
            "3.14159 + 2.71828 = 5.85987",
            "Guten Tag! Wie geht es Ihnen?",
            "你好，世界",
            "cafe, café, CAFÉ",
        )
    ),
    "01_prefill_and_decode": Grid(
        {
            "temperature": [0.1, 0.5, 1.0, 2.0],
            "top_k": [0, 1, 5],
            "top_p": [0.5, 0.8, 1.0],
            "min_p": [0.0, 0.1],
        }
    ),
    "01_prefill_and_decode-passes": Grid(),
    "02_kv_cache": Calculator("memory"),
    "02_kv_cache-steps": Grid(),
    "03_kv_memory_waste": Grid({"block_size": [1, 4, 8, 32]}),
    "03_kv_memory_waste-slots": Grid(),
    "03_kv_memory_waste-spread": Grid(),
    "04_paged_allocator": Grid(),
    "05_prefix_caching": Prompts((0, 1), depth=4),
    "05_prefix_caching-chain": Grid({"changed": [0, 1, 4, 5, 7, 9, 14]}),
    "06_continuous_batching": Grid({"step": Evenly(12)}),
    "07_speculative_decoding": Guesses(),
    "07b_medusa_eagle_mtp": Grid(
        {
            "first": [0.2, 0.4, 0.6, 0.8],
            "later": [0.2, 0.4, 0.6, 0.8],
            "num_guesses": [1, 2, 4, 6, 8],
        }
    ),
    "08_the_engine": Grid({"step": Evenly(30)}),
    "08b_async_scheduling": Grid(),
    "08c_two_engines_one_model": Grid(
        {"first": [17.14, 17.22, 17.3, 17.38, 17.46], "gap": [0.0, 0.02, 0.06, 0.1, 0.16]}
    ),
    "08d_making_it_fast": Grid(
        {
            "megabytes": [540, 16000],
            "bandwidth": [20, 1000, 4000],
            "operations": [10, 300, 6000],
            "each_us": [1, 10],
        }
    ),
    "09_quantization": Grid(
        {"bits": [2, 4, 8], "group_size": [16, 64, 576], "outlier": [0, 20, 60]}
    ),
    "09b_gptq_and_awq": Grid(
        {"column": [0, 4, 8, 12, 16, 20, 24, 28, 31], "bits": [2, 4], "damp": [0.05, 100.0]}
    ),
    "10_qlora": Calculator("training"),
    "11_merge": Grid({"base": ["W", "Q(W)"], "grid": ["NF4", "bfloat16"], "size": [0.125, 1.0]}),
    "12_gptq_awq": Grid(
        {
            "layer": [0, 15],
            "tensor": ["self_attn.v_proj", "mlp.gate_proj"],
            "output": [5, 100],
            "input": [9, 200],
        }
    ),
    "12b_formats_of_today": Grid({"largest": Evenly(26)}),
    "13_vllm_prefix_caching": Grid(
        {
            "shared": [0, 268, 400],
            "own": [80],
            "block_size": [16, 128, 256],
            "tenants": [1, 3, 8],
            "cache_tokens": [1024, 2048, 8192],
        }
    ),
    "13b_structured_output": Grid({"step": [0, 1, 2, 4, 6, 8, 13]}),
    "14_serving": Loads((1, 4, 8, 16, 32), moments=6),
    "14b_which_card_what_it_costs": Grid(
        {
            "model": ["Llama-3-8B", "Llama-3-70B"],
            "gpu": ["A100 80GB", "H100", "H200"],
            "cards": [1, 2, 4],
            "weight_bits": [16, 4],
            "prompt": [2000],
            "hit": [0.0, 0.75],
        }
    ),
    "15_distributed": Grid(
        {
            "model": ["Llama-3-8B", "Llama-3-70B", "Llama-3.1-405B", "Mixtral-8x7B", "DeepSeek-V3"],
            "gpu": ["H100"],
            "inside": ["NVLink 4"],
            "between": ["InfiniBand NDR"],
            "tp": [1, 2, 4, 8],
            "pp": [1, 2],
            "dp": [1],
            "ep": [False],
            "requests": [32, 256],
            "context": [2048],
        }
    ),
    "16_disaggregation_and_kv_sharing": Calculator("fetch"),
    "17_routing": Grid(
        {
            "policy": [
                "round robin",
                "least loaded",
                "session",
                "consistent hash",
                "longest prefix",
                "prefix + load (truth)",
            ],
            "load": ["fair load"],
            "size": ["48 blocks"],
            "step": [5, 10, 20, 40, 60, 80, 100, 120],
        }
    ),
    "18_vllm_by_hand": Grid(),
}

# The page keeps its picture, and says that the widget needs Python.
NOT_RECORDED = {"07_speculative_decoding": "planned above; nobody has recorded it yet"}
