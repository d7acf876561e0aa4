"""gptqmodel loads a checkpoint, and says what it has read. A process of its own, because gptqmodel
changes transformers where it is imported.

    python -m utils.checks.lab_12.independent_reader FOLDER OUT.safetensors PROMPT
"""

from __future__ import annotations

import sys

import torch
from safetensors.torch import save_file
from torch import nn

NUM_TOKENS = 8


@torch.no_grad()
def main(folder: str, out: str, prompt: str) -> None:
    """Store the weight [out, in], float16, of each layer that gptqmodel found packed; "logits",
    float32 [T, vocab], and "text", the token ids that come after the prompt."""
    from gptqmodel import BACKEND, GPTQModel

    loaded = GPTQModel.load(folder, backend=BACKEND.TORCH, device="cpu", dtype=torch.float16)
    model, found = loaded.model, {}
    for name, module in list(model.named_modules()):
        if hasattr(module, "dequantize_weight"):
            found[name] = module.dequantize_weight().T.contiguous()
            # As a plain layer: gptqmodel's own would unpack in each call, which CPUs do slowly.
            num_out, num_in = found[name].shape
            linear = nn.Linear(num_in, num_out, bias=False)
            linear.weight.copy_(found[name])
            model.set_submodule(name, linear)
    model.float()
    ids = torch.tensor([loaded.tokenizer.encode(prompt)])
    found["logits"] = model(ids).logits[0]
    text = model.generate(
        input_ids=ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=NUM_TOKENS,
        do_sample=False,
    )
    found["text"] = text[0, ids.shape[1] :].clone()
    save_file(found, out)


if __name__ == "__main__":
    main(*sys.argv[1:])
