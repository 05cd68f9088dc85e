// Engines that run: what `penstock watch` says of them, as it is refreshed.
import { element, loads, overTime } from "./charts.js";
import { lines } from "./lines.js";

const AGAIN_MS = 3000;
let follows = false;

export async function follow() {
  if (follows) return;
  follows = true;
  document.getElementById("live-none").hidden = true;
  const place = document.getElementById("live-answers");
  place.hidden = false;
  for (;;) {
    try {
      for await (const part of lines("live", undefined)) show(place, part);
    } catch {
      show(place, { part: "waiting", notes: ["the server does not answer; is `penstock serve` still running?"] });
    }
    await new Promise((after) => setTimeout(after, AGAIN_MS));
  }
}

function show(place, part) {
  const focused = document.activeElement?.id;
  if (part.part === "waiting") place.replaceChildren(card("Waiting for the engines", ...list(part.notes)));
  else answered(place, part);
  if (focused) document.getElementById(focused)?.focus();
}

function answered(place, { page, answer, before }) {
  const [verdict] = page.verdicts;
  const tone = { stable: "good", unstable: "bad" }[verdict.word] ?? "open";
  const headline = element("p", { class: "headline" }, element("b", { class: `badge ${tone}` }, verdict.word), " ", verdict.source);
  const first = card(page.title, element("p", { class: "how" }, page.heading), headline, element("p", {}, verdict.reason));
  const parts = page.sections.filter((section) => section.facts.length || section.tables.length || section.notes.length);
  const load = chart("Load by limit"), arrivals = chart("Arrivals");
  place.replaceChildren(first, load.card, arrivals.card, ...parts.map(section));
  const rows = answer.together.loads.map((one) => ({ limit: one.limit, load: one.load.value, low: one.load.low, high: one.load.high }));
  if (rows.length) loads(load.place, rows, "Load by limit");
  else load.place.append("Not known: the page was started without a scenario that says what each engine is, or too little was seen.");
  const known = before.filter((one) => one.arrival_rate);
  const times = known.map((one) => (one.time_s - known[0].time_s) / 60);
  const band = known.map((one) => [one.arrival_rate.low, one.arrival_rate.high]);
  if (known.length > 1) overTime(arrivals.place, times, known.map((one) => one.arrival_rate.value), "requests/s", "minutes since the page began to watch", "Arrivals over time", band);
  else arrivals.place.append("Drawn once two rounds have been read.");
}

function chart(title) {
  const place = element("div", { class: "chart" });
  return { place, card: card(title, place) };
}

function card(title, ...children) {
  return element("section", { class: "card" }, element("h2", {}, title), ...children);
}

function list(notes) {
  return notes.length ? [element("ul", {}, ...notes.map((note) => element("li", {}, note)))] : [];
}

function section({ title, facts, tables, notes }) {
  const rows = facts.flatMap(({ name, figure, explanation }) => [element("dt", {}, name), element("dd", { class: "figure" }, figure), element("dd", {}, explanation)]);
  const made = card(title || "Notes", ...(rows.length ? [element("dl", {}, ...rows)] : []), ...tables.map(table), ...list(notes));
  if (tables.length || !facts.length) made.classList.add("wide");
  return made;
}

function table({ columns, rows }) {
  const cells = (kind, values) => element("tr", {}, ...values.map((value) => element(kind, {}, value)));
  const body = element("table", {}, cells("th", columns), ...rows.map((row) => cells("td", row)));
  return element("div", { class: "scroll", tabindex: 0, role: "group", "aria-label": "Engines" }, body);
}
