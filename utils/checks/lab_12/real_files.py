"""The learner's checkpoint, written to a file and read by gptqmodel: exercise 6."""

from __future__ import annotations

import functools
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

import utils
from utils.checks.kit.contracts.faults import Raised, attempt
from utils.checks.kit.patience import patience_of, watching
from utils.checks.kit.runner import Mismatch
from utils.hub import load_hf_model, load_tokenizer, resolve_model
from utils.model_folder import ModelError
from utils.quant import rtn

MakeCheckpoint = Callable[..., Any]
BITS, GROUP_SIZE, NUM_BLOCKS = 4, 64, 2
LINEARS = (
    "self_attn.q_proj",
    "self_attn.k_proj",
    "self_attn.v_proj",
    "self_attn.o_proj",
    "mlp.gate_proj",
    "mlp.up_proj",
    "mlp.down_proj",
)
PROMPT = "The capital of France is"
READER_SECONDS, PATIENCE = 900, 2000


@functools.cache
def real_state() -> dict[str, Tensor]:
    """All tensors of the bundled model, as they are stored."""
    state: dict[str, Tensor] = {}
    for file in sorted(resolve_model("bundled").glob("*.safetensors")):
        state.update(load_file(file))
    if not state:  # no fault of the learner's
        raise ModelError("The bundled model's file is gone. Restart the kernel: it is made again.")
    return state


def write_folder(folder: Path, entry: dict[str, Any], tensors: dict[str, Tensor]) -> int:
    """A checkpoint as other programs expect it; returns the bytes of its tensors' file."""
    source = resolve_model("bundled")
    for file in source.iterdir():
        if file.suffix in (".json", ".jinja"):
            shutil.copyfile(file, folder / file.name)
    config = json.loads((source / "config.json").read_text())
    blocks = "|".join(rf"{n}\." for n in range(NUM_BLOCKS))
    # gptqmodel's word for the layers that are not quantized.
    config["quantization_config"] = entry | {"dynamic": {rf"-:model\.layers\.(?!{blocks})": {}}}
    try:
        (folder / "config.json").write_text(json.dumps(config))
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    except Exception as error:
        raise Mismatch(
            "Your checkpoint cannot be written to a file.",
            got=f"{type(error).__name__}: {str(error).strip()[:300]}",
            look="JSON stores numbers and texts. safetensors stores contiguous tensors that share "
            "no memory.",
        ) from None
    return (folder / "model.safetensors").stat().st_size


def read_independently(folder: Path) -> dict[str, Tensor]:
    """What gptqmodel reads, in a process of its own: see `independent_reader.main`.

    Raises:
        Mismatch: it refuses the checkpoint.
    """
    out, root = folder / "read.safetensors", str(Path(utils.__file__).parents[1])
    reader = "utils.checks.lab_12.independent_reader"
    ended = subprocess.run(
        [sys.executable, "-m", reader, str(folder), str(out), PROMPT],
        env=os.environ | {"PYTHONPATH": root, "HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": ""},
        cwd=root,
        capture_output=True,
        text=True,
        timeout=READER_SECONDS,
        check=False,
    )
    if ended.returncode:
        last = (ended.stderr.strip().splitlines() or ["no message"])[-1]
        raise Mismatch(
            "gptqmodel cannot read your checkpoint.",
            got=last,
            look="Names, shapes and the entry: gptqmodel believes what they say.",
        )
    return load_file(out)


def two_dicts(made: Any) -> bool:
    """Whether something is an entry, and tensors by name."""
    return (
        isinstance(made, tuple | list)
        and len(made) == 2
        and all(isinstance(part, dict) for part in made)
    )


def read_by_gptqmodel(make_checkpoint: MakeCheckpoint) -> str:
    """Write two decoder blocks of the real model in 4 bits; compare weights, logits, a text."""
    layers = [f"model.layers.{n}.{part}" for n in range(NUM_BLOCKS) for part in LINEARS]
    state = real_state()
    given = f"the bundled model, {len(layers)} of its layers, {BITS} bits, groups of {GROUP_SIZE}"
    with watching(), patience_of(PATIENCE):
        made = attempt(make_checkpoint, dict(state), list(layers), BITS, GROUP_SIZE)
    if isinstance(made, Raised):
        raise Mismatch(made.says, input=given, look=made.look)
    if not two_dicts(made):
        raise Mismatch(
            "Of the real model, your function does not return an entry and the tensors.",
            input=given,
            look="It does for the small models. Does your code keep something from call to call?",
        )
    entry, tensors = made
    with tempfile.TemporaryDirectory() as name:
        size = write_folder(Path(name), entry, tensors)
        read = read_independently(Path(name))
    right = {layer: expected_weight(state[f"{layer}.weight"]) for layer in layers}
    for layer in layers:
        if layer not in read or not torch.equal(read[layer], right[layer]):
            raise Mismatch(
                "gptqmodel reads other weights from your file than were meant.",
                input=f"{given}; first in {layer}",
                expected="(code - zero) * scale in float16, to the bit",
                look="What is here that no small layer has: more rows?",
            )
    before, ours = (logits(weights) for weights in ({}, right))
    moved = float((ours - before).norm() / before.norm())
    apart = float((read["logits"] - ours).norm() / ours.norm())
    if apart > 0.01 * moved:
        raise Mismatch(
            "The packed layers are right, and gptqmodel's logits are others.",
            input=given,
            expected=f"a distance far below {moved:.2%}",
            got=f"{apart:.2%}",
            look="Are the other tensors those of `state`?",
        )
    text = load_tokenizer(resolve_model("bundled")).decode(read["text"].tolist())
    plain = sum(t.nbytes for t in state.values())
    return (
        f"gptqmodel has read your file, and got the weights of all {len(layers)} layers to the "
        f"bit. Rounding moved the model's logits by {moved:.1%}; gptqmodel's are those that were "
        f"meant (relative distance: {apart:.1g}). The file has {size / 1e6:.0f} MB in place of "
        f"{plain / 1e6:.0f}: only {NUM_BLOCKS} blocks of the model are packed. From your file it "
        f"writes: "
        f"{PROMPT + text!r}"
    )


def expected_weight(weight: Tensor) -> Tensor:
    """What a reader in float16 must find: the product rounded once."""
    q = rtn(weight.float(), bits=BITS, group_size=GROUP_SIZE, sym=False)
    group = q.g_idx.long()
    codes = q.q.float() - q.zeros.float()[:, group]
    return (codes * q.scales.half().float()[:, group]).half()


@torch.no_grad()
def logits(weights: dict[str, Tensor]) -> Tensor:
    """float32 [T, vocab] of the prompt, from transformers' model with these weights in it."""
    folder = resolve_model("bundled")
    model = load_hf_model(folder, dtype=torch.float32, device="cpu")
    for layer, weight in weights.items():
        linear = model.get_submodule(layer)
        assert isinstance(linear, nn.Linear)
        linear.weight.copy_(weight)
    logits: Tensor = model(torch.tensor([load_tokenizer(folder).encode(PROMPT)])).logits[0]
    return logits
