"""Our LoRA against peft's: output, gradients, merged weights; and what it refuses."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM

from utils.pipeline.stages.finetune import quiet_peft
from utils.pipeline.studies.lora import LoRALinear, add_lora, lora_layers, merge_and_unload

TARGETS = ("q_proj", "v_proj", "down_proj")
IDS = torch.arange(12).reshape(2, 6)


def tiny(dtype: torch.dtype = torch.float32) -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=32,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=4,
        initializer_range=0.4,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=0,
    )
    return LlamaForCausalLM(config).to(dtype)


@pytest.fixture
def both() -> tuple[Any, nn.Module]:
    """peft's model and ours, with the same random A and B."""
    from peft import LoraConfig, get_peft_model

    quiet_peft()
    config = LoraConfig(
        task_type="CAUSAL_LM", r=4, lora_alpha=12, target_modules=list(TARGETS), lora_dropout=0.0
    )
    theirs = get_peft_model(tiny(), config)
    ours = tiny()
    add_lora(ours, TARGETS, r=4, lora_alpha=12)
    for name, layer in lora_layers(ours):
        peft_layer = theirs.get_submodule(f"base_model.model.{name}")
        for matrix in ("lora_A", "lora_B"):
            weight = getattr(peft_layer, matrix)["default"].weight
            nn.init.normal_(weight, std=0.3)
            getattr(layer, matrix).data.copy_(weight.data)
    return theirs, ours


def loss_of(model: Any) -> Tensor:
    return model(input_ids=IDS, labels=IDS, use_cache=False).loss


def pairs(theirs: Any, ours: nn.Module) -> Iterator[tuple[Tensor, Tensor]]:
    for name, layer in lora_layers(ours):
        peft_layer = theirs.get_submodule(f"base_model.model.{name}")
        yield peft_layer.lora_A["default"].weight, layer.lora_A
        yield peft_layer.lora_B["default"].weight, layer.lora_B


def test_output_and_gradients_equal_pefts(both: tuple[Any, nn.Module]) -> None:
    theirs, ours = both
    torch.testing.assert_close(ours(IDS).logits, theirs(IDS).logits)
    loss_of(theirs).backward()
    loss_of(ours).backward()
    for expected, got in pairs(theirs, ours):
        assert expected.grad is not None and got.grad is not None
        assert expected.grad.abs().max() > 1e-3
        torch.testing.assert_close(got.grad, expected.grad)


def test_only_the_inputs_gradient_shows_that_a_layer_swallows_it() -> None:
    torch.manual_seed(0)
    layer, x = LoRALinear(nn.Linear(8, 8, bias=False), r=2, lora_alpha=4), torch.randn(3, 8)
    nn.init.normal_(layer.lora_B)

    def gradients() -> list[Tensor]:
        inputs = x.clone().requires_grad_()
        of = [inputs, layer.lora_A, layer.lora_B]
        return list(torch.autograd.grad(layer(inputs).square().mean(), of))

    right = gradients()
    layer.base_layer.register_forward_hook(lambda module, inputs, output: output.detach())
    swallowed = gradients()
    torch.testing.assert_close(swallowed[1:], right[1:])
    assert (swallowed[0] - right[0]).norm() > 0.1 * right[0].norm()


def test_the_same_parameters_are_trained(both: tuple[Any, nn.Module]) -> None:
    trained = [sum(p.numel() for p in m.parameters() if p.requires_grad) for m in both]
    assert trained[0] == trained[1] > 0


def test_merged_weights_equal_pefts(both: tuple[Any, nn.Module]) -> None:
    theirs, ours = both
    with torch.no_grad():
        before = ours(IDS).logits
        merged = merge_and_unload(ours)
        expected = dict(theirs.merge_and_unload().named_parameters())
        for name, weight in merged.named_parameters():
            torch.testing.assert_close(weight, expected[name])
        torch.testing.assert_close(merged(IDS).logits, before, rtol=1e-3, atol=1e-4)
    assert not list(lora_layers(merged))


def test_starts_as_the_base_model_and_then_learns() -> None:
    model = tiny()
    before = model(IDS).logits
    trained = add_lora(model, TARGETS, r=2, lora_alpha=4)
    assert torch.equal(model(IDS).logits, before)
    frozen = {name: p.clone() for name, p in model.named_parameters() if not p.requires_grad}
    optimizer = torch.optim.AdamW(trained, lr=0.05)
    losses = []
    for _ in range(5):
        loss = loss_of(model)
        losses.append(loss.item())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert losses[-1] < losses[0]
    for name, parameter in model.named_parameters():
        if name in frozen:
            assert parameter.grad is None and torch.equal(parameter, frozen[name])


def test_initial_values_are_distributed_as_pefts() -> None:
    from peft import LoraConfig
    from peft.tuners.lora import Linear

    torch.manual_seed(3)
    ours = LoRALinear(nn.Linear(64, 32), r=8, lora_alpha=8)
    torch.manual_seed(3)
    base = nn.Linear(64, 32)
    theirs = Linear(base, "default", LoraConfig(lora_alpha=8), r=8, lora_alpha=8)
    theirs.reset_lora_parameters("default", True)
    mine, pefts = ours.lora_A.detach(), theirs.lora_A["default"].weight.detach()
    assert mine.abs().max().item() == pytest.approx(pefts.abs().max().item(), rel=0.05)
    assert mine.std().item() == pytest.approx(pefts.std().item(), rel=0.1)
    assert not ours.lora_B.any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_merge_and_unmerge(dtype: torch.dtype) -> None:
    layer = LoRALinear(nn.Linear(48, 32).to(dtype), r=4, lora_alpha=8)
    nn.init.normal_(layer.lora_B, std=0.1)
    x = torch.randn(5, 48).to(dtype)
    before, weight = layer(x), layer.base_layer.weight.clone()
    exact = weight.float() + layer.delta_weight()
    layer.merge()
    assert layer.base_layer.weight.dtype == dtype
    assert torch.equal(layer.base_layer.weight, exact.to(dtype))  # rounded once, at the end
    tolerance = {torch.float32: 1e-5, torch.bfloat16: 3e-2}[dtype]
    torch.testing.assert_close(layer(x), before, rtol=tolerance, atol=tolerance)
    layer.unmerge()
    torch.testing.assert_close(layer.base_layer.weight, weight, rtol=tolerance, atol=tolerance)


def test_the_base_layer_is_frozen() -> None:
    layer = LoRALinear(nn.Linear(8, 8), r=2, lora_alpha=4)
    assert {n for n, p in layer.named_parameters() if p.requires_grad} == {"lora_A", "lora_B"}


def test_merging_twice_is_refused() -> None:
    layer = LoRALinear(nn.Linear(8, 8), r=2, lora_alpha=4)
    with pytest.raises(RuntimeError, match="not merged"):
        layer.unmerge()
    layer.merge()
    with pytest.raises(RuntimeError, match="merged already"):
        layer.merge()


def test_a_damaged_adapter_is_not_merged() -> None:
    layer = LoRALinear(nn.Linear(8, 8), r=2, lora_alpha=4)
    before = layer.base_layer.weight.clone()
    layer.lora_B.data[0, 0] = float("nan")
    with pytest.raises(RuntimeError, match="NaN or infinity"):
        layer.merge()
    assert torch.equal(layer.base_layer.weight, before) and not layer.merged


def test_a_quantized_base_trains_but_does_not_merge() -> None:
    import bitsandbytes as bnb

    base = bnb.nn.Linear4bit(64, 32, bias=False, compute_dtype=torch.bfloat16, quant_type="nf4")
    base = base.to("cpu")
    base.support_avx512bf16_for_cpu = False
    layer = LoRALinear(base, r=4, lora_alpha=8)
    layer(torch.randn(3, 64, dtype=torch.bfloat16)).float().square().sum().backward()
    assert layer.lora_B.grad is not None and layer.lora_B.grad.any()
    with pytest.raises(RuntimeError, match="quantized"):
        layer.merge()


def test_dropout_acts_only_while_training() -> None:
    layer = LoRALinear(nn.Linear(64, 8), r=4, lora_alpha=4, lora_dropout=0.5)
    nn.init.normal_(layer.lora_B)
    x = torch.randn(3, 64)
    assert not torch.equal(layer.train()(x), layer(x))
    layer.eval()
    assert torch.equal(layer(x), layer(x))
    torch.testing.assert_close(layer(x), layer.base_layer(x) + x @ layer.delta_weight().T)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"r": 0}, "r must be at least 1, got 0"),
        ({"lora_dropout": 1.0}, "lora_dropout must lie in"),
        ({"target_modules": ("q_proj", "query")}, "No linear layer of the model is named query"),
    ],
)
def test_bad_arguments(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        add_lora(tiny(), **arguments)


def test_peft_is_not_stopped_by_another_packages_version(monkeypatch: pytest.MonkeyPatch) -> None:
    """Colab has a torchao that peft finds too old, and peft asks for it at every layer."""
    from peft import LoraConfig, inject_adapter_in_model
    from peft.tuners.lora import awq, gptq, torchao

    for module in (awq, gptq):
        monkeypatch.setattr(module, "is_gptqmodel_available", lambda: False)

    def too_old() -> bool:
        raise ImportError("Found an incompatible version of torchao.")

    monkeypatch.setattr(torchao, "is_torchao_available", too_old)
    config = LoraConfig(r=4, target_modules=list(TARGETS))
    with pytest.raises(ImportError, match="torchao"):
        inject_adapter_in_model(config, tiny())
    quiet_peft()
    inject_adapter_in_model(config, tiny())
