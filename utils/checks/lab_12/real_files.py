"""Checkpoints of the real model, written to files and read by gptqmodel: exercises 6 and 7."""

from __future__ import annotations

import functools
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

import utils
from utils.checks.kit.contracts.faults import Raised, attempt
from utils.checks.kit.patience import patience_of, watching
from utils.checks.kit.runner import Mismatch
from utils.checks.lab_12.answers import make_checkpoint as right_checkpoint
from utils.checks.lab_12.independent_reader import READ, REFUSED
from utils.hub import load_hf_model, load_tokenizer, resolve_model
from utils.model_folder import ModelError
from utils.quant import rtn

Tensors = dict[str, Tensor]
Checkpoint = tuple[dict[str, Any], Tensors]  # the entry of config.json, and the tensors
BITS, GROUP_SIZE, NUM_BLOCKS = 4, 64, 2
LINEARS = (
    *(f"self_attn.{part}_proj" for part in "qkvo"),
    *("mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"),
)
PROMPT = "The capital of France is"
READER_SECONDS, PATIENCE, PROMPTLY = 900, 2000, 200  # ticks for the real model
DAMAGED = ("bits", "model.layers.0.self_attn.v_proj.scales", "model.layers.0.mlp.down_proj.g_idx")


@functools.cache
def real_state() -> Tensors:
    """All tensors of the bundled model, as they are stored."""
    state: Tensors = {}
    for file in sorted(resolve_model("bundled").glob("*.safetensors")):
        state.update(load_file(file))
    if not state:  # no fault of the learner's
        raise ModelError("The bundled model's file is gone. Restart the kernel: it is made again.")
    return state


def real_layers() -> list[str]:
    return [f"model.layers.{n}.{part}" for n in range(NUM_BLOCKS) for part in LINEARS]


def write_folder(folder: Path, entry: dict[str, Any], tensors: Tensors) -> int:
    """A checkpoint as other programs expect it; returns the bytes of its tensors' file.

    Raises:
        Mismatch: no file can hold it.
    """
    source = resolve_model("bundled")
    folder.mkdir(exist_ok=True)
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
            "Your checkpoint can't be written to a file.",
            got=f"{type(error).__name__}: {str(error).strip()[:300]}",
            look="JSON stores numbers and texts. safetensors stores contiguous tensors that share "
            "no memory.",
        ) from None
    return (folder / "model.safetensors").stat().st_size


def read_independently(folders: Sequence[Path]) -> list[Tensors | str]:
    """What gptqmodel reads in each folder, in a process of its own; or why it refuses to."""
    root, reader = str(Path(utils.__file__).parents[1]), "utils.checks.lab_12.independent_reader"
    quietly = {"HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": "", "TORCHDYNAMO_DISABLE": "1"}
    ended = subprocess.run(
        [sys.executable, "-m", reader, PROMPT, *map(str, folders)],
        env=os.environ | quietly | {"PYTHONPATH": root, "OMP_NUM_THREADS": "1"},
        cwd=root,
        capture_output=True,
        text=True,
        timeout=READER_SECONDS,
        check=False,
    )
    if ended.returncode:
        last = (ended.stderr.strip().splitlines() or ["no message"])[-1]
        raise RuntimeError(f"gptqmodel's process failed: {last}")
    return [
        load_file(folder / READ)
        if (folder / READ).exists()
        else (folder / REFUSED).read_text(encoding="utf-8")
        for folder in folders
    ]


def two_dicts(made: Any) -> bool:
    """Whether something is an entry, and tensors by name."""
    pair = isinstance(made, tuple | list) and len(made) == 2
    return pair and all(isinstance(part, dict) for part in made)


def read_by_gptqmodel(make_checkpoint: Callable[..., Any]) -> str:
    """Write two decoder blocks of the real model in 4 bits; compare weights, logits, a text."""
    layers, state = real_layers(), real_state()
    given = f"the bundled model, {len(layers)} of its layers, {BITS} bits, groups of {GROUP_SIZE}"
    with watching(), patience_of(PATIENCE):
        made = attempt(make_checkpoint, dict(state), list(layers), BITS, GROUP_SIZE)
    if isinstance(made, Raised):
        raise Mismatch(made.says, input=given, look=made.look)
    if not two_dicts(made):
        raise Mismatch(
            "For the real model, your function doesn't return an entry and the tensors.",
            input=given,
            look="For small models it does. Does your code keep something from call to call?",
        )
    with tempfile.TemporaryDirectory() as name:
        size = write_folder(Path(name), *made)
        [read] = read_independently([Path(name)])
    if isinstance(read, str):
        raise Mismatch(
            "gptqmodel refuses your checkpoint.",
            input=given,
            got=read,
            look="gptqmodel believes the entry. Do the names and shapes of your tensors fit it?",
        )
    right = {layer: expected_weight(state[f"{layer}.weight"]) for layer in layers}
    for layer in layers:
        if layer not in read or not torch.equal(read[layer], right[layer]):
            raise Mismatch(
                "gptqmodel reads other weights from your file than `rtn` has made.",
                input=f"{given}; first in {layer}",
                expected="(code - zero) * scale in float16, to the bit",
                look="Small layers are right. What does your code do differently with many rows?",
            )
    before, ours = (logits(weights) for weights in ({}, right))
    moved = float((ours - before).norm() / before.norm())
    apart = float((read["logits"] - ours).norm() / ours.norm())
    if apart > 0.01 * moved:
        raise Mismatch(
            "The packed layers are right, but gptqmodel's logits aren't.",
            input=given,
            expected=f"a distance far below {moved:.2%}",
            got=f"{apart:.2%}",
            look="Are the other tensors those of `state`?",
        )
    plain = sum(t.nbytes for t in state.values())
    return (
        f"gptqmodel has read your file, and got the weights of all {len(layers)} layers to the "
        f"bit. Rounding moved the model's logits by {moved:.1%}, and gptqmodel computes the logits "
        f"of your rounded weights (relative distance: {apart:.1g}). The file has {size / 1e6:.0f} "
        f"MB instead of {plain / 1e6:.0f}: only {NUM_BLOCKS} of the model's blocks are packed. "
        f"From your file it writes: {spoken(read)!r}"
    )


def expected_weight(weight: Tensor) -> Tensor:
    """What a reader in float16 must find: the product rounded once."""
    q = rtn(weight.float(), bits=BITS, group_size=GROUP_SIZE, sym=False)
    group = q.g_idx.long()
    codes = q.q.float() - q.zeros.float()[:, group]
    return (codes * q.scales.half().float()[:, group]).half()


@torch.no_grad()
def logits(weights: Tensors) -> Tensor:
    """float32 [T, vocab] of the prompt, from transformers' model with these weights in it."""
    folder = resolve_model("bundled")
    model = load_hf_model(folder, dtype=torch.float32, device="cpu")
    for layer, weight in weights.items():
        linear = model.get_submodule(layer)
        assert isinstance(linear, nn.Linear)
        linear.weight.copy_(weight)
    logits: Tensor = model(torch.tensor([load_tokenizer(folder).encode(PROMPT)])).logits[0]
    return logits


def spoken(read: Tensors | str) -> str:
    """What the model writes, or the words of a refusal."""
    if isinstance(read, str):
        return read
    text: str = load_tokenizer(resolve_model("bundled")).decode(read["text"].tolist())
    return PROMPT + text


# Exercise 7


def damaged_checkpoint() -> tuple[Checkpoint, Checkpoint]:
    """A sound checkpoint of the real model; and the same with three things damaged."""
    entry, tensors = right_checkpoint(real_state(), real_layers(), BITS, GROUP_SIZE)
    key, scales, g_idx = DAMAGED
    broken = {scales: -tensors[scales], g_idx: tensors[g_idx].flip(0)}
    return (entry, tensors), (entry | {key: 2 * BITS}, tensors | broken)


def replaced(damaged: Checkpoint, sound: Checkpoint, names: Sequence[str]) -> Checkpoint:
    """A damaged checkpoint with these keys and tensors from a sound one."""
    parts = [
        old | {name: new[name] for name in names if name in new}
        for old, new in zip(damaged, sound, strict=True)
    ]
    return parts[0], parts[1]


def repaired_by(find_damage: Callable[..., Any]) -> str:
    """Replace what the learner's function names; gptqmodel reads the file before and after."""
    sound, damaged = damaged_checkpoint()
    shapes = {layer: tuple(real_state()[f"{layer}.weight"].shape) for layer in real_layers()}
    with watching(), patience_of(PROMPTLY):
        named = attempt(find_damage, dict(damaged[0]), dict(shapes), dict(damaged[1]))
    given = f"a checkpoint of the bundled model, {len(shapes)} of its layers packed"
    if isinstance(named, Raised):
        raise Mismatch(named.says, input=given, look=named.look)
    if named != set(DAMAGED):
        raise Mismatch(
            "Your function is right for small layers, but not for this checkpoint.",
            input=given,
            expected=", ".join(DAMAGED),
            got=str(named)[:500],
            look="Here `in` is up to 1536. Does your code stop at a smaller size?",
        )
    with tempfile.TemporaryDirectory() as name:
        steps = [(), ("bits",), tuple(sorted(named))]
        folders = [Path(name, str(number)) for number in range(len(steps))]
        for folder, names in zip(folders, steps, strict=True):
            write_folder(folder, *replaced(damaged, sound, names))
        before, key_alone, after = map(spoken, read_independently(folders))
    told = ", ".join(f"`{name}`" for name in sorted(named))
    return (
        f"Your function has named all three things, and nothing else: {told}. As it was, "
        f"gptqmodel refused the checkpoint ({before.rstrip('.')}). With only the key replaced, the "
        f"model loads, but writes nonsense: {key_alone!r}. With all three replaced, it speaks "
        f"again: {after!r}"
    )
