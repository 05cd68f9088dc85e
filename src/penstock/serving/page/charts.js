// Charts as SVG, drawn anew at the width of their place. Shapes tell apart what colours do.

const SPACE = { left: 56, right: 22, top: 10, bottom: 40 };

export function element(name, attributes = {}, ...children) {
  const isSvg = ["svg", "path", "line", "circle", "text", "rect", "title", "g"].includes(name);
  const made = isSvg ? document.createElementNS("http://www.w3.org/2000/svg", name) : document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

export function shown(value, digits = 3) {
  if (value === null || value === undefined) return "?";
  const size = Math.abs(value);
  if (size >= 1000) return Math.round(value).toLocaleString("en");
  if (size !== 0 && size < 0.001) return value.toExponential(1);
  return String(Number(value.toPrecision(digits)));
}

function short(value) {
  return value >= 10000 ? `${shown(value / 1000)}k` : shown(value);
}

function steps(low, high, count) {
  const rough = (high - low) / count;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((width) => width >= rough * 0.999);
  const ticks = [];
  for (let tick = 0; tick < high + step * 0.999; tick += step) ticks.push(tick);
  return ticks;
}

function powers(low, high) {
  const ticks = [];
  for (let power = Math.floor(Math.log10(low)); power <= Math.ceil(Math.log10(high)); power++) ticks.push(10 ** power);
  return ticks;
}

// A frame with both axes; x and y turn values into pixels.
function frame(place, xs, ys, xTitle, yTitle, about, { space = SPACE, isLog = false, end = null } = {}) {
  const width = Math.max(place.clientWidth, 240);
  const height = Math.max(place.clientHeight, 120);
  const svg = element("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": about });
  const [left, right, bottom, top] = [space.left, width - space.right, height - space.bottom, space.top];
  const along = isLog ? Math.log : (value) => value;
  const [xLow, xHigh] = [along(xs[0]), along(end ?? xs.at(-1))];
  const x = (value) => left + ((along(value) - xLow) / (xHigh - xLow)) * (right - left);
  const y = (value) => bottom - (value / (ys.at(-1) || 1)) * (bottom - top);
  for (const tick of xs) {
    svg.append(element("line", { x1: x(tick), x2: x(tick), y1: top, y2: bottom, class: "grid" }));
    svg.append(element("text", { x: x(tick), y: bottom + 16, "text-anchor": "middle" }, short(tick)));
  }
  for (const tick of ys) {
    svg.append(element("line", { x1: left, x2: right, y1: y(tick), y2: y(tick), class: "grid" }));
    svg.append(element("text", { x: left - 6, y: y(tick) + 4, "text-anchor": "end" }, short(tick)));
  }
  svg.append(element("line", { x1: left, x2: right, y1: bottom, y2: bottom, class: "axis" }));
  svg.append(element("text", { x: (left + right) / 2, y: height - 6, "text-anchor": "middle", class: "soft" }, xTitle));
  const middle = (top + bottom) / 2;
  const turned = { x: 12, y: middle, transform: `rotate(-90 12 ${middle})`, "text-anchor": "middle", class: "soft" };
  if (yTitle) svg.append(element("text", turned, yTitle));
  place.replaceChildren(svg);
  return { svg, x, y, left, right, top, bottom };
}

const line = (points) => points.map(([x, y], index) => `${index ? "L" : "M"}${x.toFixed(1)} ${y.toFixed(1)}`).join("");

export function region(place, { vertices, point }, inside) {
  const most = (axis) => Math.max(point[axis], ...vertices.map((vertex) => vertex[axis])) * 1.05;
  const about = `Region of prefill and decode tokens per second. The load, ${shown(point[0])} and ${shown(point[1])}, is ${inside ? "inside" : "outside"}.`;
  const { svg, x, y, left, right } = frame(place, steps(0, most(0), 5), steps(0, most(1), 5), "prefill, tokens/s", "decode, tokens/s", about);
  const corners = vertices.map(([prefill, decode]) => [x(prefill), y(decode)]);
  svg.append(element("path", { d: `${line(corners)}Z`, fill: "var(--fill)", "fill-opacity": 0.18, stroke: "var(--fill)", "stroke-width": 2 }));
  svg.append(element("path", { d: line([[x(0), y(0)], [x(point[0]), y(point[1])]]), stroke: "var(--soft)", "stroke-dasharray": "4 3" }));
  const mark = inside ? element("circle", { r: 6 }) : element("rect", { x: -6, y: -6, width: 12, height: 12 });
  mark.setAttribute("transform", `translate(${x(point[0])} ${y(point[1])})`);
  mark.setAttribute("fill", "var(--point)");
  mark.setAttribute("stroke", "var(--card)");
  svg.append(mark);
  const end = x(point[0]) > (left + right) / 2;
  svg.append(element("text", { x: x(point[0]) + (end ? -11 : 11), y: y(point[1]) - 9, "text-anchor": end ? "end" : "start" }, "load"));
}

const METRICS = { ttft_s: "TTFT", tbt_s: "TBT", e2e_s: "E2E" };

export function latency(place, bounds, estimate, simulated) {
  const seconds = [];
  for (const metric of Object.keys(METRICS)) {
    seconds.push(bounds?.[metric]?.mean, estimate?.means?.[metric], ...(estimate?.ranges?.[metric] ?? []));
    if (simulated) seconds.push(...Object.values(simulated.values[metric] ?? {}));
  }
  const known = seconds.filter((value) => value > 0 && Number.isFinite(value));
  const ticks = powers(Math.min(...known, 0.01), Math.max(...known, 10));
  const about = "Latency by theory and by simulation; the table below has the simulated figures.";
  const space = { ...SPACE, left: 46, top: 4 };
  const { svg, x, top, bottom, left } = frame(place, ticks, [], "seconds, on a logarithmic scale", "", about, { space, isLog: true });
  Object.entries(METRICS).forEach(([metric, name], index) => {
    const row = top + ((bottom - top) * (index + 0.5)) / 3;
    svg.append(element("text", { x: left - 6, y: row + 4, "text-anchor": "end" }, name));
    theoryRow(svg, x, row - 9, bounds?.[metric]?.mean, estimate?.means?.[metric], estimate?.ranges?.[metric]);
    if (simulated?.values[metric]) simulatedRow(svg, x, row + 9, simulated.values[metric], place.dataset.stale);
  });
}

function theoryRow(svg, x, y, bound, mean, range) {
  if (range) svg.append(element("rect", { x: x(range[0]), y: y - 5, width: x(range[1]) - x(range[0]), height: 10, fill: "var(--fill)", "fill-opacity": 0.25 }));
  if (bound) svg.append(element("path", { d: `M${x(bound) + 5} ${y - 6}h-5v12h5`, fill: "none", stroke: "var(--fill)", "stroke-width": 2 }, element("title", {}, `no policy has a lower mean: ${shown(bound)} s`)));
  if (mean) svg.append(element("path", { d: `M${x(mean)} ${y - 6}l6 6l-6 6l-6 -6z`, fill: "var(--fill)" }, element("title", {}, `estimate of the mean: ${shown(mean)} s`)));
}

function simulatedRow(svg, x, y, values, stale) {
  const group = element("g", { opacity: stale ? 0.35 : 1 });
  group.append(element("line", { x1: x(values.p50), x2: x(values.p99), y1: y, y2: y, stroke: "var(--third)", "stroke-width": 2 }));
  for (const name of ["p50", "p90", "p99"]) {
    group.append(element("line", { x1: x(values[name]), x2: x(values[name]), y1: y - 5, y2: y + 5, stroke: "var(--third)", "stroke-width": 2 }, element("title", {}, `${name}: ${shown(values[name])} s`)));
  }
  group.append(element("circle", { cx: x(values.mean), cy: y, r: 5, fill: "var(--third)" }, element("title", {}, `mean: ${shown(values.mean)} s`)));
  svg.append(group);
}

// A line over time, with a band where there is an interval.
export function overTime(place, times, values, yTitle, xTitle, about, band = null) {
  const known = [...values, ...(band ? band.flat() : [])].filter((value) => value !== null && Number.isFinite(value));
  const end = Math.max(times.at(-1) ?? 0, 0.1);
  const along = steps(0, end, 5).filter((tick) => tick <= end);
  const { svg, x, y } = frame(place, along, steps(0, Math.max(...known, 0.01) * 1.02, 4), xTitle, yTitle, about, { end });
  const points = values.map((value, index) => [times[index], value]).filter(([, value]) => value !== null);
  if (band) {
    const upper = times.map((time, index) => [x(time), y(band[index][1] ?? 0)]);
    const lower = times.map((time, index) => [x(time), y(band[index][0] ?? 0)]);
    svg.append(element("path", { d: `${line([...upper, ...lower.reverse()])}Z`, fill: "var(--fill)", "fill-opacity": 0.2 }));
  }
  svg.append(element("path", { d: line(points.map(([time, value]) => [x(time), y(value)])), fill: "none", stroke: band ? "var(--fill)" : "var(--third)", "stroke-width": 1.6 }));
}

// Shares of what each limit carries, with intervals; 1 is as much as it carries.
export function loads(place, rows, about) {
  const most = Math.max(1.1, ...rows.map((row) => row.high ?? row.load));
  const space = { ...SPACE, left: 120 };
  const { svg, x, top, bottom, left } = frame(place, steps(0, most, 5), [], "load: share of what the limit carries", "", about, { space });
  rows.forEach((row, index) => {
    const middle = top + ((bottom - top) * (index + 0.5)) / rows.length;
    svg.append(element("text", { x: left - 6, y: middle + 4, "text-anchor": "end" }, row.limit));
    svg.append(element("rect", { x: left, y: middle - 8, width: Math.max(x(row.load) - left, 1), height: 16, fill: "var(--fill)", "fill-opacity": 0.6 }));
    if (row.low !== undefined) svg.append(element("path", { d: `M${x(row.low)} ${middle - 5}v10m0 -5H${x(row.high)}m0 -5v10`, stroke: "var(--ink)", fill: "none" }));
  });
  svg.append(element("line", { x1: x(1), x2: x(1), y1: top, y2: bottom, stroke: "var(--point)", "stroke-width": 2, "stroke-dasharray": "5 3" }));
}
