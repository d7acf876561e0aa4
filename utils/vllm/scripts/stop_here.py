"""Two prompts for vLLM, and a stop before they are answered.  python stop_here.py MODEL"""

import sys

from vllm import LLM, SamplingParams

prompts = [
    "The capital of France is",
    "The meaning of life is a question that people have asked for a very long time, and",
]
sampling_params = SamplingParams(temperature=0, max_tokens=3)


def main() -> None:
    llm = LLM(
        model=sys.argv[1],
        dtype="float32",
        max_model_len=1024,
        block_size=32,
        max_num_batched_tokens=16,
        gpu_memory_utilization=0.4,
        enforce_eager=True,
        async_scheduling=False,
    )
    breakpoint()
    for output in llm.generate(prompts, sampling_params, use_tqdm=False):
        print(f"{output.prompt!r} -> {output.outputs[0].text!r}")


if __name__ == "__main__":  # by default vLLM's engine is another process, which imports this file
    main()
