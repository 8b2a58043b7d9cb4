// What running gangs draw, as jobs and policy declare it, against what the policy allows; nothing here is measured.
import {LEFT, RIGHT, axes, canvas, colour} from "./charts.js";
import {clock, el, figure, put} from "./dom.js";

const SECOND_MS = 1000;
const watts = (value) => figure(value, "W");

export function powerInWords(power) {
  if (!power.draw.some((each) => each[1]) && !power.now_w) return "none declared";
  return power.site_w === null ? watts(power.now_w) : `${watts(power.now_w)} of ${watts(power.site_w)}`;
}

// The largest change of the draw between any two moments that are a second apart or less.
export function steepest(draw) {
  let most = 0;
  draw.forEach(([at, after], index) => {
    let before = index ? draw[index - 1][1] : after;
    for (let past = index - 1; past >= 0 && at - draw[past][0] < SECOND_MS; past -= 1) before = past ? draw[past - 1][1] : draw[past][1];
    most = Math.max(most, Math.abs(after - before));
  });
  return most;
}

export function drawPower(place, seen, {now, begins, ends}) {
  const {draw, site_w: most, ramp_w_per_s: ramp, now_w: present} = seen.power;
  if (!present && !draw.some((each) => each[1])) {
    put(place, el("p", {class: "quiet"}, "No draw is declared: a policy file says power.node_idle, power.gpu_rise, power.site and power.ramp_per_second."));
    return;
  }
  if (!place.querySelector("canvas")) put(place, el("div", {}), el("p", {class: "quiet"}));
  const [chart, words] = place.children;
  const known = draw.filter((each) => each[0] >= begins), first = draw.findLast((each) => each[0] < begins);
  const points = [[begins, first ? first[1] : known[0]?.[1] ?? present], ...known, [now, present]];
  const width = place.clientWidth, height = 150, bottom = 24, top = 8, high = 1.1 * Math.max(most || 0, ...points.map((each) => each[1]));
  const pen = canvas(chart, width, height, "declared draw over time");
  const x = (value) => LEFT + (width - LEFT - RIGHT) * (now + value * 1000 - begins) / (ends - begins);
  const y = (value) => top + (height - bottom - top) * (1 - value / high);
  axes(pen, {width, height, bottom, top, low: 0, high, x, range: [(begins - now) / 1000, (ends - now) / 1000], format: watts,
    formatX: (value) => (value === 0 ? "now" : clock(now + value * 1000))});
  pen.strokeStyle = colour("link"); pen.lineWidth = 2;
  pen.beginPath();
  points.forEach(([at, value], index) => {
    const left = x((at - now) / 1000);
    if (!index) pen.moveTo(left, y(value)); else { pen.lineTo(left, y(points[index - 1][1])); pen.lineTo(left, y(value)); }
  });
  pen.stroke();
  if (most !== null) {
    pen.strokeStyle = colour("bad"); pen.setLineDash([6, 4]);
    pen.beginPath(); pen.moveTo(LEFT, y(most)); pen.lineTo(width - RIGHT, y(most)); pen.stroke();
    pen.setLineDash([]);
  }
  const steep = steepest(known), limit = ramp === null ? "" : `, of at most ${watts(ramp)}`;
  put(words, `${powerInWords(seen.power)}; largest change within a second ${watts(steep)}${limit}`);
}
