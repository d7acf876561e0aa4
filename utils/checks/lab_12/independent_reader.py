"""gptqmodel loads checkpoints, and says what it has read. A process of its own, because gptqmodel
changes transformers where it is imported.

    python -m utils.checks.lab_12.independent_reader PROMPT FOLDER...
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

NUM_TOKENS = 8
READ, REFUSED = "read.safetensors", "refused.txt"  # what is left in each folder


@torch.no_grad()
def read(folder: str, prompt: str) -> dict[str, Tensor]:
    """The weight [out, in], float16, of each layer that gptqmodel found packed; "logits", float32
    [T, vocab], and "text", the token ids that come after the prompt."""
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
    return found | {"text": text[0, ids.shape[1] :].clone()}


if __name__ == "__main__":
    for path in sys.argv[2:]:
        try:
            save_file(read(path, sys.argv[1]), Path(path, READ))
        except Exception as error:
            words = f"{type(error).__name__}: {str(error).strip()}"
            Path(path, REFUSED).write_text(words.splitlines()[0], encoding="utf-8")
