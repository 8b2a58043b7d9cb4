// All runs, newest first; several can be laid over each other.
import {spark} from "./charts.js";
import {ago, ask, el, number, put, table} from "./dom.js";

export async function show(main) {
  const chosen = new Set();
  const list = el("div", {});
  const open = el("button", {type: "button", disabled: true, onclick: () => {
    const [first, ...rest] = [...chosen];
    const query = new URLSearchParams({run: first});
    for (const each of rest) query.append("with", each);
    location.href = `/run?${query}`;
  }}, "Lay over each other");
  put(main, el("h1", {}, "Runs"), el("div", {class: "bar-of-tools"}, open,
    el("span", {class: "quiet"}, "mark two or more")), list);
  let before = "";
  const refresh = async () => {
    const {runs} = await ask("/api/runs");
    const now = JSON.stringify(runs);
    if (now === before) return;
    before = now;
    if (!runs.length) {
      put(list, el("p", {class: "empty"}, "No runs here yet. ", el("code", {}, "weft train tiny-gpt --ui"),
        " makes one and shows it."));
      return;
    }
    put(list, table("runs", ["", "run", "state", "steps", "loss", "over steps", "incidents", "changed"],
      runs.map((run) => row(run, chosen, open))));
  };
  await refresh();
  setInterval(() => refresh().catch(() => {}), 2000);
}

function row(run, chosen, open) {
  const box = el("input", {type: "checkbox", "aria-label": `mark ${run.run}`, onchange: (event) => {
    if (event.target.checked) chosen.add(run.id); else chosen.delete(run.id);
    open.disabled = chosen.size < 2;
  }});
  box.checked = chosen.has(run.id);
  const link = el("a", {href: `/run?${new URLSearchParams({run: run.id})}`}, run.run);
  if (run.error) return [box, link, el("span", {class: "state bad", title: run.error}, "unreadable"), "", "", "", "", ""];
  return [box, link, el("span", {class: `state ${run.state}`}, run.state),
    [`${number(run.steps)} of ${number(run.steps_asked)}`, true], [number(run.loss, 4), true],
    spark(run.losses, `loss of ${run.run}`), [run.incidents ? number(run.incidents) : "none", true],
    [ago(run.changed_ms), true]];
}
