/* Lesson 16: fetch a prefix, or compute it again. As plot_choice in
   utils/viz/disaggregation/fetch_or_compute.py. */
"use strict";
window.courseCalculators.fetch = (tables, { model, machine, link, share, efficiency }) => {
  const { fixed, general, loglog, BLUE, ORANGE } = window.courseFigure;
  const shape = tables.models[model], speed = tables.machines[machine] * efficiency;
  const bandwidth = tables.links[link] * share;
  const bytes = ((2 * shape.layers * shape.hidden) / shape.group) * shape.itemsize; // of a token
  const operations = (tokens) =>
    shape.layers * (4 * shape.hidden * tokens ** 2 + shape.product * shape.hidden ** 2 * tokens);
  const prefixes = Array.from({ length: 60 }, (_, i) => 128 * 1024 ** (i / 59));
  const compute = prefixes.map((tokens) => operations(tokens) / speed);
  const fetched = prefixes.map((tokens) => (tokens * bytes) / bandwidth);
  const far = prefixes.map((tokens) => Math.abs(tokens - 8192));
  const place = far.indexOf(Math.min(...far));
  const factor = compute[place] / fetched[place];
  const needed = (8192 * bytes) / (operations(8192) / speed);
  const wins =
    factor > 1
      ? `fetching is ${fixed(factor, 1, false)} times as fast`
      : `computing is ${fixed(1 / factor, 1, false)} times as fast`;
  const words = `8,192 tokens: ${wins}; break-even at ${general(needed / 1e9, 3)} GB/s.`;
  const lines = [["compute again", compute, ORANGE, "6 4"], ["fetch", fetched, BLUE, "none"]];
  return { words, svg: loglog(prefixes, lines, 8192, ["tokens of the prefix", "seconds"], words) };
};
