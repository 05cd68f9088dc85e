// The scenario: its sliders, and what theory, test and simulation say of it as they come.
import * as charts from "./charts.js";
import { follow } from "./live.js";
import { lines } from "./lines.js";

const { element, shown } = charts;
const byId = (id) => document.getElementById(id);
// What the scenario has no meaning for is not in the state, and has no field.
const FIELDS = {
  model: ["Model", ""],
  gpu: ["GPU", ""],
  tensor_parallel: ["GPUs", "a replica"],
  prompt: ["Prompt", "tokens"],
  output: ["Output", "tokens"],
  target: ["Targets", "ttft_p99<2s, tpot_p99<60ms"],
  rate: ["Rate", "requests/s"],
  replicas: ["Replicas", ""],
  router: ["Router", ""],
  policy: ["Scheduler", ""],
  token_budget: ["Token budget", ""],
  max_batch_size: ["Max batch size", ""],
};
const WIDE = ["model", "target"];
const STATISTICS = ["mean", "p50", "p90", "p95", "p99"];
const METRICS = { ttft_s: "TTFT, s", tbt_s: "TBT, s", e2e_s: "E2E, s" };

let state, current = null, waiting = false, movedAt = 0;
let values = {}, known = {}, simulated = null, fresh = false;

async function begin() {
  state = await (await fetch("state")).json();
  byId("name").textContent = state.name;
  state.values = texts(state.values);
  for (const [name, choices] of Object.entries(state.choices)) state.choices[name] = choices.map(text);
  values = { ...state.values, ...Object.fromEntries([...new URLSearchParams(location.search)].filter(([name]) => name in state.values)) };
  build();
  byId("reset").addEventListener("click", () => { values = { ...state.values }; fill(); changed(); });
  document.querySelector("form").addEventListener("submit", (event) => event.preventDefault());
  tabs();
  new ResizeObserver(draw).observe(byId("answers"));
  changed();
}

// Values are texts, as fields have them; empty is a limit that is not given.
const text = (value) => String(value ?? "");
const texts = (given) => Object.fromEntries(Object.entries(given).map(([name, value]) => [name, text(value)]));
const shownFields = () => Object.keys(FIELDS).filter((name) => name in state.values);
const isList = (name) => state.choices[name]?.some((choice) => Number.isNaN(Number(choice)));

function build() {
  const place = document.querySelector(".fields");
  let column = 0;
  for (const name of shownFields()) {
    column = WIDE.includes(name) ? 0 : (column % 2) + 1;
    const [label, unit] = FIELDS[name], choices = state.choices[name];
    const set = (value) => { values[name] = value.trim(); changed(); };
    const parts = [element("label", { for: name }, label, " ", element("small", {}, unit))];
    if (isList(name)) parts.push(element("select", { id: name }, ...choices.map((choice) => element("option", { value: choice }, choice))));
    else parts.push(element("input", { type: "text", id: name, inputmode: choices ? "decimal" : "text", autocomplete: "off", spellcheck: "false" }));
    const field = parts[1];
    field.setAttribute("aria-describedby", `${name}-wrong`);
    field.addEventListener("input", () => { set(field.value); move(name); });
    if (choices && !isList(name)) {
      const slider = element("input", { type: "range", id: `${name}-slider`, min: 0, max: choices.length - 1, "aria-label": `${label}, ${unit}` });
      slider.addEventListener("input", () => { field.value = choices[slider.value]; set(field.value); say(name); });
      parts.push(slider);
    }
    place.append(element("div", { class: `field column${column} ${choices && !isList(name) ? "slides" : ""}` }, ...parts, element("p", { class: "wrong", id: `${name}-wrong`, role: "alert" })));
  }
  fill();
}

function fill() {
  for (const name of shownFields()) { byId(name).value = values[name]; move(name); }
}

// Put a slider where the value is that was typed, or that the engine takes where none is given.
function move(name) {
  const slider = byId(`${name}-slider`);
  if (!slider) return;
  const size = (value) => (value === "" ? Infinity : Number(value));
  const nearest = state.choices[name].findIndex((choice) => size(choice) >= size(values[name]));
  if (!Number.isNaN(size(values[name]))) slider.value = nearest < 0 ? state.choices[name].length - 1 : nearest;
  say(name);
}

function say(name) {
  byId(`${name}-slider`).setAttribute("aria-valuetext", values[name] === "" ? "not given" : `${values[name]} ${FIELDS[name][1]}`);
}

function query() {
  return new URLSearchParams(Object.entries(values).filter(([name, value]) => value !== state.values[name])).toString();
}

function changed() {
  if (!waiting) movedAt = performance.now();
  waiting = true;
  if (current === null || current.done) ask();
}

// One state is asked about at a time; while its theory is on its way the newest state waits.
async function ask() {
  current?.stop.abort();
  const mine = { stop: new AbortController(), done: false, since: movedAt };
  current = mine;
  waiting = false;
  const asked = query();
  history.replaceState(null, "", `${location.pathname}${asked ? `?${asked}` : ""}${location.hash}`);
  byId("download").href = `scenario.yaml?${asked}`;
  mark(true);
  try {
    for await (const part of lines(`answer?${asked}`, mine.stop.signal)) {
      if (current !== mine) return;
      take(part, mine);
    }
  } catch (error) {
    if (error.name !== "AbortError") byId("refused").textContent = "The server does not answer: is `penstock serve` still running?";
  }
  if (current === mine) theoryEnds(mine);
}

function take(part, mine) {
  if (part.part === "theory") { known = { ...known, theory: part, estimate: undefined }; fresh = false; }
  if (part.part === "estimate") { known.estimate = part; draw(); }
  if (part.part === "bounds") { known.bounds = part.bounds; refuse("target", part.unreachable.join(" ")); draw(); redrawn(mine); theoryEnds(mine); }
  if (part.part === "refused") { refuse(part.field, part.message); refused(); theoryEnds(mine); document.body.classList.remove("working"); }
  if (part.part === "progress") { document.body.classList.add("working"); byId("progress").value = part.share; }
  if (part.part === "simulation") { simulated = part; fresh = true; mark(false); draw(); }
}

function theoryEnds(mine) {
  mine.done = true;
  if (waiting && current === mine) ask();
}

function redrawn(mine) {
  const ms = performance.now() - mine.since;
  document.dispatchEvent(new CustomEvent("theory", { detail: ms }));
}

// What is of the scenario before is pale until it is told anew.
function mark(stale) {
  for (const place of document.querySelectorAll(".simulated")) place.classList.toggle("stale", stale);
  byId("latency").dataset.stale = stale ? "yes" : "";
  document.body.dataset.state = stale ? "computing" : "answered";
  if (!stale) document.body.classList.remove("working");
}

// Say beside a field what is wrong with it, or nothing.
function refuse(field, message) {
  for (const place of document.querySelectorAll(".wrong")) place.textContent = "";
  for (const place of document.querySelectorAll("[aria-invalid]")) place.removeAttribute("aria-invalid");
  const place = message && byId(`${field}-wrong`);
  byId("refused").textContent = place ? "" : message;
  for (const place of ["answers", "summary"]) byId(place).classList.remove("stale");
  byId("source").textContent = "";
  if (!place) return;
  place.textContent = message;
  byId(field).setAttribute("aria-invalid", "true");
}

function refused() {
  document.body.dataset.state = "refused";
  for (const place of ["answers", "summary"]) byId(place).classList.add("stale");
  if (known.theory) byId("source").textContent = "Of the values before, not of these.";
}

function draw() {
  if (!known.theory) return;
  const { load, region, limits } = known.theory;
  answer();
  charts.region(byId("region"), region, load.rate < load.max_rate);
  charts.latency(byId("latency"), known.bounds, known.estimate, simulated?.latency);
  if (simulated) simulation();
  for (const [name, taken] of Object.entries(limits)) byId(name).placeholder = taken ?? "not set";
  byId("text").textContent = known.theory.scenario;
  byId("hypotheses").replaceChildren(...known.theory.certificate.hypotheses.map((one) => element("li", {}, element("b", {}, `${one.name}: `), `${one.held ? (one.checked ? "held" : "not checked") : "fails"} (${one.why})`)));
}

// The lines of `penstock check`: those of theory at once, the others of the values before until the simulation is there.
function answer() {
  const { lines, words } = fresh ? simulated : known.theory;
  const before = fresh ? [] : (simulated?.lines ?? []).slice(lines.length);
  const rows = [...lines.map((line) => [...line, ""]), ...before.map((line) => [...line, "stale"])];
  const place = byId("lines");
  place.style.minHeight = place.dataset.width === String(place.offsetWidth) ? `${place.offsetHeight}px` : "";
  place.dataset.width = place.offsetWidth;
  place.replaceChildren(...rows.flatMap(([label, said, tone, stale]) => [element("dt", { class: stale }, tone ? badge(label, tone) : label), element("dd", { class: stale }, said)]));
  byId("words").replaceChildren(...words.flatMap(([word, tone]) => [badge(word, tone), " "]));
  const of = Object.entries((fresh && simulated.latency?.values) || {}).filter(([metric]) => metric in METRICS && metric !== "e2e_s");
  byId("load").textContent = [`load ${shown(known.theory.load.rho)}`, ...of.map(([metric, { p99 }]) => `${metric.slice(0, -2).toUpperCase()} p99 ${shown(p99)} s`)].join(", ");
}

const badge = (word, tone) => element("b", { class: `word badge ${tone}` }, word);

function simulation() {
  const { answer, latency, queue } = simulated;
  const refused = answer.latency_refused;
  byId("latency-said").textContent = refused ? `No latency: ${refused}.` : "Above: bound [, estimated mean \u25c6 with its range. Below: simulated mean \u25cf, p50, p90, p99.";
  const head = element("tr", {}, element("th", {}, ""), ...STATISTICS.map((name) => element("th", { scope: "col" }, name)));
  const rows = Object.entries(METRICS).map(([metric, name]) => element("tr", { "data-metric": metric }, element("th", { scope: "row" }, name), ...STATISTICS.map((of) => cell(latency?.values[metric]?.[of]))));
  byId("latencies").replaceChildren(head, ...rows);
  const run = answer.simulation;
  const jobs = run.jobs ?? run.requests;
  byId("queue-said").textContent = `${shown(jobs)} requests in ${shown(run.seconds)} simulated seconds.`;
  charts.overTime(byId("queue"), queue.time_s, queue.requests, "requests in the system", "simulated time, s", `Requests in the system over time, at most ${Math.max(...queue.requests)}.`);
  byId("notes").replaceChildren(...(answer.warnings.length ? answer.warnings : ["Nothing else to know."]).map((note) => element("li", {}, note)));
}

function cell(value) {
  const made = element("td", {}, value === undefined || value === null ? "\u2013" : shown(value));
  if (value !== undefined && value !== null) made.dataset.value = value;
  return made;
}

function tabs() {
  const all = [...document.querySelectorAll("[role=tab]")];
  const choose = (tab) => {
    for (const one of all) {
      one.setAttribute("aria-selected", String(one === tab));
      one.tabIndex = one === tab ? 0 : -1;
      byId(one.getAttribute("aria-controls")).hidden = one !== tab;
    }
    history.replaceState(null, "", `${location.pathname}${location.search}${tab.id === "tab-live" ? "#live" : ""}`);
    if (tab.id === "tab-live" && state.watches) follow();
    draw();
  };
  for (const tab of all) {
    tab.addEventListener("click", () => choose(tab));
    tab.addEventListener("keydown", (event) => {
      if (!["ArrowLeft", "ArrowRight"].includes(event.key)) return;
      const other = all[(all.indexOf(tab) + 1) % all.length];
      choose(other);
      other.focus();
    });
  }
  if (location.hash === "#live") choose(byId("tab-live"));
}

begin();
