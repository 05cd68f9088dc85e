// The scenario: its sliders, and what theory, test and simulation say of it as they come.
import * as charts from "./charts.js";
import { follow } from "./live.js";
import { lines } from "./lines.js";

const { element, shown } = charts;
const byId = (id) => document.getElementById(id);
const FIELDS = {
  rate: ["Rate", "requests/s"],
  token_budget: ["Token budget", "tokens a batch"],
  max_batch_size: ["Max batch size", "requests a batch; empty: not set"],
  replicas: ["Replicas", "behind a router"],
};
const STATISTICS = ["mean", "p50", "p90", "p95", "p99"];
const METRICS = { ttft_s: "TTFT, s", tbt_s: "TBT, s", e2e_s: "E2E, s" };
const TONES = { stable: "good", unstable: "bad", contradiction: "bad", critical: "bad" };

let state, current = null, waiting = false, movedAt = 0;
let values = {}, known = {}, simulated = null;

async function begin() {
  state = await (await fetch("state")).json();
  byId("name").textContent = state.name;
  values = { ...state.values, ...fromAddress() };
  build();
  byId("reset").addEventListener("click", () => { values = { ...state.values }; fill(); changed(); });
  document.querySelector("form").addEventListener("submit", (event) => event.preventDefault());
  tabs();
  new ResizeObserver(draw).observe(byId("answers"));
  changed();
}

function fromAddress() {
  const given = {};
  for (const [name, text] of new URLSearchParams(location.search)) if (name in state.values) given[name] = name === "policy" ? text : text === "" ? null : Number.isNaN(Number(text)) ? text : Number(text);
  return given;
}

function build() {
  const place = document.querySelector(".fields");
  for (const [name, [label, unit]] of Object.entries(FIELDS)) {
    const slider = element("input", { type: "range", id: `${name}-slider`, min: 0, max: state.choices[name].length - 1, "aria-label": `${label}, ${unit}` });
    const text = element("input", { type: "text", id: name, inputmode: "decimal", autocomplete: "off", "aria-describedby": `${name}-wrong` });
    const labelled = element("label", { for: name }, label, " ", element("small", {}, unit));
    place.append(element("div", { class: "field" }, labelled, text, slider, element("p", { class: "wrong", id: `${name}-wrong`, role: "alert" })));
    slider.addEventListener("input", () => { values[name] = state.choices[name][slider.value]; text.value = values[name] ?? ""; say(name); changed(); });
    text.addEventListener("input", () => { values[name] = text.value.trim() === "" && name === "max_batch_size" ? null : text.value.trim(); move(name); changed(); });
  }
  const select = element("select", { id: "policy" }, ...state.choices.policy.map((name) => element("option", { value: name }, name)));
  place.append(element("div", { class: "field" }, element("label", { for: "policy" }, "Scheduler"), element("span"), select, element("p", { class: "wrong", id: "policy-wrong", role: "alert" })));
  select.addEventListener("change", () => { values.policy = select.value; changed(); });
  fill();
}

function fill() {
  for (const name of Object.keys(FIELDS)) { byId(name).value = values[name] ?? ""; move(name); }
  byId("policy").value = values.policy;
}

// Put a slider where the value is that was typed.
function move(name) {
  const choices = state.choices[name];
  const wanted = values[name] === null ? Infinity : Number(values[name]);
  const nearest = choices.findIndex((choice) => (choice === null ? Infinity : choice) >= wanted);
  if (!Number.isNaN(wanted)) byId(`${name}-slider`).value = nearest < 0 ? choices.length - 1 : nearest;
  say(name);
}

function say(name) {
  byId(`${name}-slider`).setAttribute("aria-valuetext", values[name] === null ? "not set" : `${values[name]} ${FIELDS[name][1]}`);
}

function query() {
  const parts = Object.entries(values).filter(([name, value]) => value !== state.values[name]);
  return new URLSearchParams(parts.map(([name, value]) => [name, value ?? ""])).toString();
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
  if (part.part === "theory") known = { ...known, theory: part, estimate: undefined };
  if (part.part === "estimate") { known.estimate = part; draw(); }
  if (part.part === "bounds") { known.bounds = part.bounds; refuse(null, ""); draw(); redrawn(mine); theoryEnds(mine); }
  if (part.part === "refused") { refuse(part.field, part.message); theoryEnds(mine); document.body.classList.remove("working"); }
  if (part.part === "progress") { document.body.classList.add("working"); byId("progress").value = part.share; }
  if (part.part === "test") { known.test = part.stability; byId("said-test").classList.remove("stale"); verdict(); }
  if (part.part === "simulation") { simulated = part; mark(false); draw(); }
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
  if (stale) { known.test = undefined; byId("said-test").classList.add("stale"); }
  for (const place of document.querySelectorAll(".simulated")) place.classList.toggle("stale", stale);
  byId("latency").dataset.stale = stale ? "yes" : "";
  document.body.dataset.state = stale ? "computing" : "answered";
  if (!stale) document.body.classList.remove("working");
}

function refuse(field, message) {
  for (const place of document.querySelectorAll(".wrong")) place.textContent = "";
  for (const place of document.querySelectorAll("[aria-invalid]")) place.removeAttribute("aria-invalid");
  byId("refused").textContent = field ? "" : message;
  for (const place of ["answers", "summary"]) byId(place).classList.toggle("stale", Boolean(message));
  if (message) {
    document.body.dataset.state = "refused";
    byId("source").textContent = "of the values before, not of these";
  }
  if (!field) return;
  byId(`${field}-wrong`).textContent = message;
  byId(field).setAttribute("aria-invalid", "true");
}

function draw() {
  if (!known.theory) return;
  const { load, region } = known.theory;
  verdict();
  figures(load);
  charts.region(byId("region"), region, load.rate < load.max_rate);
  charts.latency(byId("latency"), known.bounds, known.estimate, simulated?.latency);
  if (simulated) simulation();
  byId("text").textContent = known.theory.scenario;
  byId("hypotheses").replaceChildren(...known.theory.certificate.hypotheses.map((one) => element("li", {}, element("b", {}, `${one.name}: `), `${one.held ? (one.checked ? "held" : "not checked") : "fails"} (${one.why})`)));
}

function verdict() {
  const theorem = known.theory.certificate;
  const fresh = document.body.dataset.state === "answered" ? simulated?.answer : null;
  const test = known.test ?? fresh?.stability;
  const decides = theorem.verdict !== "unknown" || !test ? theorem : test;
  const open = known.theory.calibration; // batch times that are not exact
  const hinges = open && (fresh ? fresh.verdict === "undecided" && decides.verdict !== "undecided" : open.undecided);
  const word = fresh?.verdict ?? (hinges ? "undecided" : decides.verdict);
  for (const place of document.querySelectorAll(".word")) {
    place.textContent = word;
    place.className = `word badge ${TONES[word] ?? "open"}`;
  }
  byId("source").textContent = word === "contradiction" ? "theorem against test" : hinges ? "because of the batch times" : decides === test ? "by simulation" : theorem.theorem ? `by ${theorem.theorem}` : "by theory; the test follows";
  document.querySelector("#said-theory p").textContent = `${open ? `Of the batch times: ${open.said}. With the middle ones: ` : ""}${theorem.verdict}: ${theorem.reason}.`;
  if (test) document.querySelector("#said-test p").textContent = `${test.verdict}: ${test.reason}.`;
}

function figures(load) {
  const open = known.theory.calibration;
  const margin = 1 - load.rate / load.max_rate;
  const rows = [
    ["Load", shown(load.rho), open ? `${shown(open.load[0])} to ${shown(open.load[1])} as batch times are known` : "of what batches carry"],
    ["Margin", `${shown(100 * margin)}%`, "left for any scheduler"],
    ["Highest rate", shown(load.max_rate, 4), "requests/s, any scheduler"],
  ];
  byId("figures").replaceChildren(...rows.flatMap(([name, figure, words]) => [element("dt", {}, name), element("dd", { class: "figure" }, figure), element("dd", {}, words)]), element("dt", {}, "Limited by"), element("dd", { class: "across" }, load.binding.join(", ")));
  byId("load").textContent = `load ${shown(load.rho)}, margin ${shown(100 * margin)}%`;
}

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
