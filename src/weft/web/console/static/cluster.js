// The cluster of this machine: who ran where, who waits and why, how nodes are, and every decision by its time.
import {LEFT, RIGHT, canvas, colour, onTheme, onWidth, series, steps} from "./charts.js";
import {drawPower, powerInWords} from "./cluster_power.js";
import {ask, clock, el, number, put, say, table} from "./dom.js";

const LOOK_MS = 1000;
const USABLE = new Set(["ready", "joining", "preflight"]);

export async function show(main) {
  const state = {seen: null, at: null};
  const places = layout(main, state);
  const look = async () => {
    const seen = await ask("/api/cluster");
    const before = state.seen;
    state.seen = seen;
    if (!before || JSON.stringify({...before, status: null}) !== JSON.stringify({...seen, status: null}) || nodesOf(before) !== nodesOf(seen)) draw(places, state);
    else { gantt(places, state); drawPower(places.power, seen, windowOf(seen)); }
  };
  await look();
  setInterval(() => look().catch((error) => say(error.message, true)), LOOK_MS);
  onTheme(() => draw(places, state));
  onWidth(places.gantt, () => state.seen?.up && (gantt(places, state), drawPower(places.power, state.seen, windowOf(state.seen))));
}

const nodesOf = (seen) => JSON.stringify(seen.status?.nodes?.map((node) => [node.state, node.jobs]));

function layout(main, state) {
  const places = {};
  for (const name of ["tiles", "body", "down", "gantt", "power", "queue", "nodes", "decision", "teams"]) places[name] = el("div", {});
  places.slider = el("input", {type: "range", min: 0, max: 0, value: 0, "aria-label": "decision"});
  places.when = el("output", {});
  places.slider.addEventListener("input", () => { state.at = Number(places.slider.value); decision(places, state); gantt(places, state); });
  const move = (by) => () => {
    places.slider.value = Number(places.slider.value) + by;
    places.slider.dispatchEvent(new Event("input"));
  };
  put(places.body,
    el("section", {}, el("h2", {}, "Gangs over time"), places.gantt),
    el("section", {}, el("h2", {}, "Declared power"), places.power),
    el("section", {}, el("h2", {}, "Decisions"), el("div", {class: "clock"}, el("button", {type: "button", onclick: move(-1), "aria-label": "decision before"}, "\u2190"),
      places.slider, el("button", {type: "button", onclick: move(1), "aria-label": "decision after"}, "\u2192"), places.when), places.decision),
    el("div", {class: "columns"}, el("section", {}, el("h2", {}, "Queue"), places.queue), el("section", {}, el("h2", {}, "Nodes"), places.nodes)),
    el("section", {}, el("h2", {}, "Teams"), places.teams));
  put(main, el("h1", {}, "Cluster"), places.down, places.tiles, places.body);
  return places;
}

function draw(places, state) {
  const seen = state.seen;
  places.body.hidden = !seen.up;
  if (!seen.up) {
    put(places.tiles);
    put(places.down, el("p", {class: "empty"}, seen.problem));
    return;
  }
  put(places.down);
  const status = seen.status, gpus = status.nodes.reduce((sum, node) => sum + node.gpus, 0);
  const held = status.teams.reduce((sum, team) => sum + team.holds_gpus, 0);
  put(places.tiles, el("dl", {class: "tiles"}, [["nodes", number(status.nodes.length)], ["GPUs in use", `${number(held)} of ${number(gpus)}`],
    ["running", number(status.jobs.running || 0)], ["waiting", number(status.jobs.waiting || 0)],
    ["declared draw", powerInWords(seen.power)], ["engine", status.health.state], ["alarms", status.alarms.length ? status.alarms.join(", ") : "none"]]
    .map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, value)))));
  gantt(places, state);
  drawPower(places.power, seen, windowOf(seen));
  queue(places, state);
  nodes(places, state);
  put(places.teams, table("teams", ["team", "quota", "holds"], status.teams.map((team) => [team.name, [number(team.quota_gpus), true], [number(team.holds_gpus), true]])));
  const following = state.at === null || state.at >= Number(places.slider.max);
  places.slider.max = Math.max(0, seen.decisions.length - 1);
  if (following) state.at = Number(places.slider.max);
  places.slider.value = state.at;
  decision(places, state);
}

// The hour, or less, that is shown, and what is promised after it.
function windowOf(seen) {
  const now = seen.status.now_ms;
  const promised = seen.jobs.filter((job) => job.state === "waiting" && seen.why[job.id]?.expected_ms)
    .map((job) => ({job: job.id, at: seen.why[job.id].expected_ms, early: seen.why[job.id].early_ms, late: seen.why[job.id].late_ms}));
  const begins = Math.max(Math.min(...seen.spans.map((span) => span.from_ms), now - 60_000), now - 3_600_000);
  const ends = Math.max(now + (now - begins) * 0.15, ...promised.map((each) => Math.min(each.late || each.at, now + (now - begins)) + 10_000));
  return {now, begins, ends, promised};
}

// Gangs as bars on their nodes; jobs that wait begin where they are promised, as outlines in the future.
function gantt(places, state) {
  const seen = state.seen;
  if (!seen?.up) return;
  const names = seen.status.nodes.map((node) => node.name), {now, begins, ends, promised} = windowOf(seen);
  const row = Math.max(12, Math.min(26, 420 / Math.max(1, names.length))), top = 6, bottom = 24;
  const extra = promised.length ? Math.min(promised.length, 8) * 20 + 8 : 0;
  const width = places.gantt.clientWidth, height = names.length * row + extra + top + bottom;
  const pen = canvas(places.gantt, width, height, `${seen.spans.length} gangs on ${names.length} nodes over time`);
  const x = (ms) => LEFT + (width - LEFT - RIGHT) * (Math.max(begins, Math.min(ends, ms)) - begins) / (ends - begins);
  pen.strokeStyle = colour("grid");
  names.forEach((name, index) => {
    pen.beginPath(); pen.moveTo(LEFT, top + (index + 1) * row - 0.5); pen.lineTo(width - RIGHT, top + (index + 1) * row - 0.5); pen.stroke();
    if (index % Math.ceil(14 / row) === 0) {
      pen.fillStyle = colour("quiet"); pen.textAlign = "right"; pen.textBaseline = "middle";
      pen.fillText(name, LEFT - 8, top + (index + 0.5) * row);
    }
  });
  const order = new Map([...new Set(seen.spans.map((span) => span.job))].map((job, index) => [job, index]));
  for (const change of seen.node_states) {
    if (USABLE.has(change.state) || change.at_ms < begins) continue;
    const next = seen.node_states.find((each) => each.node === change.node && each.at_ms > change.at_ms);
    pen.fillStyle = colour("bad"); pen.globalAlpha = 0.25;
    pen.fillRect(x(change.at_ms), top + change.node * row, Math.max(2, x(next ? next.at_ms : now) - x(change.at_ms)), row - 1);
    pen.globalAlpha = 1;
  }
  for (const span of seen.spans) {
    if ((span.to_ms || now) < begins) continue;
    for (const node of span.nodes) {
      const left = x(span.from_ms), wide = Math.max(2, x(span.to_ms || now) - left);
      pen.fillStyle = series(order.get(span.job));
      pen.fillRect(left, top + node * row + 2, wide, row - 4);
      if (wide > 7 * span.job.length) {
        pen.fillStyle = colour("card"); pen.textAlign = "left"; pen.textBaseline = "middle";
        pen.fillText(span.job, left + 5, top + (node + 0.5) * row);
      }
    }
  }
  promised.slice(0, 8).forEach((each, index) => {
    const y = top + names.length * row + 8 + index * 20;
    pen.strokeStyle = pen.fillStyle = colour("ghost"); pen.setLineDash([4, 3]); pen.lineWidth = 1.5;
    const left = x(each.early || each.at), right = x(each.late || each.at);
    pen.strokeRect(left, y, Math.max(8, right - left), 15);
    pen.setLineDash([]); pen.textBaseline = "middle";
    const label = `${each.job}, promised ${clock(each.at)}`, before = left - 8 - pen.measureText(label).width > x(now);
    pen.textAlign = before ? "right" : "left";
    pen.fillText(label, before ? left - 6 : left + 8, y + 7);
  });
  line(pen, x(now), top, height - bottom, colour("text"), []);
  const chosen = seen.decisions[state.at];
  if (chosen && chosen.at_ms >= begins) line(pen, x(chosen.at_ms), top, height - bottom, colour("link"), [4, 3]);
  pen.lineWidth = 1;
  steps(pen, {width, height, bottom, x: (value) => x(now + value * 1000), range: [(begins - now) / 1000, (ends - now) / 1000],
    format: (value) => (value === 0 ? "now" : clock(now + value * 1000))});
}

function line(pen, at, top, bottom, shade, dash) {
  pen.strokeStyle = shade; pen.lineWidth = 1.5; pen.setLineDash(dash);
  pen.beginPath(); pen.moveTo(at, top); pen.lineTo(at, bottom); pen.stroke();
  pen.setLineDash([]);
}

async function change(path, text) {
  if (!confirm(`${text}?`)) return;
  try { await ask(path, {}); say(`${text}: asked`); } catch (error) { say(error.message, true); }
}

function queue(places, state) {
  const seen = state.seen;
  const open = seen.jobs.filter((job) => job.ended_ms === null);
  if (!open.length) { put(places.queue, el("p", {class: "quiet"}, "Nothing runs or waits.")); return; }
  put(places.queue, table("queue", ["job", "state", "team", "GPUs", "why", "promised", ""], open.slice(0, 60).map((job) => {
    const why = seen.why[job.id];
    return [job.id, el("span", {class: `state ${job.state}`}, job.state), job.team, [number(job.nodes * job.gpus_per_node), true],
      why ? why.text : job.on.length ? `on ${job.on.join(", ")}` : job.text, why?.expected_ms ? clock(why.expected_ms) : "-",
      el("button", {type: "button", "aria-label": `cancel ${job.id}`, onclick: () => change(`/api/cluster/jobs/${encodeURIComponent(job.id)}/cancel`, `cancel ${job.id}`)}, "Cancel")];
  })));
}

function nodes(places, state) {
  put(places.nodes, table("nodes", ["node", "state", "GPUs", "jobs", "seen", ""], state.seen.status.nodes.map((node) => {
    const back = Boolean(node.override) || !USABLE.has(node.state);
    const verb = back ? "undrain" : "drain";
    const evidence = node.override_by || node.evidence.slice(-1).map((one) => one.text || one.check).join("; ");
    return [node.name, el("span", {class: `state ${node.state}`}, node.state), [number(node.usable_gpus), true], node.jobs.join(", ") || "none", evidence || "-",
      el("button", {type: "button", "aria-label": `${back ? "return" : "cordon"} ${node.name}`, onclick: () => change(`/api/cluster/nodes/${encodeURIComponent(node.name)}/${verb}`,
        `${back ? "return" : "cordon"} ${node.name}`)}, back ? "Return" : "Cordon")];
  })));
}

function decision(places, state) {
  const chosen = state.seen.decisions[state.at];
  if (!chosen) { put(places.decision, el("p", {class: "quiet"}, "Nothing has been decided yet.")); put(places.when); return; }
  put(places.when, `${new Date(chosen.at_ms).toLocaleString("en-GB")}, ${state.at + 1} of ${state.seen.decisions.length}`);
  const around = state.seen.decisions.slice(Math.max(0, state.at - 3), state.at + 1).reverse();
  put(places.decision, el("ol", {class: "decisions"}, around.flatMap((one, place) => one.actions.slice(0, 40).map((action) =>
    el("li", {class: place ? "quiet" : null}, el("time", {}, clock(one.at_ms)), " ", action.text)))));
}
