"""A mixture of experts is Hugging Face's Mixtral; spread over ranks, it is the same."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from transformers import MixtralConfig, MixtralForCausalLM

from tests.engine.distributed.test_layouts import answers
from utils.engine import LLM, SamplingParams
from utils.engine.config.parallel import MoEConfig

MOE = MoEConfig(num_experts=4, num_experts_per_tok=2, noise=0.5, seed=2)
SETTINGS = dict(
    block_size=4,
    num_gpu_blocks_override=40,
    max_model_len=64,
    max_num_seqs=4,
    max_num_batched_tokens=16,
    upcycle=MOE,
)
IDS = [5, 6, 7, 8, 9, 10, 11, 12, 3, 4, 1, 0]


@pytest.fixture(scope="module")
def spread(folder: Path) -> Iterator[LLM]:
    llm = LLM(folder, data_parallel_size=2, enable_expert_parallel=True, **SETTINGS)
    yield llm
    llm.shutdown()


def mixtral(llm: LLM) -> MixtralForCausalLM:
    """Hugging Face's model with our weights."""
    c = llm.model_config
    config = MixtralConfig(
        vocab_size=c.vocab_size,
        hidden_size=c.hidden_size,
        intermediate_size=c.intermediate_size,
        num_hidden_layers=c.num_hidden_layers,
        num_attention_heads=c.num_attention_heads,
        num_key_value_heads=c.num_key_value_heads,
        rms_norm_eps=c.rms_norm_eps,
        num_local_experts=MOE.num_experts,
        num_experts_per_tok=MOE.num_experts_per_tok,
        rope_parameters={"rope_type": "default", "rope_theta": c.rope_theta},
        sliding_window=None,
    )
    hf = MixtralForCausalLM(config).eval()
    state = hf.state_dict()
    ours = dict(llm.model.named_parameters())
    ours.setdefault("lm_head.weight", ours["model.embed_tokens.weight"])
    kv, q = c.num_key_value_heads * c.head_dim, c.num_attention_heads * c.head_dim
    unused = set(state)

    def put(name, value):
        unused.remove(name)
        state[name].copy_(value)

    for name in ("model.embed_tokens.weight", "model.norm.weight", "lm_head.weight"):
        put(name, ours[name])
    for i in range(c.num_hidden_layers):
        at = f"model.layers.{i}."
        for norm in ("input_layernorm", "post_attention_layernorm"):
            put(f"{at}{norm}.weight", ours[f"{at}{norm}.weight"])
        parts = ours[f"{at}self_attn.qkv_proj.weight"].split([q, kv, kv])
        for letter, part in zip("qkv", parts, strict=True):
            put(f"{at}self_attn.{letter}_proj.weight", part)
        put(f"{at}self_attn.o_proj.weight", ours[f"{at}self_attn.o_proj.weight"])
        put(f"{at}mlp.gate.weight", ours[f"{at}mlp.router.weight"])
        for theirs, mine in (("gate_up_proj", "gate_up_proj"), ("down_proj", "down_proj")):
            experts = [ours[f"{at}mlp.experts.{e}.{mine}.weight"] for e in range(MOE.num_experts)]
            put(f"{at}mlp.experts.{theirs}", torch.stack(experts))
    assert not unused
    return hf


def test_one_process_computes_what_hugging_faces_mixtral_does(alone):
    with torch.inference_mode():
        want = mixtral(alone)(torch.tensor([IDS])).logits[0]
        got = alone.model.compute_logits(alone.model(torch.tensor(IDS), torch.arange(len(IDS))))
    torch.testing.assert_close(got, want, atol=1e-4, rtol=1e-4)


def test_spread_experts_compute_what_they_do_together(alone, spread):
    """Each rank has its own tokens, and half of the experts that they need."""
    with torch.inference_mode():
        want = alone.model.compute_logits(alone.model(torch.tensor(IDS), torch.arange(len(IDS))))
    for got in spread.collective_rpc("logits", args=[IDS]):
        torch.testing.assert_close(got, want, atol=1e-4, rtol=1e-4)


def test_answers_and_bytes_and_dummy_batches(alone, spread):
    rpc = spread.llm_engine.workers.collective_rpc
    sent, routed = rpc("sent_bytes"), rpc("num_routed")
    assert answers(spread) == answers(alone)
    assert spread.llm_engine.num_requests == [3, 2]
    for rank in (0, 1):
        news = rpc("num_routed")[rank] - routed[rank]  # [layers, experts]
        other = news[:, 2:] if rank == 0 else news[:, :2]
        theirs = rpc("num_routed")[1 - rank] - routed[1 - rank]
        for_me = theirs[:, :2] if rank == 0 else theirs[:, 2:]
        rows = int(other.sum() + for_me.sum())  # what I send to be computed, and send back
        counted = rpc("sent_bytes")[rank] - sent[rank]
        assert counted["all_to_all"] == rows * spread.model_config.hidden_size * 4
        # As many as asked for: each token goes through two experts.
        assert (news.sum(1) == news.sum(1)[0]).all()
    # One answer is 7 tokens longer than the other: so long its rank needs the other's experts.
    lengths = [SamplingParams(max_tokens=n, temperature=0, ignore_eos=True) for n in (2, 9)]
    dummies = rpc("dummy_batches")
    spread.generate([[4], [5]], lengths, use_tqdm=False)
    assert [now - then for now, then in zip(rpc("dummy_batches"), dummies, strict=True)] == [7, 0]


def test_tokens_may_all_go_to_the_other_rank(folder):
    """A router that always takes the first two experts: the second rank computes nothing."""
    from utils.processes.ranks import run_ranks

    def run(path):
        from utils.engine.distributed.moe import upcycle
        from utils.engine.distributed.parallel_state import GroupCoordinator
        from utils.engine.models.weights import load_model

        config = LLM(path, max_model_len=64).model_config
        models = [
            upcycle(load_model(path, config), MOE, group) for group in (GroupCoordinator(), None)
        ]
        for model in models:
            for layer in model.model.layers:
                # Positive inputs are not sure, so the router looks at nothing but a constant.
                layer.mlp.router.forward = lambda x: torch.tensor([2.0, 1.0, 0.0, 0.0]).expand(
                    len(x), 4
                )
        outputs = []
        with torch.inference_mode():
            for model in models:
                outputs.append(model(torch.tensor(IDS), torch.arange(len(IDS))))
        return outputs, models[0].model.layers[0].mlp.num_routed.tolist()

    for (spread_out, together), routed in run_ranks(run, 2, folder):
        torch.testing.assert_close(spread_out, together, atol=1e-4, rtol=1e-4)
        assert routed == [len(IDS), len(IDS), 0, 0]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (dict(data_parallel_size=3, enable_expert_parallel=True), "4 experts cannot be divided"),
        (dict(enable_expert_parallel=True), "needs experts to spread"),
        (dict(tensor_parallel_size=2), "must be 1 with it"),
        (dict(kernels="cpp"), "kernels='torch'"),
    ],
)
def test_what_cannot_be_is_refused(folder, options, message):
    with pytest.raises(ValueError, match=message):
        LLM(folder, **SETTINGS, **options)


def test_more_experts_per_token_than_experts_are_refused():
    with pytest.raises(ValueError, match="num_experts_per_tok=5 is out of range"):
        MoEConfig(num_experts=4, num_experts_per_tok=5)
