// One run, live, or several over each other.
import {CLASSES, colour, heatStrip, legend, lineChart, onTheme, series, stackedSteps, waterfall} from "./charts.js";
import {ask, el, figure, later, number, put, say, seconds, table, words} from "./dom.js";

const PATIENCE_MS = 150;

export async function show(main, query) {
  const id = query.get("run");
  if (!id) { location.replace("/"); return; }
  const others = query.getAll("with").filter((each) => each !== id);
  const state = {id, log: false, site: "", predicted: null, others: new Map()};
  const places = layout(main, state, () => draw(places, state));
  state.run = await load(id);
  for (const other of others) state.others.set(other, await load(other));
  draw(places, state);
  onTheme(() => draw(places, state));
  await offerSites(places, state, () => draw(places, state));
  follow(state, later(() => draw(places, state), PATIENCE_MS));
}

const load = (id) => ask(`/api/runs/${encodeURIComponent(id)}`);

function layout(main, state, redraw) {
  const places = {};
  for (const name of ["head", "badges", "tiles", "loss", "time", "ranks", "fall", "incidents", "evaluations", "legend",
    "heat"]) places[name] = el("div", {});
  const log = el("input", {type: "checkbox", onchange: (event) => { state.log = event.target.checked; redraw(); }});
  places.site = el("select", {"aria-label": "Predicted on"});
  places.with = el("select", {"aria-label": "Lay another run over it"});
  places.ranksPart = el("section", {}, el("h2", {}, "Ranks over steps"), el("p", {class: "quiet"},
    "Seconds that a rank computed in a step, over what is usual; darker is slower. A red foot: a plane carries nothing from that rank."),
    places.ranks, places.heat);
  places.incidentsPart = el("section", {}, el("h2", {}, "Incidents"), places.incidents);
  places.evaluationsPart = el("section", {}, places.evaluations);
  put(main, places.head, places.badges, places.tiles,
    el("div", {class: "bar-of-tools"}, el("label", {}, log, "log scale"),
      el("label", {}, "predicted on ", places.site), el("label", {}, "lay over it ", places.with)),
    el("section", {}, el("h2", {}, "Loss"), places.loss),
    el("section", {}, el("h2", {}, "Step time"), places.time, places.legend),
    places.ranksPart,
    el("div", {class: "columns"}, el("section", {}, el("h2", {}, "Where the GPU-seconds went"), places.fall),
      places.evaluationsPart),
    places.incidentsPart);
  return places;
}

function draw(places, state) {
  const run = state.run, columns = run.columns;
  document.title = `${run.run} · weft`;
  put(places.head, el("h1", {}, run.run, " ", el("span", {class: `state ${run.state}`}, run.state)),
    el("p", {class: "quiet"}, run.description));
  put(places.badges, run.equal.filter((each) => each.step > 0).slice(0, 3).map((each) => badge(each)));
  put(places.tiles, tiles(run, state.predicted));
  const last = Math.max(columns.step.at(-1) || 1, ...[...state.others.values()].map((each) => each.columns.step.at(-1) || 1));
  const range = [0.5, Math.max(run.state === "running" ? Math.min(run.steps_asked, last * 1.25) : last, 2) + 0.5];
  drawLoss(places, state, range);
  state.time?.();
  put(places.time);
  state.time = null;
  if (columns.step.length) stackedSteps(places.time, columns, range, state.predicted?.step_s);
  const kinds = CLASSES.filter((kind) => columns.seconds[kind]?.some((value) => value > 0));
  put(places.legend, legend([...kinds.map((kind) => [words(kind), colour(kind)]),
    ...(state.predicted ? [["predicted", colour("ghost"), seconds(state.predicted.step_s)]] : [])]),
    columns.every > 1 ? el("p", {class: "quiet"}, `one bar for ${columns.every} steps: their mean time, and the highest of their losses`) : null);
  const withRanks = columns.ranks > 1;
  places.ranksPart.hidden = !withRanks;
  if (withRanks) {
    put(places.ranks);
    heatStrip(places.ranks, columns, range);
    put(places.heat, planesSentence(columns));
  }
  put(places.fall, waterfall(run.gpu_seconds, run.useful));
  places.incidentsPart.hidden = !run.incidents.length;
  if (run.incidents.length) put(places.incidents, incidents(run.incidents));
  places.evaluationsPart.hidden = !(run.evaluations.length || state.predicted);
  put(places.evaluations, state.predicted ? beside(run, state.predicted) : null,
    run.evaluations.length ? evaluations(run.evaluations) : null);
}

function badge(each) {
  const link = el("a", {href: `/run?${new URLSearchParams({run: each.id})}`}, each.run);
  const how = each.weights ? ` (weights compared at ${number(each.weights)} of them)` : " (loss and gradient norm)";
  return el("p", {class: `badge ${each.parts ? "parts" : "equal"}`},
    "equal bit for bit to run ", link, ` up to step ${number(each.step)}`, el("span", {class: "quiet"}, how),
    each.parts ? ", where they part" : "");
}

function tiles(run, predicted) {
  const columns = run.columns, last = columns.step.length - 1;
  const spent = Object.values(run.gpu_seconds).reduce((sum, value) => sum + value, 0);
  const used = run.useful.reduce((sum, kind) => sum + (run.gpu_seconds[kind] || 0), 0);
  const step = median(columns.step.map((_, index) => Object.values(columns.seconds).reduce((sum, each) => sum + each[index], 0)));
  const entries = [
    ["step", `${number(columns.step[last] || 0)} of ${number(run.steps_asked)}`],
    ["loss", number(columns.loss[last], 5)],
    ["step time, median", `${seconds(step)}${predicted ? `, predicted ${seconds(predicted.step_s)}` : ""}`],
    ["tokens/s", number(run.result.tokens_per_s ?? columns.tokens_per_s[last])],
    ["MFU", run.result.mfu === null ? "-" : figure(100 * run.result.mfu, "%")],
    ["goodput", spent ? figure(100 * used / spent, "%") : "-"],
    ["ranks", number(run.ranks)],
  ];
  return el("dl", {class: "tiles"}, entries.map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, value))));
}

function median(values) {
  return values.length ? [...values].sort((a, b) => a - b)[Math.floor(values.length / 2)] : null;
}

function drawLoss(places, state, range) {
  const run = state.run;
  const lines = [[state.id, run], ...state.others].map(([, each], place) => ({
    name: each.run, x: each.columns.step, y: each.columns.loss, stroke: series(place),
    // What lies exactly under another line must be seen on both sides of it.
    width: place ? 1.75 : state.others.size ? 5 : 2,
  }));
  if (run.evaluations.length) {
    const name = Object.keys(run.evaluations[0]).find((each) => each !== "step");
    lines.push({name: words(name), x: run.evaluations.map((each) => each.step), y: run.evaluations.map((each) => each[name]),
      stroke: colour("evaluation-points"), points: true, width: 0});
  }
  const marks = run.incidents.map((each) => ({x: each.step + 0.5, text: each.kind, colour: colour("bad")}));
  if (run.columns.step.length) {
    lineChart(places.loss, {lines, marks, range, log: state.log, yLabel: "loss", height: 280,
      label: `loss of ${run.run} over ${run.columns.step.length} steps with ${run.incidents.length} incidents`});
  } else put(places.loss, el("p", {class: "quiet"}, "no step yet"));
}

function planesSentence(columns) {
  const now = columns.planes_out.at(-1) || [];
  const planes = new Set();
  for (const mask of now) for (let plane = 0; plane < 31; plane += 1) if (mask & (1 << plane)) planes.add(plane);
  const rows = now.map((mask, row) => [mask, row]).filter(([mask]) => mask).map(([, row]) => row * columns.ranks_per_row);
  if (!planes.size) return null;
  return el("p", {class: "problem", role: "status", id: "planes-out"},
    `plane ${[...planes].sort().join(", ")} carries nothing from rank ${rows.join(", ")}`);
}

function incidents(lines) {
  return table("incidents", ["", "UTC", "step", "kind", "rank", "seen", "done", "GPU-seconds lost"],
    lines.map((line) => [number(line.incident), String(line.at || "").slice(11, 19), [number(line.step), true], words(line.kind),
      [line.rank === null || line.rank === undefined ? "-" : number(line.rank), true], String(line.seen || "").split("\n")[0],
      String(line.action || ""), [number(line.gpu_seconds_lost || 0), true]]));
}

function evaluations(lines) {
  const names = [...new Set(lines.flatMap((line) => Object.keys(line)))].filter((name) => name !== "step");
  return table("evaluations", ["step", ...names.map(words)],
    lines.slice(-12).map((line) => [number(line.step), ...names.map((name) => [number(line[name], 5), true])]));
}

function beside(run, predicted) {
  const columns = run.columns;
  const mine = (kind) => median(columns.seconds[kind] || []) || 0;
  const rows = Object.entries(predicted.seconds).map(([kind, value]) => [words(kind), [seconds(value), true], [seconds(mine(kind)), true]]);
  const step = median(columns.step.map((_, index) => Object.values(columns.seconds).reduce((sum, each) => sum + each[index], 0)));
  rows.push(["step", [seconds(predicted.step_s), true], [seconds(step), true]]);
  return table(`a step on ${predicted.site}, and here`, ["", "predicted", "measured, median"], rows);
}

async function offerSites(places, state, redraw) {
  const [{sites}, {runs}] = await Promise.all([ask("/api/choices"), ask("/api/runs")]);
  put(places.site, el("option", {value: ""}, "nothing"),
    sites.filter((site) => !site.error).map((site) => el("option", {value: site.name}, site.name)));
  places.site.addEventListener("change", async () => {
    state.predicted = null;
    try {
      if (places.site.value) {
        state.predicted = await ask(`/api/runs/${encodeURIComponent(state.id)}/predicted?${new URLSearchParams({site: places.site.value})}`);
      }
      say("");
    } catch (error) { say(error.message, true); }
    redraw();
  });
  put(places.with, el("option", {value: ""}, "nothing"), runs.filter((run) => run.id !== state.id && !run.error)
    .map((run) => el("option", {value: run.id, selected: state.others.has(run.id)}, run.run)));
  places.with.addEventListener("change", async () => {
    state.others.clear();
    try {
      if (places.with.value) state.others.set(places.with.value, await load(places.with.value));
    } catch (error) { say(error.message, true); }
    redraw();
  });
}

function follow(state, redraw) {
  const stream = new EventSource(`/api/runs/${encodeURIComponent(state.id)}/live`);
  const again = async () => {
    try { state.run = await load(state.id); } catch (error) { say(error.message, true); return; }
    redraw();
  };
  stream.addEventListener("reset", again);
  stream.addEventListener("state", again);
  stream.addEventListener("lines", (event) => {
    const news = JSON.parse(event.data), run = state.run;
    // What the columns hold already may come once more. A run of thousands of steps is binned by the server.
    const fresh = news.steps.filter((line) => line.step > (run.columns.step.at(-1) || 0));
    if (run.columns.every > 1 || news.incidents.length || (fresh.length && run.columns.ranks === 0)) { again(); return; }
    for (const line of fresh) append(run, line);
    run.evaluations.push(...news.evaluations.filter((line) => line.step > (run.evaluations.at(-1)?.step || 0)));
    redraw();
  });
  stream.addEventListener("open", () => say(""));
  stream.addEventListener("error", () => say("the console does not answer; trying again", true));
  addEventListener("pagehide", () => stream.close());
}

function append(run, line) {
  const columns = run.columns, count = columns.step.length;
  columns.step.push(line.step);
  columns.loss.push(line.loss);
  columns.grad_norm.push(line.grad_norm);
  let spent = 0;
  for (const [kind, value] of Object.entries(line.seconds)) {
    (columns.seconds[kind] ||= new Array(count).fill(0)).push(value);
    run.gpu_seconds[kind] = (run.gpu_seconds[kind] || 0) + value * run.ranks;
    spent += value;
  }
  for (const column of Object.values(columns.seconds)) if (column.length <= count) column.push(0);
  columns.tokens_per_s.push(spent > 0 ? line.tokens / spent : null);
  const ranks = line.rank_seconds || [], out = line.planes_out || [];
  const grouped = (values, join) => Array.from({length: Math.ceil(values.length / columns.ranks_per_row)}, (_, row) =>
    values.slice(row * columns.ranks_per_row, (row + 1) * columns.ranks_per_row).reduce(join));
  columns.rank_seconds.push(grouped(ranks, (a, b) => Math.max(a, b)));
  columns.planes_out.push(out.length ? grouped(out, (a, b) => a | b) : new Array(columns.rank_seconds.at(-1).length).fill(0));
}
