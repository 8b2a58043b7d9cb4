// Which page this address is, and what all pages have in common.
import {el, put, say} from "./dom.js";

const PAGES = {
  "/": ["runs", "./runs.js"],
  "/run": ["run", "./run.js"],
  "/what-if": ["what-if", "./what_if.js"],
  "/fabric": ["fabric", "./fabric.js"],
  "/cluster": ["cluster", "./cluster.js"],
};

const [title, module] = PAGES[location.pathname] || PAGES["/"];
document.title = `${title} · weft`;
const here = location.pathname === "/run" ? "/" : location.pathname;
for (const link of document.querySelectorAll("nav a")) {
  if (link.getAttribute("href") === here) link.setAttribute("aria-current", "page");
}
const main = document.getElementById("main");
try {
  const page = await import(module);
  await page.show(main, new URLSearchParams(location.search));
} catch (error) {
  say(error.message, true);
  put(main, el("h1", {}, title), el("p", {class: "problem", role: "alert"}, error.message));
}
document.documentElement.dataset.ready = "yes";
