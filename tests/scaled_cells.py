"""What the lessons' cells run at the small size: in each notebook, texts and what replaces them.

A reader never sees these: a lesson's cells show the sizes that its saved outputs were made with,
and `make test-full` runs them so. Each text must stand exactly once in the notebook, and a smaller
size may not change an output that is compared: then the run itself says so.
"""

from __future__ import annotations

# For a lesson that counts tokens and doesn't read them: a model of the real one's first layers.
FIRST_LAYERS = """
from pathlib import Path
from tempfile import TemporaryDirectory

from utils.hub import resolve_model
from utils.pipeline.studies.first_layers import save_first_layers

_folder = TemporaryDirectory()
first_layers = save_first_layers(resolve_model(), Path(_folder.name), 4)
"""

EDITS: dict[str, tuple[tuple[str, str], ...]] = {
    "notebooks/02_kv_cache.ipynb": (
        ("mine = generate(ids[0], max_tokens=24)", "mine = generate(ids[0], max_tokens=8)"),
        (
            "theirs = reference.generate(ids, max_new_tokens=24",
            "theirs = reference.generate(ids, max_new_tokens=8",
        ),
        (
            "uncached = reference.generate(ids, max_new_tokens=24",
            "uncached = reference.generate(ids, max_new_tokens=8",
        ),
        ("answers = [16, 32, 64, 96]", "answers = [4, 8]"),
    ),
    "notebooks/05_prefix_caching.ipynb": (
        ("rounds=5", "rounds=1"),
        ("own, shared_lengths = 32, [0, 512, 1024, 1536]", "own, shared_lengths = 32, [0, 256]"),
        (
            "for _ in range(3):\n        llm.reset_prefix_cache()",
            "for _ in range(1):\n        llm.reset_prefix_cache()",
        ),
    ),
    "notebooks/06_continuous_batching.ipynb": (
        ("sizes = [1, 2, 4, 8, 16, 32, 64, 128, 256, 448]", "sizes = [1, 4, 32, 448]"),
        ("context_lens = [16, 32, 64, 128, 256, 512]", "context_lens = [16, 64, 256]"),
    ),
    "notebooks/07_speculative_decoding.ipynb": (
        ("fastest_passes(llm, sizes)", "fastest_passes(llm, sizes, 1)"),
        (
            "known_answers(llm, drafter, prompts, max_tokens=48)",
            "known_answers(llm, drafter, prompts[:4], max_tokens=16)",
        ),
        ("for _ in range(200)]", "for _ in range(20)]"),
        ("ks, chats = (1, 2, 3, 4, 6, 8)", "ks, chats = (1, 4)"),
        ("batch_sizes, gain, parts = [1, 4, 16]", "batch_sizes, gain, parts = [1, 4]"),
        ("max_tokens=48), {}", "max_tokens=16), {}"),
    ),
    "notebooks/07b_medusa_eagle_mtp.ipynb": (
        ('two_tasks(llm)["chat"]', 'two_tasks(llm)["chat"][:4]'),
        ("length = 48", "length = 20"),
        ("repeats=21", "repeats=1"),
        (
            "race(llm, prompts[:6], methods, max_tokens=32)",
            "race(llm, prompts[:1], methods, max_tokens=16)",
        ),
    ),
    # The answers that are waited for are shorter; in the crowd, whose counts are compared, they
    # keep their 32 tokens, and beginnings are compared.
    "notebooks/08_the_engine.ipynb": (
        (
            "device, max_tokens = llm.config.device, 32",
            "device, max_tokens = llm.config.device, 12",
        ),
        (
            "outputs = llm.generate(prompts, greedy, use_tqdm=False, priority=priorities)",
            "all_32 = SamplingParams(temperature=0, max_tokens=32)\n"
            "    outputs = llm.generate(prompts, all_32, use_tqdm=False, priority=priorities)",
        ),
        ("assert len(answer) == len(expected)", "assert len(answer) >= len(expected)"),
        (
            "broken = llm.generate(prompts, greedy, use_tqdm=False, priority=priorities)",
            "broken = llm.generate(prompts, all_32, use_tqdm=False, priority=priorities)",
        ),
    ),
    "notebooks/08b_async_scheduling.ipynb": (("ROUNDS, MODES = 5,", "ROUNDS, MODES = 2,"),),
    # In bfloat16, which is slow on most CPUs, few questions are asked. vLLM in one format: each is
    # a process of its own.
    "notebooks/08c_two_engines_one_model.ipynb": (
        ('load_tokenizer("bundled"), 24', 'load_tokenizer("bundled"), 5'),
        ("chats(tokenizer, 6)", "chats(tokenizer, 2)"),
        ('["float32", *({"bfloat16"} & {half_dtype()})]', '["float32"]'),
        ("in PUZZLES], 20", "in PUZZLES], 2"),
    ),
    "notebooks/08d_making_it_fast.ipynb": (
        ("sizes, parts = (1, 8, 32), {}", "sizes, parts = (1, 8), {}"),
        ('num_steps=12)["plain"]', 'num_steps=3)["plain"]'),
        (
            "all_parts = measure_step_parts(engines, num_steps=12)",
            "all_parts = measure_step_parts(engines, num_steps=3)",
        ),
    ),
    # GPTQ and AWQ of 2 of the 30 layers.
    "notebooks/09b_gptq_and_awq.ipynb": (
        ("bits, num_tokens=2048", "bits, num_tokens=128"),
        ("method, num_tokens=2048", "method, num_tokens=128"),
        ("long = 4096", "long = 256"),
        ("2048, 512)  # to calibrate", "256, 128)  # to calibrate"),
        ("(tokenizer, novel, 2048, 512)", "(tokenizer, novel, 256, 128)"),
        (
            '{"stats": calibrate(model, windows, sequential=sequential)}',
            '{"stats": [one for one, _ in zip(calibrate(model, windows), (0, 1))]}',
        ),
        (", 4096, 512)", ", 512, 512)"),
        ("tokens = [128, 512, 2048, 4096]", "tokens = [128, 512]"),
    ),
    "notebooks/10_qlora.ipynb": (
        ("max_tokens=100", "max_tokens=40"),
        ("temperature=0, max_tokens=120, struct", "temperature=0, max_tokens=16, struct"),
        ("for e in train[:3]:", "for e in train[:1]:"),
        ("lora_alpha, steps=12", "lora_alpha, steps=4"),
        ('unseen = generate("held_out", 8)', 'unseen = generate("held_out", 2)'),
        ("for r in (1, 16, 64)}", "for r in (1, 16)}"),
    ),
    "notebooks/11_merge.ipynb": (
        ("for _ in range(10):  # in turn", "for _ in range(3):  # in turn"),
        ("questions = held_out[:120]", "questions = held_out[:4]"),
        ("max_tokens=120", "max_tokens=40"),
    ),
    "notebooks/12_gptq_awq.ipynb": (
        ('"max_tokens": 512', '"max_tokens": 128'),
        ('stages["data"], 8)', 'stages["data"], 2)'),
        ("tokens, group = [256, 512, 1024, 4096]", "tokens, group = [256, 1024]"),
    ),
    "notebooks/12b_formats_of_today.ipynb": (
        ("max_tokens=4096, tokenizer", "max_tokens=256, tokenizer"),
        ('[load_text("emma")], 2048, 512)', '[load_text("emma")], 1024, 512)'),
    ),
    "notebooks/13_vllm_prefix_caching.ipynb": (
        ("default_rng(0), 5", "default_rng(0), 2"),
        ("[new_tokens(64) for _ in range(15)]", "[new_tokens(64) for _ in range(3)]"),
        ('answer = {"max_tokens": 110}', 'answer = {"max_tokens": 24}'),
    ),
    "notebooks/13b_structured_output.ipynb": (
        ('generate("held_out", 16)', 'generate("held_out", 2)'),
        ('free = {"max_tokens": 160}', 'free = {"max_tokens": 40}'),
    ),
    # Short closed loops, and 3 seconds at two rates: too few to find a knee, enough to run each
    # line.
    "notebooks/14_serving.ipynb": (
        ("L, closed = 16, {}", "L, closed = 6, {}"),
        ("for users in (1, 3, 6, 9):", "for users in (1, 4, 9):"),
        ("bodies(3 + 5 * users, L)", "bodies(2 + 2 * users, L)"),
        ("bodies(10, 8), poisson_arrivals(rate, 10)", "bodies(4, 8), poisson_arrivals(rate, 4)"),
        ("poisson_arrivals(knee, 3000)", "poisson_arrivals(knee, 200)"),
        (
            "seconds, seeds, shares = 60, 20, (0.4, 0.5, 0.6, 0.8)",
            "seconds, seeds, shares = 3, 3, (0.6, 0.8)",
        ),
        ("bodies(10 + 2 * users)", "bodies(2 + users, 4)"),
    ),
    "notebooks/14b_which_card_what_it_costs.ipynb": (
        ("batches, per_in, per_out = [1, 4, 8, 32]", "batches, per_in, per_out = [1, 4, 8, 9]"),
        ("num_out=16)", "num_out=3)"),
        ("new_prompts(8, 512), 32, **", "new_prompts(2, 512), 3, **"),
        ("prompts[:n], 48,", "prompts[:n], 4,"),
        ("gained = 47", "gained = 3"),
        ("new_prompts(n, 64))", "new_prompts(n, 16), num_out=5, rounds=1)"),
    ),
    "notebooks/15_distributed.ipynb": (
        ("torch.randint(100, 40_000, (8, 64)", "torch.randint(100, 40_000, (8, 16)"),
        ("[timeline(m) for _ in range(3)]", "[timeline(m) for _ in range(1)]"),
        ("[timeline(4) for _ in range(3)]", "[timeline(4) for _ in range(1)]"),
        (
            "for _ in range(3):\n    for name, n in taken",
            "for _ in range(1):\n    for name, n in taken",
        ),
        ("for n in (1, 16) for name in layouts", "for n in (1, 4) for name in layouts"),
        ("for n in (1, 16):\n    alone_ms", "for n in (1, 4):\n    alone_ms"),
        ("chat_ids, 16, tensor_parallel_size=3", "chat_ids, 4, tensor_parallel_size=3"),
        ("chat_ids, 16, data_parallel_size=2", "chat_ids, 4, data_parallel_size=2"),
        ("sum(a == b for a, b in zip(run", "sum(a == b[:4] for a, b in zip(run"),
        (
            "(dp2.chat(chats, greedy, use_tqdm=False)) == answers",
            "(dp2.chat(chats, brief, use_tqdm=False)) == [ids[:4] for ids in answers]",
        ),
        ("dp2 = LLM(", "brief = SamplingParams(temperature=0, max_tokens=4)\ndp2 = LLM("),
        ("token_ids(moe.chat(chats, greedy", "token_ids(moe.chat(chats, brief"),
        ("token_ids(ep2.chat(chats, greedy", "token_ids(ep2.chat(chats, brief"),
        # Of the two layouts one writes all tokens: its steps are counted, and compared.
        (
            "assert token_ids(llm.chat(chats, greedy, use_tqdm=False)) == answers",
            "params, end = (brief, 4) if llm is tp3 else (greedy, 16)\n"
            "        written = token_ids(llm.chat(chats, params, use_tqdm=False))\n"
            "        assert written == [ids[:end] for ids in answers]",
        ),
    ),
    "notebooks/16_disaggregation_and_kv_sharing.ipynb": (
        ("num_tokens=36", "num_tokens=16"),
        (
            "stream_beside(llm.new_engine(), new_tokens(800))",
            "stream_beside(llm.new_engine(), new_tokens(200))",
        ),
        ("(changes=small_steps), new_tokens(800))", "(changes=small_steps), new_tokens(200))"),
        # In bfloat16, which is slow on most CPUs, one customer asks.
        ("ask(customers, other, model=small)", "ask(customers[:1], other, model=small)"),
        ("prefix, rest = 640, 16", "prefix, rest = 320, 16"),
        ("new_tokens(480)", "new_tokens(160)"),
        ('{"chat": (20, 80), "document": (600, 40)}', '{"chat": (20, 8), "document": (120, 4)}'),
        ("count=5, seconds=12", "count=2, seconds=1"),
        # One prompt of six.
        (
            "study = run_study()",
            "from utils.disaggregation import cacheblend\n\n"
            "six = cacheblend.prompts\n"
            "cacheblend.prompts = lambda tokenizer: [next(six(tokenizer))]\n"
            "study = run_study()",
        ),
    ),
    "notebooks/17_routing.ipynb": (
        ('llm = LLM("bundled"', FIRST_LAYERS + "llm = LLM(first_layers"),
        ("course_replicas(2,", "course_replicas(2, first_layers,"),
        ('vllm_replicas(resolve_model("bundled"), 2', "vllm_replicas(first_layers, 2"),
        (
            "num_groups=6, requests_per_group=4, seed=seed",
            "num_groups=4, requests_per_group=3, seed=seed",
        ),
        ("for turn in range(3):\n    for number", "for turn in range(1):\n    for number"),
        ("mixed_notes(seed", "mixed_notes(2, 2, 2, seed"),
        ("warm_behind(replicas, 10, seed=seed)", "warm_behind(replicas, 4, seed=seed)"),
    ),
    "notebooks/18_vllm_by_hand.ipynb": (
        (
            "--random-input-len 256 --random-output-len 32",
            "--random-input-len 96 --random-output-len 4",
        ),
        ("--num-prompts 16 --max-concurrency 4", "--num-prompts 2 --max-concurrency 2"),
        ("for seed in (2, 3, 4):  # in turn, so", "for seed in (2,):  # in turn, so"),
    ),
}
