"""Texts as vectors: the model's last hidden states, pooled.  python embed.py MODEL"""

import json
import sys

from vllm import LLM

texts = ["The cat sleeps on the sofa.", "A kitten naps on the couch.", "Interest rates rose."]


def main() -> None:
    llm = LLM(
        model=sys.argv[1],
        runner="pooling",
        dtype="float32",
        max_model_len=1024,
        gpu_memory_utilization=0.4,
        enforce_eager=True,
    )
    outputs = llm.embed(texts, use_tqdm=False)
    print(json.dumps([output.outputs.embedding for output in outputs]))


if __name__ == "__main__":
    main()
