"""Four beginnings, continued by vLLM.  python basic.py MODEL"""

import sys

from vllm import LLM, SamplingParams

prompts = [
    "Hello, my name is",
    "The president of the United States is",
    "The capital of France is",
    "The future of AI is",
]
sampling_params = SamplingParams(temperature=0.8, top_p=0.95, max_tokens=16, seed=0)


def main() -> None:
    llm = LLM(model=sys.argv[1], max_model_len=1024, gpu_memory_utilization=0.4, enforce_eager=True)
    for output in llm.generate(prompts, sampling_params, use_tqdm=False):
        print(f"{output.prompt!r} -> {output.outputs[0].text!r}")


if __name__ == "__main__":  # vLLM's engine is a process of its own, and imports this file again
    main()
