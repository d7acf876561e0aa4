"""The bundled model, from its GGUF file into a folder in Hugging Face format.

transformers reads the weights. What else is written does not depend on its version: some versions
take the tokenizer for a Llama's, whose texts then end with the wrong token.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

NAME = "SmolLM2-135M-Instruct"
SPECIAL = 3  # GGUF's type of tokens that stand for no text


def write_hf_folder(gguf: Path, work: Path) -> None:
    """Write configuration, weights in bfloat16, and tokenizer of a GGUF file into `work`."""
    from transformers import AutoModelForCausalLM, GenerationConfig, LlamaForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()
    loaded = AutoModelForCausalLM.from_pretrained(
        gguf.parent, dtype=torch.float32, gguf_file=gguf.name, trust_remote_code=False
    )
    config = loaded.config
    # The weights are plain tensors now. Left in place, this entry would make every later load
    # look for the GGUF file. Older versions write none.
    config.__dict__.pop("quantization_config", None)
    config.rms_norm_eps = 1e-5  # GGUF stores it as float32: 9.999999747378752e-06
    # A fresh model sheds the quantizer that the loaded one carries.
    model = LlamaForCausalLM(config)
    model.load_state_dict(loaded.state_dict())
    model = model.to(torch.bfloat16)
    model.generation_config = GenerationConfig(
        bos_token_id=config.bos_token_id,
        eos_token_id=config.eos_token_id,
        pad_token_id=config.pad_token_id,
    )
    model.save_pretrained(work)
    _speak_both_dialects(work / "config.json")
    _write_tokenizer(gguf, work)


def _speak_both_dialects(file: Path) -> None:
    """Write names that transformers 4 and 5 both understand.

    transformers 4 ignores `rope_parameters` silently, and then rotates with the wrong base.
    """
    config = json.loads(file.read_text())
    config["rope_theta"] = config["rope_parameters"]["rope_theta"]
    config["torch_dtype"] = config["dtype"]
    config["_model_name_or_path"] = NAME
    file.write_text(json.dumps(config, indent=2))


def _write_tokenizer(gguf: Path, work: Path) -> None:
    """A byte-level BPE tokenizer, its special tokens, and the chat template."""
    from gguf import GGUFReader
    from tokenizers import AddedToken, Tokenizer
    from tokenizers.decoders import ByteLevel as Decoder
    from tokenizers.models import BPE
    from tokenizers.pre_tokenizers import ByteLevel
    from tokenizers.processors import TemplateProcessing

    fields = GGUFReader(gguf).fields

    def field(name: str) -> Any:
        return fields[name].contents()

    tokens = field("tokenizer.ggml.tokens")
    merges = [tuple(merge.split(" ")) for merge in field("tokenizer.ggml.merges")]
    vocab = {token: number for number, token in enumerate(tokens)}
    tokenizer = Tokenizer(
        BPE(vocab=vocab, merges=merges, continuing_subword_prefix="", end_of_word_suffix="")
    )
    tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=False)
    tokenizer.decoder = Decoder()
    tokenizer.post_processor = TemplateProcessing(single="$A", pair="$A:0 $B:1", special_tokens=[])
    types = field("tokenizer.ggml.token_type")
    tokenizer.add_special_tokens(
        [
            AddedToken(token, normalized=False, special=True)
            for token, kind in zip(tokens, types, strict=True)
            if kind == SPECIAL
        ]
    )
    tokenizer.save(str(work / "tokenizer.json"))
    settings = {
        "bos_token": tokens[field("tokenizer.ggml.bos_token_id")],
        "eos_token": tokens[field("tokenizer.ggml.eos_token_id")],
        "model_max_length": field("llama.context_length"),
        "pad_token": tokens[field("tokenizer.ggml.padding_token_id")],
        "tokenizer_class": "PreTrainedTokenizerFast",  # known to transformers 4 as well
        "unk_token": tokens[field("tokenizer.ggml.unknown_token_id")],
    }
    (work / "tokenizer_config.json").write_text(json.dumps(settings, indent=2))
    (work / "chat_template.jinja").write_text(field("tokenizer.chat_template"))
