/* Lesson 02: where a card's memory goes. As plot_memory_split in utils/viz/memory/kv_memory.py. */
"use strict";
window.courseCalculators.memory = (tables, { model, memory_gib, num_tokens, batch, kv_bits, weight_bits }) => {
  const { fixed, general, bar, BLUE, ORANGE, GREY } = window.courseFigure;
  const GIB = 2 ** 30, shape = tables.models[model];
  const weights = (shape.parameters * weight_bits) / 8 / GIB;
  const perToken = (shape.kv * kv_bits) / 8;
  const kv = (perToken * num_tokens * batch) / GIB;
  const other = 0.05 * memory_gib, used = weights + kv + other;
  const verdict = used > memory_gib ? "does not fit" : `fits, ${fixed(memory_gib - used, 1)} GiB to spare`;
  const free = memory_gib * GIB * (1 - 0.05) - (shape.parameters * weight_bits) / 8;
  const room = Math.max(0, Math.floor(free / (perToken * num_tokens)));
  const words =
    `${model}, ${batch} × ${fixed(num_tokens, 0)} tokens: ${verdict}; ` +
    `${shape.kind}: ${fixed(perToken / 1024, 1)} KiB of KV per token, ` +
    `room for ${fixed(room, 0)} ${room === 1 ? "request" : "requests"} of this length.`;
  const parts = [["weights", weights, BLUE], ["KV cache", kv, ORANGE], ["activations, runtime", other, GREY]];
  const named = parts.map(([name, value, colour]) => [`${name}: ${fixed(value, 1)} GiB`, value, colour]);
  const label = `GiB (the line is the card: ${general(memory_gib)} GiB)`;
  return { words, svg: bar(named, memory_gib, 1.05 * Math.max(used, memory_gib), label, words) };
};
