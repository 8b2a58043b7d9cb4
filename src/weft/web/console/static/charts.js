// Charts: lines by uPlot, everything else on a canvas of its own. Colours come from the style sheet, so that dark mode
// and print have theirs; all charts of a page share their left and right margins, so that steps stand below each other.
import uPlot from "./vendor/uPlot.esm.js";
import {el, number, put, seconds, words} from "./dom.js";

export const LEFT = 76, RIGHT = 16;

export const CLASSES = [
  "compute", "exposed_communication", "bubble", "input", "checkpoint", "evaluation", "verify", "redo", "restore",
  "reform", "detect", "start_up", "idle",
];

export function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name.replaceAll("_", "-")}`).trim() || "#888";
}

export const series = (place) => colour(`series-${place % 6}`);

export function onTheme(action) {
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", action);
  addEventListener("beforeprint", action);
  addEventListener("afterprint", action);
}

export function onWidth(place, action) {
  let before = 0;
  new ResizeObserver((entries) => {
    const width = Math.floor(entries[0].contentRect.width);
    if (width > 0 && width !== before) { before = width; action(width); }
  }).observe(place);
}

export function canvas(place, width, height, label) {
  const scale = devicePixelRatio || 1;
  let made = place.querySelector("canvas");
  if (!made) { made = el("canvas", {role: "img"}); place.prepend(made); }
  made.setAttribute("aria-label", label);
  made.width = Math.round(width * scale);
  made.height = Math.round(height * scale);
  made.style.width = `${width}px`;
  made.style.height = `${height}px`;
  const pen = made.getContext("2d");
  pen.setTransform(scale, 0, 0, scale, 0, 0);
  pen.font = "12px system-ui, sans-serif";
  pen.clearRect(0, 0, width, height);
  return pen;
}

export function legend(entries) {
  return el("ul", {class: "legend"}, entries.map(([name, shade, text]) => {
    const swatch = el("span", {class: "swatch", "aria-hidden": "true"});
    swatch.style.background = shade;
    return el("li", {}, swatch, name, text ? el("span", {class: "quiet"}, ` ${text}`) : null);
  }));
}

export function ticks(low, high, most) {
  const span = high - low || 1;
  const rough = span / Math.max(1, most);
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((each) => each * power).find((each) => each >= rough);
  const found = [];
  for (let at = Math.ceil(low / step) * step; at <= high + step * 1e-9; at += step) found.push(Number(at.toPrecision(12)));
  return found;
}

function axisStyle() {
  return {stroke: colour("quiet"), grid: {stroke: colour("grid"), width: 1}, ticks: {stroke: colour("grid"), width: 1},
    font: "12px system-ui, sans-serif"};
}

// Lines over steps. `lines` are {name, x, y, stroke, dash, points}; `marks` are {x, text, colour}.
export function lineChart(place, given) {
  const xs = [...new Set(given.lines.flatMap((line) => line.x))].sort((a, b) => a - b);
  const at = new Map(xs.map((x, index) => [x, index]));
  const data = [xs, ...given.lines.map((line) => {
    const column = new Array(xs.length).fill(undefined);
    line.x.forEach((x, index) => { column[at.get(x)] = line.y[index]; });
    return column;
  })];
  const drawMarks = (plot) => {
    const pen = plot.ctx, scale = devicePixelRatio || 1;
    for (const mark of given.marks || []) {
      const x = plot.valToPos(mark.x, "x", true);
      if (x < plot.bbox.left || x > plot.bbox.left + plot.bbox.width) continue;
      pen.save();
      pen.strokeStyle = pen.fillStyle = mark.colour;
      pen.lineWidth = scale;
      pen.setLineDash([4 * scale, 3 * scale]);
      pen.beginPath();
      pen.moveTo(x, plot.bbox.top); pen.lineTo(x, plot.bbox.top + plot.bbox.height);
      pen.stroke();
      pen.setLineDash([]);
      pen.beginPath();
      const y = plot.bbox.top + plot.bbox.height;
      pen.moveTo(x, y - 9 * scale); pen.lineTo(x + 5 * scale, y); pen.lineTo(x - 5 * scale, y);
      pen.fill();
      pen.restore();
    }
  };
  const options = {
    width: Math.max(240, place.clientWidth), height: given.height || 260, padding: [12, RIGHT, 0, 0],
    scales: {x: {time: false, range: given.range}, y: {distr: given.log ? 3 : 1}},
    axes: [
      {...axisStyle(), label: given.xLabel, labelSize: given.xLabel ? 22 : 0, labelFont: "12px system-ui, sans-serif"},
      {...axisStyle(), size: LEFT - (given.yLabel ? 20 : 0), label: given.yLabel, labelSize: given.yLabel ? 20 : 0, labelFont: "12px system-ui, sans-serif",
        values: (_, values) => values.map((value) => (value === null ? "" : number(value)))},
    ],
    series: [{label: given.xName || "step"}, ...given.lines.map((line) => ({
      label: line.name, stroke: line.stroke, width: line.width || 1.75, dash: line.dash, spanGaps: true,
      points: {show: line.points ?? false, size: 7, fill: line.stroke}, paths: line.points ? () => null : undefined,
      value: (_, value) => (value === null || value === undefined ? "-" : number(value, 5)),
    }))],
    cursor: {drag: {x: true, y: false}, focus: {prox: 24}},
    legend: {live: true},
    hooks: {draw: [drawMarks]},
  };
  put(place);
  const plot = new uPlot(options, data, place);
  plot.root.querySelector("canvas").setAttribute("aria-label", given.label);
  plot.root.querySelector("canvas").setAttribute("role", "img");
  onWidth(place, (width) => plot.setSize({width, height: options.height}));
  return plot;
}

// Bars stacked over steps; `columns` are {step: [], seconds: {class: []}}; `ghost` is a predicted total.
export function stackedSteps(place, columns, range, ghost) {
  const draw = () => {
    const width = place.clientWidth, height = 190, bottom = 24, top = 8;
    const pen = canvas(place, width, height, `step time by class over ${columns.step.length} points`);
    const kinds = CLASSES.filter((kind) => columns.seconds[kind]);
    const totals = columns.step.map((_, index) => kinds.reduce((sum, kind) => sum + columns.seconds[kind][index], 0));
    const sorted = [...totals].sort((a, b) => a - b);
    // One step of a minute must not flatten all others: the axis ends a little above the 98th percentile.
    const high = Math.max(1e-9, ghost || 0, 1.25 * (sorted[Math.floor(0.98 * (sorted.length - 1))] || 0));
    const inner = width - LEFT - RIGHT, tall = height - bottom - top;
    const x = (step) => LEFT + inner * (step - range[0]) / Math.max(1e-9, range[1] - range[0]);
    const y = (value) => top + tall * (1 - Math.min(1, value / high));
    axes(pen, {width, height, bottom, top, low: 0, high, x, range, format: seconds});
    const every = columns.step.length > 1 ? (x(columns.step.at(-1)) - x(columns.step[0])) / (columns.step.length - 1) : 12;
    const thick = Math.max(1, every * (every > 4 ? 0.82 : 1));
    columns.step.forEach((step, index) => {
      let below = 0;
      for (const kind of kinds) {
        const value = columns.seconds[kind][index];
        if (!value) continue;
        pen.fillStyle = colour(kind);
        pen.fillRect(x(step) - thick / 2, y(below + value), thick, y(below) - y(below + value));
        below += value;
      }
      if (below > high) {
        pen.fillStyle = colour("text");
        pen.beginPath();
        pen.moveTo(x(step), top - 4); pen.lineTo(x(step) + 4, top + 3); pen.lineTo(x(step) - 4, top + 3);
        pen.fill();
      }
    });
    if (ghost) {
      pen.strokeStyle = colour("ghost");
      pen.lineWidth = 2;
      pen.setLineDash([7, 5]);
      pen.beginPath();
      pen.moveTo(LEFT, y(ghost)); pen.lineTo(width - RIGHT, y(ghost));
      pen.stroke();
      pen.setLineDash([]);
    }
  };
  onWidth(place, draw);
  draw();
  return draw;
}

export function axes(pen, given) {
  const {width, height, bottom, top, low, high, x, range, format, formatX} = given;
  pen.fillStyle = colour("quiet");
  pen.strokeStyle = colour("grid");
  pen.lineWidth = 1;
  pen.textAlign = "right";
  pen.textBaseline = "middle";
  for (const value of ticks(low, high, 4)) {
    const at = top + (height - bottom - top) * (1 - (value - low) / (high - low));
    pen.beginPath(); pen.moveTo(LEFT, Math.round(at) + 0.5); pen.lineTo(width - RIGHT, Math.round(at) + 0.5); pen.stroke();
    pen.fillText(format(value), LEFT - 8, at);
  }
  steps(pen, {width, height, bottom, x, range, format: formatX});
}

export function steps(pen, {width, height, bottom, x, range, format}) {
  pen.fillStyle = colour("quiet");
  pen.textAlign = "center";
  pen.textBaseline = "top";
  for (const value of ticks(range[0], range[1], Math.max(2, Math.floor(width / 110)))) {
    pen.fillText(format ? format(value) : number(value), x(value), height - bottom + 7);
  }
}

// A colour between two of the style sheet, by a share from 0 to 1.
export function ramp(share) {
  const stops = ["ramp-0", "ramp-1", "ramp-2", "ramp-3"].map((name) => parse(colour(name)));
  const at = Math.min(0.9999, Math.max(0, share)) * (stops.length - 1);
  const [from, to] = [stops[Math.floor(at)], stops[Math.floor(at) + 1]];
  return from.map((value, index) => Math.round(value + (to[index] - value) * (at % 1)));
}

export function parse(text) {
  const digits = text.replace("#", "");
  return [0, 2, 4].map((place) => parseInt(digits.slice(place, place + 2), 16));
}

// Ranks x steps: colour is what a rank computed in a step over the median rank; a lost plane is a mark on its rank.
export function heatStrip(place, columns, range) {
  const draw = () => {
    const rows = columns.rank_seconds.reduce((most, row) => Math.max(most, row.length), 0);
    const cell = Math.max(4, Math.min(26, Math.floor(220 / Math.max(1, rows))));
    const width = place.clientWidth, bottom = 24, top = 4, height = rows * cell + bottom + top;
    const pen = canvas(place, width, height, `seconds computed by ${columns.ranks} ranks over ${columns.step.length} points`);
    const inner = width - LEFT - RIGHT;
    const x = (step) => LEFT + inner * (step - range[0]) / Math.max(1e-9, range[1] - range[0]);
    const every = columns.step.length > 1 ? (x(columns.step.at(-1)) - x(columns.step[0])) / (columns.step.length - 1) : 12;
    const usual = usualByRow(columns.rank_seconds, rows);
    columns.rank_seconds.forEach((seconds, index) => {
      const left = x(columns.step[index]) - every / 2, wide = Math.max(1, Math.ceil(every) + 0.5);
      seconds.forEach((value, row) => {
        if (value === null) return;
        // 0.75 to 2 times the usual: a straggler of twice the time is as dark as it gets.
        pen.fillStyle = `rgb(${ramp((value / usual[row] - 0.75) / 1.25).join(",")})`;
        pen.fillRect(left, top + row * cell, wide, cell - (cell > 8 ? 1 : 0));
      });
      (columns.planes_out[index] || []).forEach((mask, row) => {
        if (!mask) return;
        pen.fillStyle = colour("bad");
        const tall = Math.max(2, Math.floor(cell / 3));
        pen.fillRect(left, top + (row + 1) * cell - tall - 1, wide, tall);
      });
    });
    pen.fillStyle = colour("quiet");
    pen.textAlign = "right";
    pen.textBaseline = "middle";
    const skip = Math.max(1, Math.ceil(14 / cell));
    for (let row = 0; row < rows; row += skip) {
      pen.fillText(`rank ${row * columns.ranks_per_row}`, LEFT - 8, top + (row + 0.5) * cell);
    }
    steps(pen, {width, height, bottom, x, range});
  };
  onWidth(place, draw);
  draw();
  return draw;
}

// Ranks of different pipeline stages do different work: each row is compared with the least of its own median and that
// of all rows, so that both a rank that is slow throughout and one that becomes slow stand out.
function usualByRow(matrix, rows) {
  const middle = (values) => (values.length ? values.sort((a, b) => a - b)[Math.floor(values.length / 2)] : 1);
  const own = Array.from({length: rows}, (_, row) => middle(matrix.map((each) => each[row]).filter((value) => value)));
  const all = middle([...own]);
  return own.map((value) => Math.min(value, all) || 1e-9);
}

// What came in, and what was lost of it class by class, to what was useful.
export function waterfall(parts, useful) {
  const total = Object.values(parts).reduce((sum, value) => sum + value, 0);
  if (!total) return el("p", {class: "quiet"}, "no step yet");
  const lost = Object.entries(parts).filter(([kind, value]) => !useful.includes(kind) && value > 0).sort((a, b) => b[1] - a[1]);
  const used = useful.filter((kind) => parts[kind] > 0).map((kind) => [kind, parts[kind]]);
  let left = total;
  const rows = [["all GPU-seconds", "total", 0, total]];
  for (const [kind, value] of lost) { left -= value; rows.push([words(kind), kind, left, value]); }
  let begin = 0;
  for (const [kind, value] of used) { rows.push([words(kind), kind, begin, value]); begin += value; }
  return el("table", {class: "bars"},
    el("caption", {}, "GPU-seconds: all of them, what was lost, what was useful"),
    el("tbody", {}, rows.map(([name, kind, start, value]) => {
      const bar = el("span", {class: "bar"});
      bar.style.marginLeft = `${100 * start / total}%`;
      bar.style.width = `${Math.max(0.15, 100 * value / total)}%`;
      bar.style.background = colour(kind === "total" ? "quiet" : kind);
      return el("tr", {}, el("th", {scope: "row"}, name), el("td", {class: "track"}, bar),
        el("td", {class: "figure"}, number(value)), el("td", {class: "figure"}, `${number(100 * value / total)} %`));
    })));
}

export function spark(values, label) {
  const known = values.filter((value) => value !== null);
  if (known.length < 2) return el("span", {class: "quiet"}, "-");
  const low = Math.min(...known), high = Math.max(...known), span = high - low || 1;
  const points = values.map((value, index) => (value === null ? null
    : `${(118 * index / (values.length - 1) + 1).toFixed(1)},${(21 - 20 * (value - low) / span).toFixed(1)}`)).filter(Boolean);
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  svg.setAttribute("viewBox", "0 0 120 22");
  svg.setAttribute("class", "spark");
  svg.setAttribute("role", "img");
  svg.setAttribute("aria-label", label);
  const line = document.createElementNS("http://www.w3.org/2000/svg", "polyline");
  line.setAttribute("points", points.join(" "));
  svg.append(line);
  return svg;
}
