/* Lesson 10: the memory of a training step. As utils/pipeline/estimates/training_memory.py, and
   plot_calculator in utils/viz/finetune/training.py. */
"use strict";
window.courseCalculators.training = (tables, chosen) => {
  const { fixed, general, bar, BLUE, ORANGE, GREEN, GREY } = window.courseFigure;
  const { model, method, r, lora_alpha, targets, num_tokens, answers, checkpointing, card } = chosen;
  const HALF = 2, FULL = 4, ADAM_STATES = 2, GB = 1e9;
  const shape = tables.shapes[model], full = method === "full";
  const has = new Set(full ? Object.keys(shape.linears) : tables.targets[targets]);
  const predicted = Math.floor((num_tokens * answers) / 100);

  let trained = shape.parameters, base = HALF * shape.parameters, temporary = 0, adapter = 0;
  if (!full) {
    const widths = [...has].map((name) => shape.linears[name][0] + shape.linears[name][1]);
    trained = adapter = shape.num_hidden_layers * r * widths.reduce((a, b) => a + b, 0);
  }
  if (method === "qlora") {
    base = shape.nf4_bytes;
    temporary = HALF * Math.max(...Object.values(shape.linears).map(([i, o]) => i * o));
  }

  // Of one layer, for a token, without checkpointing.
  const norm = (FULL + (full ? HALF : 0)) * shape.hidden_size;
  const any = (...names) => Number(names.some((name) => has.has(name)));
  const layer =
    2 * norm + HALF * (2 * shape.q_size + 2 * shape.kv_size) + HALF * 3 * shape.intermediate_size +
    HALF * shape.hidden_size * any("q_proj", "k_proj", "v_proj") +
    HALF * shape.hidden_size * any("gate_proj", "up_proj") +
    HALF * shape.intermediate_size * any("down_proj") + (full ? 0 : HALF * r * has.size);
  const last = norm + (full ? HALF * shape.hidden_size : 0);
  const kept = checkpointing
    ? shape.num_hidden_layers * HALF * shape.hidden_size + last
    : shape.num_hidden_layers * layer + last - (full ? 0 : norm);

  const logits = predicted * shape.vocab_size;
  const parts = [
    ["weights", base + HALF * adapter, BLUE],
    ["gradients", HALF * trained, ORANGE],
    ["optimizer", FULL * (1 + ADAM_STATES) * trained, GREEN],
    [
      "activations and logits",
      num_tokens * kept + (checkpointing ? num_tokens * layer : 0) + FULL * logits +
        Math.max(temporary, (HALF + FULL) * logits),
      GREY,
    ],
  ];
  const total = parts.reduce((sum, [, value]) => sum + value, 0) / GB;
  const size = (tables.cards[card] * 2 ** 30) / GB - tables.not_ours, fits = total < size;
  const scale = full ? "" : `, scale alpha/r = ${general(lora_alpha / r)}`;
  const words =
    `${model}, ${method}: ${fixed(trained / 1e6, 1)} million trained ` +
    `(${fixed(100 * (trained / shape.parameters), 2, false)}%)${scale}; ` +
    `${fixed(total, 1)} GB ${fits ? "fit on" : "do not fit on"} ${card}.`;
  const label = `GB (the line is the card, less ${tables.not_ours} GB for driver and gaps: ${fixed(size, 1)} GB)`;
  const drawn = parts.map(([name, value, colour]) => [name, value / GB, colour]);
  return { words, svg: bar(drawn, size, 1.15 * Math.max(size, total), label, words) };
};
