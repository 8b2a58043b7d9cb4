// A fabric as it is: every GPU a pixel, every plane a tile of T0 x T1; faults over time, and paths hop by hop.
import {colour, legend, lineChart, onTheme, parse, series} from "./charts.js";
import {ask, el, later, number, put, say, table} from "./dom.js";

const MAP_WIDTH = 512;

export async function show(main, query) {
  const {sites} = await ask("/api/choices");
  const state = {site: query.get("site") || "gb200-8x100g-131k", down: new Set((query.get("down") || "").split(",").filter(Boolean)),
    ends: [], at: null, playing: null};
  const places = layout(main, state, sites.filter((each) => !each.error));
  await open(places, state);
  onTheme(() => { paint(places, state); chart(places, state); });
}

function layout(main, state, sites) {
  const places = {};
  for (const name of ["facts", "tiles", "counts", "path", "failed", "scenario", "times", "series", "hover"]) places[name] = el("div", {});
  places.map = el("canvas", {class: "gpus", role: "img", tabindex: 0, "aria-label": "every GPU as one pixel; click two for a path"});
  const site = el("select", {"aria-label": "site", onchange: async (event) => {
    Object.assign(state, {site: event.target.value, down: new Set(), ends: [], at: null});
    await open(places, state);
  }}, sites.map((each) => el("option", {value: each.name, selected: each.name === state.site}, each.name)));
  const part = el("input", {type: "text", placeholder: "t1-p0-i7, link0-p3-i1000", "aria-label": "part that fails", size: 24});
  const fail = el("form", {class: "bar-of-tools", onsubmit: async (event) => {
    event.preventDefault();
    const names = part.value.split(",").map((each) => each.trim()).filter(Boolean);
    const before = new Set(state.down);
    names.forEach((name) => state.down.add(name));
    state.at = null;
    if (await refresh(places, state)) part.value = ""; else { state.down = before; await refresh(places, state, false); }
  }}, el("label", {}, "fail a part ", part), el("button", {type: "submit"}, "Fail it"),
  el("button", {type: "button", onclick: () => { state.down.clear(); state.at = null; refresh(places, state); }}, "Heal all"));
  places.src = el("input", {type: "number", min: 0, "aria-label": "from NIC", value: 5});
  places.dst = el("input", {type: "number", min: 0, "aria-label": "to NIC", value: 9});
  places.ev = el("input", {type: "number", min: 0, "aria-label": "entropy value", value: 0});
  const walk = el("form", {class: "bar-of-tools", onsubmit: (event) => { event.preventDefault(); follow(places, state); }},
    el("label", {}, "from NIC ", places.src), el("label", {}, "to NIC ", places.dst), el("label", {}, "entropy value ", places.ev),
    el("button", {type: "submit"}, "Follow the packet"));
  places.map.addEventListener("click", (event) => choose(places, state, event));
  places.map.addEventListener("mousemove", (event) => {
    const nic = nicAt(places.map, event, state);
    put(places.hover, nic === null ? "" : `GPU ${number(nic)}, T0 ${Math.floor(nic / state.shape.down)}: ${planesOf(state, nic)}`);
  });
  put(main, el("h1", {}, "Fabric"), el("div", {class: "bar-of-tools"}, el("label", {}, "site ", site), places.facts),
    fail, places.failed,
    el("div", {class: "fabric"},
      el("section", {}, el("h2", {}, "GPUs, one pixel each"), places.map,
        el("p", {class: "quiet", id: "hover"}, places.hover), places.counts),
      el("section", {}, el("h2", {}, "Planes: T0 across, T1 down"), places.tiles)),
    el("section", {}, el("h2", {}, "Path of a packet"), el("p", {class: "quiet"}, "Click two GPUs on the map, or name them."), walk, places.path),
    el("section", {}, el("h2", {}, "Faults over time"), places.scenario, places.times, places.series));
  return places;
}

async function open(places, state) {
  try {
    state.shape = await ask(`/api/fabric?${new URLSearchParams({site: state.site})}`);
  } catch (error) { say(error.message, true); return; }
  const shape = state.shape;
  put(places.facts, el("span", {class: "quiet"}, `${number(shape.nics)} NICs of ${shape.nic_rate}, ${shape.planes} planes of ${shape.port_rate}, `
    + `${shape.tiers} tiers: ${number(shape.planes * shape.t0)} T0${shape.t1 ? `, ${number(shape.planes * shape.t1)} T1` : ""}${shape.t2 ? `, ${number(shape.planes * shape.t2)} T2` : ""}`));
  places.src.value = Math.min(5, shape.nics - 1);
  places.dst.value = Math.floor(shape.nics * 0.77);
  state.walked = null;
  for (const each of [places.src, places.dst]) each.max = shape.nics - 1;
  places.ev.max = shape.evs - 1;
  put(places.tiles, el("div", {class: "planes"}, Array.from({length: shape.planes}, (_, plane) => el("figure", {},
    el("canvas", {role: "img", "data-plane": plane, "aria-label": `links between T0 and T1 of plane ${plane}`}), el("figcaption", {}, `plane ${plane}`)))));
  put(places.path);
  offerScenarios(places, state);
  await refresh(places, state);
}

async function refresh(places, state, loud = true) {
  const asked = new URLSearchParams({site: state.site, down: [...state.down].join(",")});
  try {
    state.affected = await ask(`/api/fabric/affected?${asked}`);
  } catch (error) {
    if (loud) say(error.message, true);
    return false;
  }
  // Before the page is changed: then no style has to be worked out again in between.
  paint(places, state);
  say("");
  history.replaceState(null, "", `?${asked}`);
  put(places.failed, [...state.down].map((name) => el("button", {type: "button", class: "part", "aria-label": `heal ${name}`, onclick: () => {
    state.down.delete(name);
    refresh(places, state);
  }}, `${name} \u00d7`)));
  const found = state.affected;
  put(places.counts, legend([["all planes", colour("map-good"), number(state.shape.nics - found.nics_affected)],
    ["some planes lost", colour("map-some"), number(found.nics_affected - found.nics_cut_off)],
    ["cut off", colour("bad"), number(found.nics_cut_off)]]));
  if (state.walked) await follow(places, state);
  return true;
}

// GPUs of one T0 are a block of pixels, so that what shares switches lies together; 131,072 GPUs fill 512 x 256.
function plot(shape) {
  const wide = 2 ** Math.ceil(Math.log2(Math.sqrt(shape.down))), tall = Math.ceil(shape.down / wide);
  const across = Math.max(1, Math.min(Math.floor(MAP_WIDTH / wide), Math.ceil(Math.sqrt(2 * shape.t0 * tall / wide))));
  return {
    width: across * wide, height: Math.ceil(shape.t0 / across) * tall,
    at(nic) {
      const t0 = Math.floor(nic / shape.down), place = nic % shape.down;
      return [(t0 % across) * wide + place % wide, Math.floor(t0 / across) * tall + Math.floor(place / wide)];
    },
    nic(x, y) {
      const inside = (y % tall) * wide + x % wide, t0 = Math.floor(y / tall) * across + Math.floor(x / wide);
      const found = t0 * shape.down + inside;
      return inside < shape.down && found < shape.nics ? found : null;
    },
  };
}

function planesOf(state, nic) {
  const run = state.affected.runs.find(([first, count]) => nic >= first && nic < first + count);
  if (!run) return `all ${state.shape.planes} planes`;
  const lost = Array.from({length: state.shape.planes}, (_, plane) => plane).filter((plane) => run[2] & (1 << plane));
  return `without plane ${lost.join(", ")}`;
}

const pack = ([r, g, b]) => ((255 << 24) | (b << 16) | (g << 8) | r) >>> 0;

// Where each GPU lies and how it looks when it is well: made once for a fabric and a theme, and only copied afterwards.
function wellMap(state) {
  const {shape} = state, good = [pack(parse(colour("map-good"))), pack(parse(colour("map-other")))];
  const drawn = state.well;
  if (drawn?.shape === shape && drawn.good.every((shade, index) => shade === good[index])) return drawn;
  const map = plot(shape), pixels = new Uint32Array(map.width * map.height), place = new Uint32Array(shape.nics);
  const block = Math.max(1, map.at(shape.down - 1)[0] + 1), rows = map.at(shape.down - 1)[1] + 1;
  for (let nic = 0; nic < shape.nics; nic += 1) {
    const [x, y] = map.at(nic);
    place[nic] = y * map.width + x;
    // Two shades by T0, so that it is seen which GPUs share switches.
    pixels[place[nic]] = good[(Math.floor(x / block) + Math.floor(y / rows)) % 2];
  }
  return state.well = {shape, good, map, pixels, place};
}

function paint(places, state) {
  const began = performance.now();
  const {shape, affected} = state;
  const well = wellMap(state), map = state.plot = well.map, wide = map.width;
  const canvas = places.map;
  if (canvas.width !== wide || canvas.height !== map.height) Object.assign(canvas, {width: wide, height: map.height});
  const pen = canvas.getContext("2d"), image = pen.createImageData(wide, map.height);
  const pixels = new Uint32Array(image.data.buffer);
  pixels.set(well.pixels);
  const bad = pack(parse(colour("bad"))), some = parse(colour("map-some")), worse = parse(colour("bad"));
  for (const [first, count, mask] of affected.runs) {
    let lost = 0;
    for (let plane = 0; plane < shape.planes; plane += 1) if (mask & (1 << plane)) lost += 1;
    const share = shape.planes > 1 ? (lost - 1) / (shape.planes - 1) : 1;
    const shade = lost === shape.planes ? bad : pack(some.map((value, index) => Math.round(value + (worse[index] - value) * 0.7 * share)));
    for (let nic = first, end = Math.min(first + count, shape.nics); nic < end; nic += 1) pixels[well.place[nic]] = shade;
  }
  pen.putImageData(image, 0, 0);
  pen.strokeStyle = colour("text");
  pen.lineWidth = 2;
  // One lost GPU among 131,072 is one pixel: a ring says where to look.
  for (const [first, count] of affected.runs) if (count < 16) ring(pen, map.at(first), colour("bad"));
  state.ends.forEach((nic) => ring(pen, map.at(nic), colour("path")));
  for (const tile of places.tiles.querySelectorAll("canvas")) paintTile(tile, state);
  performance.measure("map", {start: began, end: performance.now()});
}

function ring(pen, [x, y], shade) {
  pen.strokeStyle = shade;
  pen.lineWidth = 1.5;
  pen.beginPath();
  pen.arc(x + 0.5, y + 0.5, 5, 0, 2 * Math.PI);
  pen.stroke();
}

function paintTile(tile, state) {
  const {shape, affected} = state, plane = Number(tile.dataset.plane);
  const rows = Math.max(1, shape.t1), wide = Math.max(1, shape.t0);
  tile.width = wide;
  tile.height = rows;
  const pen = tile.getContext("2d");
  pen.fillStyle = colour("map-good");
  pen.fillRect(0, 0, wide, rows);
  pen.fillStyle = colour("bad");
  // A switch is one line of hundreds; on a small tile it must still be seen.
  const thick = Math.ceil(wide / 90), flat = Math.ceil(rows / 45);
  for (const [of, t0, t1] of affected.links) if (of === plane) pen.fillRect(t0, t1, thick, flat);
  for (const hop of (state.walked?.hops || [])) {
    if (hop.plane !== plane) continue;
    pen.fillStyle = colour("path");
    if (hop.tier === "t0") pen.fillRect(hop.index, 0, thick, rows);
    if (hop.tier === "t1") pen.fillRect(0, hop.index, wide, flat);
  }
}

function nicAt(canvas, event, state) {
  const box = canvas.getBoundingClientRect();
  const x = Math.floor((event.clientX - box.left) / box.width * canvas.width), y = Math.floor((event.clientY - box.top) / box.height * canvas.height);
  return state.plot.nic(x, y);
}

function choose(places, state, event) {
  const nic = nicAt(places.map, event, state);
  if (nic === null) return;
  state.ends = state.ends.length === 1 ? [...state.ends, nic] : [nic];
  if (state.ends.length === 2) {
    [places.src.value, places.dst.value] = state.ends;
    follow(places, state);
  } else { places.src.value = nic; say("click another GPU"); }
  paint(places, state);
}

async function follow(places, state) {
  const asked = new URLSearchParams({site: state.site, src: places.src.value, dst: places.dst.value, ev: places.ev.value,
    down: [...state.down].join(",")});
  try {
    state.walked = await ask(`/api/fabric/path?${asked}`);
  } catch (error) { say(error.message, true); return; }
  say("");
  const found = state.walked;
  state.ends = [Number(places.src.value), Number(places.dst.value)];
  put(places.path, el("p", {}, `EV ${found.ev} of ${number(found.evs)} (${found.ev_name}), SRv6 address `, el("code", {}, found.carrier), " ",
    el("span", {class: found.arrived ? "state finished" : "state bad"}, found.arrived ? "arrives" : found.death || "does not arrive")),
  el("ol", {class: "hops", tabindex: 0, "aria-label": "hops"}, found.hops.map((hop) => el("li", {}, el("strong", {}, hop.node),
    el("span", {class: "quiet"}, hop.matched.length ? `matches ${hop.matched.join(", ")}` : ""), el("code", {}, hop.address),
    hop.link ? el("span", {class: "quiet"}, `port ${hop.port}, ${hop.link}`) : null))));
  paint(places, state);
}

function offerScenarios(places, state) {
  const list = state.shape.scenarios;
  put(places.times);
  put(places.series);
  if (!list.length) {
    put(places.scenario, el("p", {class: "quiet"}, "No built-in scenario breaks this fabric. ", el("code", {}, "weft simulate SCENARIO --series FILE.jsonl"),
      " in the console's folder keeps a simulation to be played here."));
  } else {
    const select = el("select", {"aria-label": "scenario", onchange: () => { state.scenario = list[select.value]; clock(places, state); }},
      list.map((each, index) => el("option", {value: index}, each.name)));
    put(places.scenario, el("div", {class: "bar-of-tools"}, el("label", {}, "scenario ", select)));
    [state.scenario] = list;
    clock(places, state);
  }
  chart(places, state);
}

// The scenario's clock: a slider with a tick at each fault; what is down at a time is what the map shows.
function clock(places, state) {
  const faults = state.scenario.faults;
  const moments = faults.flatMap((fault) => [fault.at_us, fault.lasts_us === null ? fault.at_us : fault.at_us + fault.lasts_us]);
  const ends = Math.max(...moments, ...state.shape.series.flatMap((kept) => Object.values(kept.transports).map((each) => each.time_us.at(-1)))) * 1.2;
  const slider = el("input", {type: "range", min: 0, max: ends, step: ends / 600, value: 0, "aria-label": "time of the simulation", list: "faults"});
  const shown = el("output", {}, "0 us");
  const apply = later(() => {
    const at = Number(slider.value);
    state.at = at;
    state.down = new Set(faults.filter((fault) => /down|hole/.test(fault.kind) && fault.at_us <= at
      && (fault.lasts_us === null || at < fault.at_us + fault.lasts_us)).map((fault) => fault.target));
    refresh(places, state);
    cursor(places, state);
  }, 30);
  slider.addEventListener("input", () => { shown.textContent = `${number(Number(slider.value))} us`; apply(); });
  const play = el("button", {type: "button", onclick: () => {
    if (state.playing) { clearInterval(state.playing); state.playing = null; play.textContent = "Play"; return; }
    if (Number(slider.value) >= ends) slider.value = 0;
    play.textContent = "Pause";
    state.playing = setInterval(() => {
      slider.value = Number(slider.value) + ends / 120;
      slider.dispatchEvent(new Event("input"));
      if (Number(slider.value) >= ends * 0.999) { clearInterval(state.playing); state.playing = null; play.textContent = "Play"; }
    }, 100);
  }}, "Play");
  put(places.times, el("p", {class: "quiet"}, state.scenario.description),
    el("div", {class: "clock"}, play, slider, shown, el("datalist", {id: "faults"}, faults.map((fault) => el("option", {value: fault.at_us})))),
    table("faults", ["at", "for", "kind", "part"], faults.map((fault) => [`${number(fault.at_us)} us`,
      fault.lasts_us === null ? "the rest" : `${number(fault.lasts_us)} us`, fault.kind, fault.target])));
}

function chart(places, state) {
  const kept = state.shape?.series || [];
  if (!kept.length) return;
  put(places.series, kept.map((one) => {
    const place = el("div", {});
    requestAnimationFrame(() => {
      const lines = Object.entries(one.transports).map(([name, each], index) => ({name, x: each.time_us, y: each.rate_bps.map((rate) => rate / 1e9), stroke: series(index)}));
      lineChart(place, {lines, marks: (state.scenario?.faults || []).map((fault) => ({x: fault.at_us, colour: colour("bad")})),
        yLabel: "Gb/s", xLabel: "microseconds", xName: "us", height: 220, label: `goodput of ${one.name}`});
    });
    return el("div", {}, el("h3", {}, one.name), place);
  }));
}

function cursor(places, state) {
  for (const plot of places.series.querySelectorAll(".u-over")) {
    let line = plot.querySelector(".now");
    if (!line) { line = el("div", {class: "now"}); plot.append(line); }
    const last = Math.max(...state.shape.series.flatMap((kept) => Object.values(kept.transports).map((each) => each.time_us.at(-1))));
    line.style.left = `${Math.min(100, 100 * state.at / last)}%`;
  }
}
