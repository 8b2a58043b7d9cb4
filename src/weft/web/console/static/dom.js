// Elements, requests and figures. Text becomes text nodes and attributes are set by name, never parsed as markup:
// a run may be called <img src=x onerror=...>, and is shown so.

export function el(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (name === "value") made.value = value;
    else made.setAttribute(name, value === true ? "" : String(value));
  }
  made.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
  return made;
}

export function put(place, ...children) {
  place.replaceChildren(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
  return place;
}

export async function ask(path, body) {
  const request = body === undefined ? {} : {
    method: "POST", headers: {"content-type": "application/json"}, body: JSON.stringify(body),
  };
  let answer;
  try {
    answer = await fetch(path, request);
  } catch {
    throw new Error("the console does not answer; is weft ui still running?");
  }
  const found = await answer.json().catch(() => ({error: `status ${answer.status}`}));
  if (!answer.ok) throw new Error(found.error || `status ${answer.status}`);
  return found;
}

export function say(text, isError = false) {
  const place = document.getElementById("status");
  place.textContent = text;
  place.classList.toggle("error", isError);
}

export const words = (name) => name.replaceAll("_", " ");

export function number(value, digits = 3) {
  if (value === null || value === undefined || Number.isNaN(value)) return "-";
  const size = Math.abs(value);
  if (size >= 1e5 || Number.isInteger(value)) return Math.round(value).toLocaleString("en-US");
  if (size >= 100) return value.toLocaleString("en-US", {maximumFractionDigits: 0});
  if (size > 0 && size < 1e-3) return value.toExponential(digits - 1);
  return Number(value.toPrecision(digits)).toLocaleString("en-US", {maximumFractionDigits: 6});
}

const scaled = (value, steps, unit) => {
  const [size, prefix] = steps.find(([least]) => Math.abs(value) >= least) || steps[steps.length - 1];
  return `${number(value / size)} ${prefix}${unit}`;
};
const SI = [[1e18, "E"], [1e15, "P"], [1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"], [1, ""]];
const BINARY = [[2 ** 50, "Pi"], [2 ** 40, "Ti"], [2 ** 30, "Gi"], [2 ** 20, "Mi"], [2 ** 10, "Ki"], [1, ""]];

export function seconds(value) {
  if (value === null || value === undefined) return "-";
  if (value >= 2 * 86400) return `${number(value / 86400)} d`;
  if (value >= 2 * 3600) return `${number(value / 3600)} h`;
  if (value >= 300) return `${number(value / 60)} min`;
  if (value >= 1 || value === 0) return `${number(value)} s`;
  if (value >= 1e-3) return `${number(value * 1e3)} ms`;
  return `${number(value * 1e6)} us`;
}

export function figure(value, unit) {
  if (value === null || value === undefined) return "none expected";
  if (typeof value === "string") return value;
  if (unit === "s") return seconds(value);
  if (unit === "B") return scaled(value, BINARY, "B");
  if (unit === "W" || unit === "b/s" || unit === "J") return scaled(value, SI, unit);
  if (unit === "%") return `${number(value)} %`;
  return `${number(value)}${unit ? ` ${unit}` : ""}`;
}

export const clock = (ms) => new Date(ms).toLocaleTimeString("en-GB");

export function ago(ms) {
  const span = Math.max(0, (Date.now() - ms) / 1000);
  if (span < 90) return `${Math.round(span)} s ago`;
  if (span < 5400) return `${Math.round(span / 60)} min ago`;
  if (span < 2 * 86400) return `${Math.round(span / 3600)} h ago`;
  return `${Math.round(span / 86400)} d ago`;
}

export function later(action, ms) {
  let timer;
  return (...given) => {
    clearTimeout(timer);
    timer = setTimeout(() => action(...given), ms);
  };
}

export async function copy(text, what) {
  try {
    await navigator.clipboard.writeText(text);
    say(`${what} copied`);
  } catch {
    say(`${what} could not be copied: the browser does not allow it`, true);
  }
}

export function keep(name, value) {
  try { localStorage.setItem(name, JSON.stringify(value)); } catch { /* private windows keep nothing */ }
}

export function kept(name, otherwise) {
  try { return JSON.parse(localStorage.getItem(name)) ?? otherwise; } catch { return otherwise; }
}

export function table(caption, head, rows, attributes = {}) {
  const cell = (tag, value, column) => {
    const [text, right] = Array.isArray(value) ? value : [value, typeof value === "number"];
    return el(tag, {class: right ? "figure" : null, scope: tag === "th" && column === 0 ? "row" : null},
      text instanceof Node ? text : String(text ?? "-"));
  };
  return el("div", {class: "scroll", tabindex: 0, role: "region", "aria-label": caption}, el("table", attributes,
    el("caption", {}, caption),
    el("thead", {}, el("tr", {}, head.map((text, column) =>
      el("th", {scope: "col", class: rows.length && Array.isArray(rows[0][column]) && rows[0][column][1] ? "figure" : null}, text)))),
    el("tbody", {}, rows.map((row) => el("tr", {}, row.map((value, column) => cell(column ? "td" : "th", value, column)))))));
}
