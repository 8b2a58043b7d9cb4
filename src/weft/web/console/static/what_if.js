// A site and a job with sliders; everything that weft rehearse says about them, at once, beside two pinned ones.
import {LEFT, RIGHT, canvas, colour, legend, lineChart, onTheme, onWidth, series, steps} from "./charts.js";
import {ask, copy, el, figure, kept, keep, later, number, put, say, seconds, table, words} from "./dom.js";

const PATIENCE_MS = 60;
const powers = (from, to) => Array.from({length: to - from + 1}, (_, place) => 2 ** (from + place));
const CONTROLS = [
  {name: "nodes", label: "GPUs", of: "site", range: [0, 16.001, 0.25]},
  {name: "planes", label: "planes", of: "site", options: [1, 2, 4, 8, 16]},
  {name: "link_rate", label: "NIC rate", of: "site", options: ["100 Gb/s", "200 Gb/s", "400 Gb/s", "800 Gb/s", "1600 Gb/s", "3200 Gb/s"]},
  {name: "scale_up", label: "scale-up domain", of: "site", options: [1, 4, 8, 16, 32, 64, 72, 144, 576]},
  {name: "memory", label: "GPU memory", of: "site", options: ["40 GB", "80 GB", "96 GB", "141 GB", "186 GB", "192 GB", "288 GB", "384 GB", "576 GB"]},
  {name: "power", label: "power of a GPU", of: "site", options: ["300 W", "500 W", "700 W", "1000 W", "1200 W", "1400 W", "1800 W"]},
  {name: "batch", label: "batch, sequences", of: "job", range: [0, 17.001, 0.25]},
  {name: "length", label: "sequence length", of: "job", options: powers(7, 20)},
  {name: "steps", label: "steps", of: "job", range: [0, 24.001, 0.5]},
  {name: "precision", label: "precision", of: "job", options: ["fp32", "bf16", "fp8", "mxfp8", "nvfp4"], optional: "the job's"},
  {name: "plan", label: "plan", of: "job", options: ["auto"], optional: "the job's"},
];
const FIXED = {tp: powers(0, 6), pp: [1, 2, 4, 8, 16, 32, 64], cp: powers(0, 6), zero: [0, 1, 2, 3], recompute: ["none", "selective", "full"]};
const HEAD = ["step_s", "mfu", "run_s", "goodput", "power_mean_w", "gpu_cost"];
const NAMES = {run_s: "run", gpu_cost: "GPU-hour cost", power_mean_w: "mean draw", step_s: "step", mfu: "MFU", goodput: "goodput"};
const STEP_PARTS = {compute_s: "compute", recompute_s: "redo", tensor_s: "exposed-communication", context_s: "restore", expert_s: "detect",
  pipeline_s: "input", bubble_s: "bubble", data_s: "evaluation", optimizer_s: "checkpoint", network_s: null};

export async function show(main, query) {
  const offered = await ask("/api/choices");
  const state = {offered, pins: kept("weft-pins", {}), now: null, values: {}, fixed: {}};
  const places = layout(main, state);
  state.site = query.get("site") || offered.sites.find((site) => site.name === "gb200-8x100g-131k")?.name || offered.sites[0].name;
  state.job = query.get("job") || offered.jobs.find((job) => job.name === "gpt-1t")?.name || offered.jobs[0].name;
  const again = later(() => recompute(places, state), PATIENCE_MS);
  controls(places, state, again);
  for (const [name, value] of query) {
    if (CONTROLS.some((each) => each.name === name)) state.values[name] = value;
    if (name in FIXED) state.fixed[name] = value;
  }
  controls(places, state, again);
  await recompute(places, state);
  onTheme(() => drawAll(places, state));
}

function layout(main, state) {
  const places = {};
  for (const name of ["controls", "problem", "tiles", "compare", "plans", "step", "memory", "power", "faults", "files", "took"]) {
    places[name] = el("div", {});
  }
  const pin = (name) => el("button", {type: "button", onclick: () => {
    state.pins[name] = state.now && {...state.now, name};
    keep("weft-pins", state.pins);
    drawAll(places, state);
  }}, `Pin as ${name}`);
  const tools = el("div", {class: "bar-of-tools"}, pin("A"), pin("B"),
    el("button", {type: "button", onclick: () => { state.pins = {}; keep("weft-pins", {}); drawAll(places, state); }}, "Unpin"),
    el("button", {type: "button", onclick: () => state.now && copy(state.now.command, "the command")}, "Copy as command"),
    el("button", {type: "button", onclick: () => state.now && copy(state.now.site_toml, "the site as TOML")}, "Copy site as TOML"),
    el("button", {type: "button", onclick: () => state.now && copy(state.now.job_toml, "the job as TOML")}, "Copy job as TOML"),
    places.took);
  places.body = el("div", {});
  put(main, el("h1", {}, "What-if"),
    el("div", {class: "side-by-side"},
      el("form", {class: "controls", "aria-label": "Site, job and changes", onsubmit: (event) => event.preventDefault()}, places.controls),
      el("div", {class: "answers"}, places.tiles, tools, places.problem, places.body)));
  put(places.body,
    el("section", {}, el("h2", {}, "The step"), places.step),
    el("div", {class: "columns"},
      el("section", {}, el("h2", {}, "Power at the meter"), places.power),
      el("section", {}, el("h2", {}, "Memory of a GPU"), places.memory)),
    el("div", {class: "columns"},
      el("section", {}, el("h2", {}, "What failures cost"), places.faults),
      el("section", {}, el("h2", {}, "Best plans"), places.plans)),
    el("section", {}, el("h2", {}, "Everything"), places.compare),
    el("section", {}, el("h2", {}, "The same on the command line"), places.files));
  return places;
}

function base(state) {
  const site = state.offered.sites.find((each) => each.name === state.site) || {};
  const job = state.offered.jobs.find((each) => each.name === state.job) || {};
  return {...job, ...site, nodes: site.gpus / site.node_gpus, plan: job.plan, precision: null, job, site};
}

function controls(places, state, again) {
  const known = base(state);
  const pick = (name, list) => el("label", {class: "control"}, el("span", {}, name),
    el("select", {onchange: (event) => { state[name] = event.target.value; state.values = {}; state.fixed = {}; controls(places, state, again); again(); }},
      list.map((each) => el("option", {value: each.name, selected: each.name === state[name], disabled: Boolean(each.error)},
        each.error ? `${each.name} (mistakes in it)` : each.name))));
  put(places.controls,
    el("fieldset", {}, el("legend", {}, "Site"), pick("site", state.offered.sites), el("p", {class: "quiet"}, known.site.description),
      CONTROLS.filter((each) => each.of === "site").map((each) => control(each, known, state, again))),
    el("fieldset", {}, el("legend", {}, "Job"), pick("job", state.offered.jobs), el("p", {class: "quiet"}, known.job.description),
      CONTROLS.filter((each) => each.of === "job").map((each) => control(each, known, state, again))),
    el("fieldset", {}, el("legend", {}, "Fix of the plan"),
      el("div", {class: "pairs"}, Object.entries(FIXED).map(([name, options]) => el("label", {class: "control"}, el("span", {}, name),
        el("select", {onchange: (event) => { setOr(state.fixed, name, event.target.value); again(); }},
          el("option", {value: ""}, "any"), options.map((each) => el("option", {value: each, selected: state.fixed[name] === String(each)}, each))))))),
    el("button", {type: "button", onclick: () => { state.values = {}; state.fixed = {}; controls(places, state, again); again(); }}, "As it was"));
}

function setOr(place, name, value) {
  if (value === "") delete place[name]; else place[name] = String(value);
}

function control(given, known, state, again) {
  const usual = known[given.name];
  const set = (value) => { setOr(state.values, given.name, String(value) === String(usual) ? "" : value); again(); };
  const now = state.values[given.name] ?? usual;
  if (given.options) {
    const options = given.optional || given.options.some((each) => String(each) === String(usual)) ? given.options : [usual, ...given.options];
    return el("label", {class: "control"}, el("span", {}, given.label),
      el("select", {name: given.name, onchange: (event) => set(event.target.value)},
        given.optional ? el("option", {value: ""}, given.optional) : null,
        options.map((each) => el("option", {value: each, selected: String(each) === String(now)}, given.optional ? each : shown(each)))));
  }
  const [low, high, step] = given.range;
  const factor = given.name === "nodes" ? known.node_gpus : 1;
  const box = el("input", {type: "number", name: given.name, min: 1, value: Math.round(now * factor), "aria-label": given.label});
  const slide = el("input", {type: "range", min: low, max: high, step, value: Math.log2(now), "aria-label": `${given.label}, slider`});
  slide.addEventListener("input", () => {
    const value = Math.max(1, round(2 ** slide.value));
    box.value = value * factor;
    set(value);
  });
  box.addEventListener("change", () => {
    const value = Math.max(1, Math.round(box.value / factor));
    box.value = value * factor;
    slide.value = Math.log2(value);
    set(value);
  });
  return el("div", {class: "control wide"}, el("span", {"aria-hidden": "true"}, given.label), box, slide);
}

const shown = (value) => (typeof value === "number" ? number(value) : value);

// Two digits that divide well: what lies between two powers of two is cut to the next quarter of the lower one.
function round(value) {
  const power = 2 ** Math.floor(Math.log2(value) + 1e-9);
  return power < 4 ? Math.round(value) : Math.round(value / (power / 4)) * (power / 4);
}

async function recompute(places, state) {
  const changes = Object.entries(state.values).sort(([one], [other]) => order(one) - order(other)).map(([name, value]) => `${name}=${value}`);
  const fixed = Object.entries(state.fixed).map(([name, value]) => `${name}=${value}`);
  const asked = {site: state.site, job: state.job, changes, fixed};
  const number_ = state.asked = (state.asked || 0) + 1;
  const begun = performance.now();
  history.replaceState(null, "", `?${new URLSearchParams({site: state.site, job: state.job, ...state.values, ...state.fixed})}`);
  try {
    const found = await ask("/api/what-if", asked);
    if (number_ !== state.asked) return;
    if (found.problem) throw new Error(found.problem);
    state.now = {...found, name: "now", asked};
    put(places.problem);
    put(places.took, el("span", {class: "quiet", id: "took"}, `${number(found.considered)} plans in ${seconds((performance.now() - begun) / 1000)}`));
    places.body.classList.remove("stale");
  } catch (error) {
    if (number_ !== state.asked) return;
    put(places.problem, el("p", {class: "problem", role: "alert"}, error.message));
    places.body.classList.add("stale");
    return;
  }
  drawAll(places, state);
}

const order = (name) => CONTROLS.findIndex((each) => each.name === name);

function columns(state) {
  return [state.now, state.pins.A, state.pins.B].filter(Boolean);
}

function drawAll(places, state) {
  if (!state.now) return;
  const all = columns(state);
  const line = (answer, key) => answer.lines.find((each) => each.key === key);
  const pinned = all[1];
  put(places.tiles, el("dl", {class: "tiles"}, HEAD.map((key) => {
    const mine = line(state.now, key);
    if (!mine) return null;
    return el("div", {}, el("dt", {}, NAMES[key]), el("dd", {}, figure(mine.predicted, mine.unit),
      pinned ? el("small", {}, `${pinned.name}: ${change(line(pinned, key)?.predicted, mine.predicted)}`) : null));
  }), el("div", {}, el("dt", {}, "plan"), el("dd", {}, planOf(state.now.chosen)))));
  drawStep(places.step, all);
  drawMemory(places.memory, all);
  drawPower(places.power, state.now, all);
  drawFaults(places.faults, all);
  put(places.plans, plansTable(state.now));
  put(places.compare, compareTable(all));
  put(places.files, el("pre", {id: "command", tabindex: 0}, state.now.command),
    el("details", {}, el("summary", {}, "site.toml"), el("pre", {tabindex: 0}, state.now.site_toml)),
    el("details", {}, el("summary", {}, "job.toml"), el("pre", {tabindex: 0}, state.now.job_toml)));
}

function change(before, now) {
  if (typeof before !== "number" || typeof now !== "number" || !before) return "-";
  const share = 100 * (now / before - 1);
  return Math.abs(share) < 0.05 ? "same" : `${share > 0 ? "+" : ""}${number(share)} %`;
}

function planOf(plan) {
  return ["dp", "tp", "pp", "cp", "ep"].filter((axis) => plan[axis] > 1).map((axis) => `${axis} ${number(plan[axis])}`).join(", ") || "one rank";
}

function compareTable(all) {
  const now = all[0];
  const rows = [];
  let section = "";
  for (const line of now.lines) {
    if (line.section !== section) { section = line.section; rows.push([el("strong", {}, section), ...all.map(() => "")]); }
    const cells = all.map((answer, place) => {
      const other = answer.lines.find((each) => each.key === line.key);
      if (!other) return ["-", true];
      const text = figure(other.predicted, other.unit);
      return [place ? el("span", {}, text, el("span", {class: "quiet"}, ` ${back(other.predicted, line.predicted)}`)) : text, true];
    });
    rows.push([line.what, ...cells]);
  }
  return table("everything, now and pinned", ["", ...all.map((each) => each.name === "now" ? "now" : `${each.name}: ${each.asked.job} on ${each.asked.site}`)], rows);
}

function back(pinned, now) {
  const text = change(now, pinned);
  return text === "-" || text === "same" ? "" : `(${text})`;
}

function plansTable(now) {
  return table("best plans", ["plan", "schedule", "step", "MFU", "memory", "limited by"], now.plans.map((plan) => [planOf(plan),
    `${plan.schedule}, ZeRO ${plan.zero}`, [seconds(plan.step_s), true], [`${number(100 * plan.mfu)} %`, true], [figure(plan.memory_bytes, "B"), true], plan.limit]));
}

// Horizontal bars, one for each answer, cut into parts by colour.
function drawParts(place, all, partsOf, total, format, label) {
  const most = Math.max(...all.map(total), 1e-12);
  const used = new Set();
  put(place, el("table", {class: "bars"}, el("caption", {}, label), el("tbody", {}, all.map((answer) => {
    const bar = el("span", {class: "parts"});
    for (const [name, shade, value] of partsOf(answer)) {
      if (!(value > 0)) continue;
      used.add(name);
      const piece = el("span", {title: `${name}: ${format(value)}`});
      piece.style.width = `${100 * value / most}%`;
      piece.style.background = colour(shade);
      bar.append(piece);
    }
    return el("tr", {}, el("th", {scope: "row"}, answer.name), el("td", {class: "track"}, bar), el("td", {class: "figure"}, format(total(answer))));
  }))), legend(partsOf(all[0]).filter(([name]) => used.has(name)).map(([name, shade, value]) => [name, colour(shade), format(value)])));
}

function drawStep(place, all) {
  drawParts(place, all, (answer) => Object.entries(answer.step).filter(([name]) => STEP_PARTS[name]).map(([name, value]) =>
    [words(name.replace(/_s$/, "")), STEP_PARTS[name], value]), (answer) => answer.chosen.step_s, seconds, "parts of a step");
}

function drawMemory(place, all) {
  const shades = ["compute", "exposed-communication", "bubble", "input", "checkpoint", "evaluation", "verify", "detect", "restore"];
  drawParts(place, all, (answer) => Object.entries(answer.memory.parts).filter(([name]) => name !== "total").map(([name, value], index) =>
    [words(name), shades[index % shades.length], value]), (answer) => answer.memory.parts.total ?? Object.values(answer.memory.parts).reduce((sum, value) => sum + value, 0),
  (value) => figure(value, "B"), "memory of a GPU by use");
  place.append(el("p", {class: "quiet"}, `a GPU has ${figure(all[0].memory.of, "B")}`));
}

function drawPower(place, now, all) {
  const lines = all.map((answer, index) => ({name: answer.name, x: answer.power.watts.map((_, at) => at / answer.power.per_second),
    y: answer.power.watts.map((watts) => watts / 1e6), stroke: series(index)}));
  const end = lines[0].x.at(-1);
  if (now.power.limit_w !== null) {
    lines.push({name: "contract", x: [0, end], y: [now.power.limit_w / 1e6, now.power.limit_w / 1e6], stroke: colour("bad"), dash: [6, 4]});
  }
  const shownLines = lines.map((line) => ({...line, x: line.x.filter((x) => x <= end), y: line.y.slice(0, line.x.filter((x) => x <= end).length)}));
  const chart = el("div", {});
  put(place, chart, el("p", {class: now.power.broken.length ? "problem" : "quiet"},
    now.power.broken.length ? `against the contract: ${now.power.broken.join(", ")}` : "inside the contract"),
  now.power.mitigations.length && now.power.broken.length ? table("power mitigations", ["mitigation", "energy", "slower", "left"],
    now.power.mitigations.map((each) => [each.name, [`+${number(100 * each.energy)} %`, true], [`${number(100 * each.slower)} %`, true],
      each.broken.join(", ") || "nothing"])) : null);
  lineChart(chart, {lines: shownLines, yLabel: "MW", xName: "s", xLabel: "seconds", height: 230, label: "power at the meter over a few steps"});
}

function drawFaults(place, all) {
  const rows = all[0].faults.filter((fault) => fault.gpu_hours > 0).sort((one, other) => other.gpu_hours - one.gpu_hours);
  if (!rows.length) { put(place, el("p", {class: "quiet"}, "nothing fails within the run")); return; }
  const most = rows[0].gpu_hours;
  put(place, el("table", {class: "bars"}, el("caption", {}, "GPU-hours that each kind of failure costs"), el("tbody", {}, rows.map((fault) => {
    const bar = el("span", {class: "bar"});
    bar.style.width = `${Math.max(0.2, 100 * fault.gpu_hours / most)}%`;
    bar.style.background = colour(fault.stops ? "redo" : "exposed-communication");
    return el("tr", {}, el("th", {scope: "row"}, fault.name), el("td", {class: "track"}, bar), el("td", {class: "figure"}, `${number(fault.gpu_hours)} GPU-h`));
  }))), legend([["stops the job", colour("redo")], ["slows it", colour("exposed-communication")]]));
}
