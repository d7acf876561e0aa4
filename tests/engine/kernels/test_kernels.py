"""The C++ kernels and packed weights against the readable path, and both against Hugging Face."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel

from tests.engine.tiny_engines import tiny_llama
from tests.near_ties import assert_same_but_for_ties
from tests.scale import sized
from utils.engine import LLM, LlamaOps, ModelConfig, SamplingParams
from utils.engine.attention.batch import Span, paged_batch
from utils.engine.attention.paged_attention import AttentionMetadata, paged_attention_reference
from utils.engine.attention.paged_kv_cache import PagedKVCache
from utils.engine.kernels import fast_ops
from utils.engine.kernels.fast_ops import load_fast_ops
from utils.engine.kernels.fused_layers import fused_layers
from utils.engine.kernels.packed_linear import PackedLinear, has_own_product, pack_linears
from utils.engine.models import llama
from utils.engine.models.weights import load_model

FAST = load_fast_ops()
pytestmark = pytest.mark.skipif(FAST is None, reason="no C++ compiler")
OPS = FAST or LlamaOps()
DTYPES = st.sampled_from([torch.float32, torch.bfloat16])
SEEDS = st.integers(0, 2**32 - 1)
quick = settings(max_examples=sized(25, 60), deadline=None)


def assert_close(got: Tensor, exact: Tensor, dtype: torch.dtype) -> None:
    """`exact` is computed in float32 from the same inputs; bfloat16 keeps 8 bits of a number."""
    assert got.dtype == dtype and got.shape == exact.shape
    tolerance = 1e-5 if dtype == torch.float32 else 2**-7
    torch.testing.assert_close(got.float(), exact, rtol=tolerance, atol=tolerance)


@quick
@given(DTYPES, SEEDS, st.integers(1, 70), st.integers(1, 300))
def test_rms_norm(dtype: torch.dtype, seed: int, tokens: int, size: int) -> None:
    torch.manual_seed(seed)
    x, weight = torch.randn(tokens, size, dtype=dtype), torch.randn(size, dtype=dtype)
    exact = llama.rms_norm(x.float(), weight.float(), 1e-5)
    assert_close(OPS.rms_norm(x, weight, 1e-5), exact, dtype)


@quick
@given(DTYPES, SEEDS, st.integers(1, 70), st.integers(1, 300), st.sampled_from([0.1, 1, 10, 100]))
def test_silu_and_mul(dtype: torch.dtype, seed: int, tokens: int, size: int, spread: float) -> None:
    torch.manual_seed(seed)
    gate_up = (torch.randn(tokens, 2 * size) * spread).to(dtype)
    assert_close(OPS.silu_and_mul(gate_up), llama.silu_and_mul(gate_up.float()), dtype)


@quick
@given(DTYPES, SEEDS, st.integers(1, 70), st.integers(1, 9), st.sampled_from([2, 12, 64, 80]))
def test_apply_rotary(
    dtype: torch.dtype, seed: int, tokens: int, heads: int, head_dim: int
) -> None:
    torch.manual_seed(seed)
    qkv = torch.randn(tokens, heads + 2, head_dim, dtype=dtype)
    x = qkv[:, :heads]  # not contiguous, as in the model
    positions = torch.randint(0, 8000, (tokens,))
    cos, sin = llama.rotary_cos_sin(positions, head_dim, 10000.0, dtype)
    exact = llama.apply_rotary(x.float(), cos.float(), sin.float())
    assert_close(OPS.apply_rotary(x, cos, sin), exact, dtype)


@st.composite
def batches(draw: st.DrawFn) -> tuple[AttentionMetadata, int, int]:
    """Requests of a flat batch, with blocks anywhere, the first ones perhaps the same for all; the
    block size, and how many blocks."""
    block_size = draw(st.sampled_from([1, 3, 16, 32]))
    query_lens = draw(st.lists(st.sampled_from([1, 1, 2, 5, 40]), min_size=1, max_size=8))
    num_shared = draw(st.sampled_from([0, 0, 63, 64, 100, 200])) // block_size
    seq_lens = [q + num_shared * block_size + draw(st.integers(0, 150)) for q in query_lens]
    counts = [-(-length // block_size) - num_shared for length in seq_lens]
    num_blocks = num_shared + sum(counts)
    order = torch.randperm(num_blocks, generator=torch.Generator().manual_seed(draw(SEEDS)))
    shared, *own = order.split([num_shared, *counts])
    tables = [torch.cat((shared, blocks)) for blocks in own]
    slots = [
        int(table[p // block_size]) * block_size + p % block_size
        for table, q, length in zip(tables, query_lens, seq_lens, strict=True)
        for p in range(length - q, length)
    ]
    metadata = AttentionMetadata(query_lens, seq_lens, tables, torch.tensor(slots))
    return metadata, block_size, num_blocks


@quick
@given(
    DTYPES,
    SEEDS,
    batches(),
    st.sampled_from([(1, 1), (3, 3), (9, 3), (40, 1)]),
    st.sampled_from([4, 12, 64, 72, 128]),
)
def test_paged_attention(dtype, seed, batch, heads, head_dim) -> None:
    check_paged_attention(dtype, seed, batch, heads, head_dim)


@quick
@given(SEEDS, batches(), st.sampled_from([(9, 3), (8, 2)]), st.sampled_from([64, 128]))
def test_paged_attention_with_matrix_instructions(seed, batch, heads, head_dim) -> None:
    """The shapes that AMX computes, on processors that have it."""
    check_paged_attention(torch.bfloat16, seed, batch, heads, head_dim)


@pytest.mark.parametrize("threads", [1, 3, 8])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("heads", [(4, 1), (9, 3)])
def test_keys_of_few_requests_are_shared_out(
    dtype: torch.dtype, heads: tuple[int, int], threads: int
) -> None:
    """Requests long and short, of one new token or a few, on many threads."""
    usual = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        for query_lens, seq_lens in (
            ([1], [1500]),
            ([5, 1], [130, 700]),
            ([7, 3], [7, 1024]),
            ([1] * 5, [512, 1, 513, 64, 1100]),
        ):
            counts = [-(-length // 16) for length in seq_lens]
            tables = list(torch.randperm(sum(counts)).split(counts))
            no_slots = torch.zeros(sum(query_lens), dtype=torch.long)
            metadata = AttentionMetadata(query_lens, seq_lens, tables, no_slots)
            check_paged_attention(dtype, 0, (metadata, 16, sum(counts)), heads, 64)
    finally:
        torch.set_num_threads(usual)


def check_paged_attention(
    dtype: torch.dtype,
    seed: int,
    batch: tuple[AttentionMetadata, int, int],
    heads: tuple[int, int],
    head_dim: int,
) -> None:
    torch.manual_seed(seed)
    metadata, block_size, num_blocks = batch
    num_heads, num_kv_heads = heads
    cache_shape = (num_blocks, block_size, num_kv_heads, head_dim)
    # What no request wrote must not show: it may be anything.
    key_cache = torch.full(cache_shape, torch.nan, dtype=dtype)
    value_cache = torch.full(cache_shape, torch.nan, dtype=dtype)
    for table, length in zip(metadata.block_tables, metadata.seq_lens, strict=True):
        slots = (table[:, None] * block_size + torch.arange(block_size)).flatten()[:length]
        key, value = torch.randn(2, length, num_kv_heads, head_dim, dtype=dtype)
        key_cache.flatten(0, 1)[slots] = key
        value_cache.flatten(0, 1)[slots] = value
    tokens = sum(metadata.query_lens)
    query = torch.randn(tokens, num_heads + 3, head_dim, dtype=dtype)[:, :num_heads]

    assert OPS.paged_attention is not None
    got = OPS.paged_attention(query, key_cache, value_cache, metadata, head_dim**-0.5)

    exact = [
        paged_attention_reference(
            q, key_cache.float(), value_cache.float(), table.tolist(), length, head_dim**-0.5
        )
        for q, table, length in zip(
            query.float().split(metadata.query_lens),
            metadata.block_tables,
            metadata.seq_lens,
            strict=True,
        )
    ]
    assert_close(got, torch.cat(exact), dtype)


@pytest.mark.parametrize("heads", [(4, 4), (9, 3), (4, 1)])
@pytest.mark.parametrize("head_dim", [12, 64])
def test_all_layers_at_once(heads: tuple[int, int], head_dim: int) -> None:
    """Prompts, chunks and single tokens, in one batch after the other: as layer by layer."""
    torch.manual_seed(0)
    config = ModelConfig(
        vocab_size=50,
        hidden_size=heads[0] * head_dim,
        intermediate_size=96,
        num_hidden_layers=3,
        num_attention_heads=heads[0],
        num_key_value_heads=heads[1],
        head_dim=head_dim,
        rms_norm_eps=1e-5,
        rope_theta=10000.0,
        max_position_embeddings=512,
        tie_word_embeddings=True,
    )
    slow, fast = llama.LlamaForCausalLM(config), llama.LlamaForCausalLM(config, OPS)
    for parameter in slow.parameters():
        torch.nn.init.normal_(parameter, std=parameter.shape[-1] ** -0.5)
    fast.load_state_dict(slow.state_dict())
    pack_linears(fast)
    caches = [PagedKVCache(config, num_gpu_blocks=40, block_size=8) for _ in range(2)]
    tables = torch.randperm(40).view(5, 8).tolist()
    for step in (
        [(0, 40), (0, 7), (0, 1)],
        [(40, 20), (7, 1), (1, 30), (0, 5)],
        [(60, 1), (8, 1), (31, 1), (5, 1), (0, 1)],
    ):
        spans = [Span(table, *span) for table, span in zip(tables, step, strict=False)]
        positions = torch.cat([torch.arange(start, start + new) for start, new in step])
        ids = torch.randint(50, (len(positions),))
        expected = slow(ids, positions, paged_batch(caches[0], spans))
        got = fast(ids, positions, paged_batch(caches[1], spans))
        torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(
            caches[1].device_memory, caches[0].device_memory, rtol=1e-4, atol=1e-4
        )


@quick
@given(DTYPES, SEEDS, st.integers(1, 70), st.integers(1, 4), st.sampled_from([4, 12, 64]))
def test_reshape_and_cache(
    dtype: torch.dtype, seed: int, tokens: int, heads: int, head_dim: int
) -> None:
    torch.manual_seed(seed)
    qkv = torch.randn(tokens, 3 * heads, head_dim, dtype=dtype)
    key, value = qkv[:, heads : 2 * heads], qkv[:, 2 * heads :]
    caches = torch.randn(2, 10, 8, heads, head_dim, dtype=dtype)
    slots = torch.randperm(80)[:tokens]
    expected = caches.clone()
    for cache, new in zip(expected, (key, value), strict=True):
        cache.flatten(0, 1)[slots] = new
    assert OPS.reshape_and_cache is not None
    OPS.reshape_and_cache(key, value, caches[0], caches[1], slots)
    assert torch.equal(caches, expected)


@quick
@given(
    DTYPES,
    SEEDS,
    st.one_of(st.integers(1, 30), st.integers(1, 250)),
    st.one_of(st.integers(1, 100), st.integers(190, 400)),
    st.one_of(st.integers(1, 100), st.sampled_from([16, 48, 96, 160])),
)
def test_packed_linear(dtype: torch.dtype, seed: int, tokens: int, inputs: int, outs: int) -> None:
    torch.manual_seed(seed)
    x = torch.randn(tokens, inputs, dtype=dtype)
    weight = torch.randn(outs, inputs, dtype=dtype) / inputs**0.5
    layer = PackedLinear(weight)
    assert_close(layer(x), x.float() @ weight.float().T, dtype)
    assert torch.equal(layer.unpacked().to(dtype), weight)


@quick
@given(DTYPES, SEEDS, st.integers(1, 250), st.integers(1, 400), st.integers(1, 5))
def test_own_product(dtype: torch.dtype, seed: int, tokens: int, inputs: int, strips: int) -> None:
    """Also on processors where `PackedLinear` takes oneDNN's."""
    torch.manual_seed(seed)
    x = torch.randn(tokens, inputs, dtype=dtype)
    weight = torch.randn(64 * strips, inputs, dtype=dtype) / inputs**0.5  # 16 or 64 at a time
    packed = torch.ops.llm_course.pack_weight(weight)
    exact = x.float() @ weight.float().T
    assert_close(torch.ops.llm_course.product(x, packed), exact, dtype)
    assert torch.equal(torch.ops.llm_course.unpack_weight(packed), weight)


def test_own_product_takes_over_where_it_is_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    cpus = [  # what PyTorch calls it, with instructions for bfloat16; own in float32, in bfloat16
        ("AVX2", False, True, True),
        ("AVX512", False, True, True),
        ("AVX512", True, True, False),
        ("DEFAULT", False, False, False),
    ]
    for capability, has_bfloat16, *own in cpus:
        monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda it=capability: it)
        monkeypatch.setattr(torch.cpu, "_is_avx512_supported", lambda it=capability: it == "AVX512")
        monkeypatch.setattr(
            torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda it=has_bfloat16: it
        )
        for name in ("_is_avx512_bf16_supported", "_is_amx_tile_supported"):
            monkeypatch.setattr(torch.cpu, name, lambda it=has_bfloat16: it)
        for dtype, expected in zip((torch.float32, torch.bfloat16), own, strict=True):
            assert has_own_product(torch.eye(64, 5, dtype=dtype)) == expected
            assert not has_own_product(torch.eye(9, 5, dtype=dtype))  # 9 outputs are no strip
        layer = PackedLinear(torch.eye(64, 5))
        assert layer.own == own[0]
        assert torch.equal(layer(torch.ones(2, 5)), torch.eye(64, 5).sum(1).expand(2, -1))


GROWTH = """
import torch
from utils.engine.kernels.packed_linear import NUM_KEPT_PRODUCTS, PackedLinear

def pages():
    return int(open("/proc/self/statm").read().split()[1])

layer = PackedLinear(torch.ones(8, 8))
layer(torch.ones(1, 8))
seen = [pages()]
for part in range(3):
    for rows in range(NUM_KEPT_PRODUCTS):
        layer(torch.ones(2 + rows + part * NUM_KEPT_PRODUCTS, 8))
    seen.append(pages())
print(*seen)
"""


def test_memory_does_not_grow_with_each_new_number_of_tokens() -> None:
    """What oneDNN compiles for each is kept, up to a limit."""
    done = subprocess.run(
        [sys.executable, "-c", GROWTH],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    begin, full, _, end = map(int, done.stdout.split())
    assert end - full < (full - begin) / 2


def test_nan_stays_visible() -> None:
    """A forward pass that went wrong must not look as if it had not."""
    x = torch.tensor([[1.0, torch.nan, 2.0, 3.0]])
    assert OPS.rms_norm(x, torch.ones(4), 1e-5).isnan().all()
    assert OPS.silu_and_mul(x)[0].tolist()[0] == pytest.approx(2 / (1 + 2.718281828**-1), rel=1e-6)
    assert OPS.silu_and_mul(x)[0, 1].isnan()
    metadata = AttentionMetadata([1], [1], [torch.tensor([0])], torch.tensor([0]))
    cache = torch.ones(1, 16, 1, 4)
    assert OPS.paged_attention is not None
    assert OPS.paged_attention(x[None], cache, cache, metadata, 1.0).isnan().all()


def test_wrong_input_is_refused() -> None:
    half = torch.ones(2, 4, dtype=torch.float16)
    with pytest.raises(RuntimeError, match="float32 or bfloat16, not"):
        OPS.silu_and_mul(half)
    cache = torch.ones(1, 16, 1, 160)
    metadata = AttentionMetadata([1], [1], [torch.tensor([0])], torch.tensor([0]))
    assert OPS.paged_attention is not None
    with pytest.raises(RuntimeError, match="at most 128 numbers, not 160"):
        OPS.paged_attention(torch.ones(1, 1, 160), cache, cache, metadata, 1.0)


def test_packing_lets_the_weights_go(model_path: Path) -> None:
    config = ModelConfig.from_pretrained(model_path)
    model = load_model(model_path, config)
    pack_linears(model)
    assert not any(isinstance(module, nn.Linear) for module in model.modules())
    # Left are the norms' weights, and the embedding, which is also the lm_head's weight.
    assert model.lm_head.weight is model.model.embed_tokens.weight
    size = config.hidden_size
    left = sum(parameter.numel() for parameter in model.parameters())
    assert left == size * (config.vocab_size + 2 * config.num_hidden_layers + 1)


@pytest.fixture(scope="module")
def fast_llm(model_path: Path) -> LLM:
    llm = LLM(model_path, ops=OPS)
    pack_linears(llm.model)
    llm.model.all_layers = fused_layers(llm.model)
    return llm


def test_same_tokens_as_hugging_face(
    fast_llm: LLM,
    prompts: list[list[int]],
    hf_model: PreTrainedModel,
    hf_greedy: Callable[[list[list[int]], int], list[list[int]]],
) -> None:
    chosen, max_tokens = prompts[::4], sized(16, 24)  # 16 are known: others ask for as many
    params = SamplingParams(temperature=0, max_tokens=max_tokens)
    outputs = fast_llm.generate(chosen, params, use_tqdm=False)
    got = [out.outputs[0].token_ids for out in outputs]
    assert_same_but_for_ties(hf_model, chosen, got, hf_greedy(chosen, max_tokens))


def test_same_tokens_in_chunks_with_shared_prefixes_and_preemption(
    fast_llm: LLM, prompts: list[list[int]], hf_model: PreTrainedModel
) -> None:
    """Small steps and few blocks: chunks, prefix hits, preempted requests, all in one batch."""
    shared = max(prompts, key=len)[:150]
    asked = [shared + prompt[:40] for prompt in prompts[:12]]
    params = SamplingParams(temperature=0, max_tokens=16, ignore_eos=True)
    expected = fast_llm.generate(asked, params, use_tqdm=False)
    usual = fast_llm.llm_engine
    try:
        fast_llm.llm_engine = fast_llm.new_engine(
            changes=dict(
                max_num_seqs=6, max_num_batched_tokens=64, num_gpu_blocks=36, max_model_len=512
            )
        )
        got = fast_llm.generate(asked, params, use_tqdm=False)
    finally:
        fast_llm.llm_engine = usual
    assert any(out.num_cached_tokens for out in got)
    ours, usual_ones = ([o.outputs[0].token_ids for o in some] for some in (got, expected))
    assert_same_but_for_ties(hf_model, asked, ours, usual_ones)


def test_without_a_compiler_there_is_a_warning(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("COURSE_CACHE", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    with pytest.warns(UserWarning, match="There is no C\\+\\+ compiler"):
        assert load_fast_ops.__wrapped__() is None


def test_what_a_broken_compiler_says_is_shown(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    compiler = tmp_path / "compiler"
    compiler.write_text("#!/bin/sh\necho unknown option -march >&2\nexit 1\n")
    compiler.chmod(0o755)
    monkeypatch.setenv("COURSE_CACHE", str(tmp_path))
    monkeypatch.setenv("CXX", str(compiler))
    with pytest.warns(UserWarning, match="unknown option -march"):
        assert load_fast_ops.__wrapped__() is None
    assert not list(tmp_path.glob("kernels-*"))  # nothing half-made is left


@pytest.mark.parametrize("damage", [b"", b"libr", b"libraRy\n", None])
def test_a_compiled_file_that_is_not_whole_is_made_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: bytes | None
) -> None:
    """A piece of a library, after a power cut say, would kill Python with a bus error."""
    compiler = tmp_path / "compiler"
    compiler.write_text('#!/bin/sh\nfor last; do :; done\necho library > "$last"\n')
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    monkeypatch.setenv("COURSE_CACHE", str(tmp_path))
    library = fast_ops._compiled()
    assert library.read_bytes() == b"library\n"
    if damage is None:
        library.unlink()
    else:
        library.write_bytes(damage)
    assert fast_ops._compiled() == library
    assert library.read_bytes() == b"library\n"


def test_a_model_that_the_kernels_cannot_run_is_refused_at_once(tmp_path: Path) -> None:
    torch.manual_seed(0)
    shape = dict(
        vocab_size=13,
        hidden_size=32,
        intermediate_size=8,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
    )
    tiny_llama(tmp_path, seed=1)
    with pytest.raises(ValueError, match=r"at most 128 numbers. This is torch.float16"):
        LLM(tmp_path, kernels="cpp", dtype="float16", device="cpu")
    LlamaForCausalLM(LlamaConfig(**shape, head_dim=256)).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=r"with heads of 256. Use kernels='torch'"):
        LLM(tmp_path, kernels="cpp", device="cpu")


# What does not fit is refused before any memory is touched

X, WEIGHT = torch.ones(2, 3, 4), torch.ones(4)  # [T, heads, D]
CACHE, SLOTS = torch.zeros(5, 2, 3, 4), torch.tensor([0, 9])  # 5 blocks of 2 tokens
ATTENTION = {
    "query": torch.ones(2, 6, 4),
    "key_cache": CACHE,
    "value_cache": CACHE,
    "query_start_loc": torch.tensor([0, 1, 2]),
    "seq_lens": torch.tensor([3, 4]),
    "block_table": torch.tensor([[0, 4], [1, 2]]),
}


def attend(**changes: Tensor) -> Tensor:
    return torch.ops.llm_course.paged_attention(*(ATTENTION | changes).values(), 1.0)


# Of a layer with 8 hidden numbers, 3 query and 3 key/value heads, and 5 in the MLP's middle
LAYER = [
    torch.ones(8),
    torch.ones(36, 8),
    torch.ones(8, 12),
    torch.ones(8),
    torch.ones(10, 8),
    torch.ones(8, 5),
]


KERNELS = torch.ops.llm_course
PACKED = KERNELS.pack_weight(torch.ones(64, 12)) if FAST else torch.ones(1)


def changed(index: int, *shape: int) -> list[Tensor]:
    return [*LAYER[:index], torch.ones(shape), *LAYER[index + 1 :]]


def all_layers(*weights: Tensor, cache: Tensor = CACHE[None]) -> Tensor:
    """Two requests of one token each, through one layer."""
    angles = torch.ones(2, 4)
    output: Tensor = torch.ops.llm_course.decoder_layers(
        torch.ones(2, 8),
        angles,
        angles,
        weights,
        cache.clone(),
        cache.clone(),
        SLOTS,
        *list(ATTENTION.values())[3:],
        1.0,
        1e-5,
    )
    return output


def test_what_fits_is_taken() -> None:
    assert all_layers(*LAYER).shape == (2, 8)
    assert attend().shape == (2, 6, 4)
    OPS.reshape_and_cache(X, X, CACHE.clone(), CACHE.clone(), SLOTS)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: OPS.rms_norm(X, torch.ones(3), 1e-5), r"weight has shape \[3\]; expected \[4\]"),
        (lambda: OPS.rms_norm(X, WEIGHT.double(), 1e-5), "weight is Double; expected Float"),
        (lambda: OPS.rms_norm(X[:0], WEIGHT, 1e-5), "expected numbers"),
        (lambda: OPS.rms_norm(torch.tensor(1.0), WEIGHT, 1e-5), "expected numbers in rows"),
        (lambda: OPS.rms_norm(torch._neg_view(X), WEIGHT, 1e-5), "x is negated"),
        (lambda: OPS.silu_and_mul(X), "gate_up has shape"),
        (lambda: OPS.silu_and_mul(torch.ones(2, 3)), "not two halves"),
        (lambda: OPS.apply_rotary(X, torch.ones(1, 4), torch.ones(2, 4)), "cos has shape"),
        (lambda: OPS.apply_rotary(X, torch.ones(2, 4), torch.ones(4, 2).T), "not contiguous"),
        (lambda: OPS.apply_rotary(X.transpose(0, 1), WEIGHT, WEIGHT), "must lie in a row"),
        (lambda: OPS.apply_rotary(X[..., :3].clone(), WEIGHT, WEIGHT), "not made of pairs"),
        (lambda: OPS.reshape_and_cache(X, X[:1], CACHE, CACHE, SLOTS), "value has shape"),
        (lambda: OPS.reshape_and_cache(X, X, CACHE[..., :3], CACHE, SLOTS), "key_cache has shape"),
        (lambda: OPS.reshape_and_cache(X, X, CACHE, CACHE, SLOTS + 1), "names slot 10; .* has 10"),
        (lambda: OPS.reshape_and_cache(X, X, CACHE, CACHE, SLOTS - 1), "names slot -1"),
        (lambda: OPS.reshape_and_cache(X, X, CACHE, CACHE, SLOTS.int()), "slot_mapping is Int"),
        (lambda: attend(query=torch.ones(2, 5, 4)), "cannot be shared by the 5"),
        (lambda: attend(query=torch.ones(2, 6, 4).bfloat16()), "key_cache is Float"),
        (lambda: attend(query=torch.ones(2, 6, 132)), "at most 128 numbers"),
        (lambda: attend(query=torch.ones(3, 6, 4)), "expected 0 to 3"),
        (lambda: attend(query_start_loc=torch.tensor([0, 3, 2])), "do not fit together"),
        (lambda: attend(seq_lens=torch.tensor([3, 5])), "request 1 .* do not fit together"),
        (lambda: attend(seq_lens=torch.tensor([0, 4])), "request 0 .* do not fit together"),
        (lambda: attend(seq_lens=torch.tensor([3, 2**63 - 1])), "request 1 .* do not fit together"),
        (lambda: attend(block_table=torch.tensor([[0, 5], [1, 2]])), "names block 5; .* has 5"),
        (lambda: attend(block_table=torch.tensor([[0, 4]])), "block_table has shape"),
        (lambda: attend(value_cache=CACHE[:4].clone()), "value_cache has shape"),
        (lambda: KERNELS.pack_weight(torch.ones(15, 3)), "15 rows; expected a multiple of"),
        (lambda: KERNELS.pack_weight(torch.ones(32)), r"weight has shape \[32\]"),
        (lambda: KERNELS.unpack_weight(torch.ones(2, 3, 5)), r"packed has shape \[2, 3, 5\]"),
        (lambda: KERNELS.product(X[0], PACKED), r"x has shape \[3, 4\]; expected \[-1, 12\]"),
        (lambda: KERNELS.product(torch.ones(1, 12).double(), PACKED), "x is Double"),
        (lambda: all_layers(*LAYER[:2], PACKED, *LAYER[3:]), "o_proj has 64 rows; expected 8"),
        (lambda: all_layers(), "0 weights for 1 layers"),
        (lambda: all_layers(*[torch.ones(0)] * 6), r"input_layernorm has shape \[0\]; .* \[8\]"),
        (lambda: all_layers(*changed(1, 22, 8)), "qkv_proj has 22 rows, which are no heads of 4"),
        (lambda: all_layers(*changed(1, 32, 7)), r"qkv_proj has shape \[32, 7\]"),
        (lambda: all_layers(*changed(2, 8, 4)), r"o_proj has shape \[8, 4\]; expected \[8, 12\]"),
        (lambda: all_layers(*changed(3, 7)), "post_attention_layernorm has shape"),
        (lambda: all_layers(*changed(4, 9, 8)), "gate_up_proj has 9 rows"),
        (lambda: all_layers(*changed(5, 8, 6)), r"down_proj has shape \[8, 6\]; expected \[8, 5\]"),
        (lambda: all_layers(*LAYER, cache=CACHE[None, :, :0].clone()), "names slot 0; .* has 0"),
        (lambda: all_layers(*LAYER, cache=CACHE[None, :, :, :0].clone()), "expected heads"),
    ],
)
def test_what_does_not_fit_is_refused(call: Callable[[], Tensor], words: str) -> None:
    with pytest.raises(RuntimeError, match=words):
        call()


def test_blocks_beyond_a_requests_end_are_not_asked_for() -> None:
    """Tables are padded to equal length: what stands there is nobody's block."""
    padded = torch.tensor([[0, 4, -1], [1, 2, 99]])
    assert torch.equal(attend(block_table=padded), attend())
