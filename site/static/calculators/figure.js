/* What the calculators share: numbers written as Python writes them, and small figures in SVG. */
(() => {
  "use strict";
  if (window.courseCalculators) return; // a page with two of them asks for this file twice
  const INK = "#1b1b1b", BLUE = "#1a4288", ORANGE = "#e07b00", GREEN = "#7bbf6a", GREY = "#767676", RED = "#b3261e";
  const WIDTH = 760, LEFT = 10;

  /** f"{x:,.{digits}f}", or without commas: a tie goes to the even digit, where toFixed goes up. */
  function fixed(x, digits, commas = true) {
    let text = Math.abs(x).toFixed(digits);
    const halves = Math.abs(x) * 2 ** (digits + 1); // exact, and odd for a tie only
    if (Number.isInteger(halves) && halves % 2) {
      const below = Math.floor(Math.abs(x) * 10 ** digits);
      text = ((below + (below % 2)) / 10 ** digits).toFixed(digits);
    }
    const [whole, rest] = text.split(".");
    const grouped = commas ? whole.replace(/\B(?=(\d{3})+$)/g, ",") : whole;
    return (x < 0 ? "-" : "") + grouped + (rest ? `.${rest}` : "");
  }

  /** f"{x:.{digits}g}" */
  function general(x, digits = 6) {
    if (x === 0) return "0";
    let [digitsOf, power] = x.toExponential(digits - 1).split("e");
    const all = x.toExponential(60).split("e")[0].replace(".", ""); // every digit there is
    if (/^50*$/.test(all.slice(digits)) && all[digits - 1] % 2 === 0) {
      digitsOf = `${all[0]}.${all.slice(1, digits)}`; // a tie, to the even digit
      x = Number(`${digitsOf}e${power}`);
    }
    const exponent = Number(power);
    const trim = (text) => (text.includes(".") ? text.replace(/\.?0+$/, "") : text);
    if (exponent >= -4 && exponent < digits) return trim(x.toFixed(digits - 1 - exponent));
    const size = String(Math.abs(exponent)).padStart(2, "0");
    return `${trim(digitsOf)}e${exponent < 0 ? "-" : "+"}${size}`;
  }

  const escape = (text) => text.replace(/[&<>"]/g, (c) => `&#${c.charCodeAt(0)};`);
  const text = (x, y, words, more = "") =>
    `<text x="${x.toFixed(1)}" y="${y.toFixed(1)}" font-size="13" fill="${INK}" ${more}>${escape(words)}</text>`;
  const svg = (height, alt, inside) =>
    `<svg viewBox="0 0 ${WIDTH} ${height}" width="${WIDTH}" height="${height}" role="img" ` +
    `aria-label="${escape(alt)}" font-family="sans-serif">${inside}</svg>`;

  /** Round numbers, some five of them, up to `top`. */
  function ticks(top) {
    const raw = top / 5, power = 10 ** Math.floor(Math.log10(raw));
    const step = power * [1, 2, 5, 10].find((m) => m * power >= raw);
    return Array.from({ length: Math.floor(top / step) + 1 }, (_, i) => i * step);
  }

  /** A stacked bar against a limit. parts: [label, value, colour]; labels stand below, in order. */
  function bar(parts, limit, right, label, words) {
    const total = parts.reduce((sum, [, value]) => sum + value, 0);
    const x = (value) => LEFT + (value / right) * (WIDTH - 2 * LEFT);
    let at = 0, drawn = "";
    for (const tick of ticks(right)) {
      drawn += `<line x1="${x(tick)}" x2="${x(tick)}" y1="8" y2="76" stroke="#ddd"/>`;
      drawn += text(x(tick), 93, general(tick), 'text-anchor="middle"');
    }
    for (const [, value, colour] of parts) {
      drawn += `<rect x="${x(at)}" y="18" width="${Math.max(0, x(at + value) - x(at))}" height="46" fill="${colour}"/>`;
      at += value;
    }
    drawn += `<line x1="${x(limit)}" x2="${x(limit)}" y1="8" y2="76" stroke="${total > limit ? RED : INK}" stroke-width="3"/>`;
    drawn += text(WIDTH / 2, 113, label, 'text-anchor="middle"');
    const place = (WIDTH - 2 * LEFT) / parts.length;
    parts.forEach(([name, , colour], i) => {
      drawn += `<rect x="${LEFT + i * place}" y="126" width="12" height="12" fill="${colour}"/>`;
      drawn += text(LEFT + i * place + 18, 137, name);
    });
    return svg(146, [words, label, parts.map(([name]) => name).join(", ")].join(" "), drawn);
  }

  /** Lines over logarithmic axes. lines: [label, values, colour, dashes]; mark: a place on x. */
  function loglog(xs, lines, mark, labels, words) {
    const bottom = 250, top = 16, left = 64, right = WIDTH - 32;
    const all = lines.flatMap(([, values]) => values);
    const low = Math.floor(Math.log10(Math.min(...all))), high = Math.ceil(Math.log10(Math.max(...all)));
    const X = (value) => left + (Math.log2(value / xs[0]) / Math.log2(xs.at(-1) / xs[0])) * (right - left);
    const Y = (value) => bottom - ((Math.log10(value) - low) / (high - low)) * (bottom - top);
    let drawn = "";
    for (let power = Math.log2(xs[0]); 2 ** power <= xs.at(-1); power += 2) {
      drawn += text(X(2 ** power), bottom + 18, fixed(2 ** power, 0), 'text-anchor="middle"');
      drawn += `<line x1="${X(2 ** power)}" x2="${X(2 ** power)}" y1="${top}" y2="${bottom}" stroke="#ddd"/>`;
    }
    for (let power = low; power <= high; power++) {
      drawn += text(left - 6, Y(10 ** power) + 4, general(10 ** power), 'text-anchor="end"');
      drawn += `<line x1="${left}" x2="${right}" y1="${Y(10 ** power)}" y2="${Y(10 ** power)}" stroke="#ddd"/>`;
    }
    drawn += `<line x1="${X(mark)}" x2="${X(mark)}" y1="${top}" y2="${bottom}" stroke="${INK}" stroke-dasharray="2 3"/>`;
    lines.forEach(([name, values, colour, dashes], i) => {
      const points = values.map((value, k) => `${X(xs[k]).toFixed(1)},${Y(value).toFixed(1)}`).join(" ");
      const stroke = `stroke="${colour}" stroke-width="2.2" stroke-dasharray="${dashes}"`;
      drawn += `<polyline points="${points}" fill="none" ${stroke}/>`;
      drawn += `<line x1="${left + 12}" x2="${left + 42}" y1="${top + 14 + 20 * i}" y2="${top + 14 + 20 * i}" ${stroke}/>`;
      drawn += text(left + 50, top + 18 + 20 * i, name);
    });
    drawn += text((left + right) / 2, bottom + 40, labels[0], 'text-anchor="middle"');
    drawn += text(14, (top + bottom) / 2, labels[1], `text-anchor="middle" transform="rotate(-90 14 ${(top + bottom) / 2})"`);
    return svg(300, [words, ...lines.map(([name]) => name)].join(" "), drawn);
  }

  window.courseCalculators = {};
  window.courseFigure = { fixed, general, bar, loglog, INK, BLUE, ORANGE, GREEN, GREY };
})();
