// The charts of a report: drawn as SVG, read by pointer or arrow keys, switched by the boxes above.
"use strict";
(() => {
  const { charts, styles } = JSON.parse(document.getElementById("numbers").textContent);
  const figures = [...document.querySelectorAll("figure[data-chart]")];
  const hidden = new Set();
  let axis = "steps";

  function add(parent, name, attributes, text) {
    const made = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    if (text !== undefined) made.textContent = text; // never as markup: names may hold anything
    return parent.appendChild(made);
  }

  const rounded = (value) => String(Number(value.toPrecision(5)));

  function short(value) {
    for (const [size, sign] of [[1e6, "M"], [1e3, "k"]])
      if (Math.abs(value) >= size) return rounded(value / size) + sign;
    return rounded(value);
  }

  function extent(lists) {
    let [low, high] = [Infinity, -Infinity];
    for (const list of lists)
      for (const value of list)
        if (value !== null) [low, high] = [Math.min(low, value), Math.max(high, value)];
    if (low > high) return [0, 1];
    return low < high ? [low, high] : [low - 0.5, high + 0.5];
  }

  function ticks([low, high], most) {
    const rough = (high - low) / most, size = 10 ** Math.floor(Math.log10(rough));
    const step = size * [1, 2, 5, 10].find((factor) => factor * size >= rough);
    const first = Math.ceil(low / step - 1e-9), last = Math.floor(high / step + 1e-9);
    return Array.from({ length: last - first + 1 }, (_, i) => (first + i) * step);
  }

  // Runs of neighbours that are all known: where a value is missing, a line has a gap.
  function pieces(length, known) {
    const found = [];
    for (let i = 0, piece = null; i < length; i++) {
      if (!known(i)) piece = null;
      else if (piece) piece.push(i);
      else found.push((piece = [i]));
    }
    return found;
  }

  function path(points) {
    return points.map(([x, y], i) => `${i ? "L" : "M"}${x.toFixed(1)} ${y.toFixed(1)}`).join("");
  }

  const shown = (chart) => chart.axes[axis].filter((curve) => !hidden.has(curve.group));

  function draw(figure, width = figure.clientWidth) {
    if (!width) return; // inside what is folded; drawn when that opens
    const chart = charts[figure.dataset.chart], curves = shown(chart);
    const height = Math.round(Math.min(340, Math.max(200, width * 0.6)));
    const [left, right, top, bottom] = [58, 14, 26, 40];
    const svg = figure.querySelector("svg");
    svg.replaceChildren();
    svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    const across = extent(curves.flatMap((c) => c.runs.map((run) => run[0])));
    const range = extent(curves.flatMap((c) => [c.low, c.high, ...c.runs.map((run) => run[1])]));
    const margin = 0.04 * (range[1] - range[0]), up = [range[0] - margin, range[1] + margin];
    const x = (v) => left + ((v - across[0]) / (across[1] - across[0])) * (width - left - right);
    const y = (v) => height - bottom - ((v - up[0]) / (up[1] - up[0])) * (height - top - bottom);
    add(svg, "text", { x: left, y: 16, class: "title" }, chart.title);
    for (const value of ticks(up, height / 45)) {
      add(svg, "path", { class: "grid", d: `M${left} ${y(value)}H${width - right}` });
      add(svg, "text", { x: left - 6, y: y(value) + 4, class: "end" }, short(value));
    }
    for (const value of ticks(across, width / 75))
      add(svg, "text", { x: x(value), y: height - 22, class: "middle" }, short(value));
    const units = new Set(curves.map((curve) => curve.unit));
    const unit = units.size === 1 ? [...units][0] : axis;
    const center = (left + width - right) / 2;
    add(svg, "text", { x: center, y: height - 5, class: "middle" }, unit);
    const turned = `translate(12 ${(top + height - bottom) / 2}) rotate(-90)`;
    add(svg, "text", { transform: turned, class: "middle" }, chart.label);
    for (const curve of curves) drawCurve(svg, curve, x, y);
    figure.view = { x, y, unit, width, height, top, bottom, at: null };
  }

  function drawCurve(svg, curve, x, y) {
    const { colour, line } = styles[curve.group], several = curve.runs.length > 1;
    const dashes = { solid: "none", dashed: "7 4", dotted: "2 3" }[line];
    const places = (xs, ys) =>
      pieces(xs.length, (i) => ys[i] !== null)
        .map((piece) => piece.map((i) => [x(xs[i]), y(ys[i])]));
    if (several) {
      for (const piece of pieces(curve.x.length, (i) => curve.low[i] !== null)) {
        const high = piece.map((i) => [x(curve.x[i]), y(curve.high[i])]);
        const low = piece.map((i) => [x(curve.x[i]), y(curve.low[i])]).reverse();
        add(svg, "path", { class: "band", fill: colour, d: `${path([...high, ...low])}Z` });
      }
      for (const [xs, ys] of curve.runs)
        for (const points of places(xs, ys))
          add(svg, "path", { class: "run", stroke: colour, d: path(points) });
    }
    for (const points of places(curve.x, curve.middle)) {
      const how = { stroke: colour, "stroke-dasharray": dashes };
      add(svg, "path", { class: "curve", ...how, d: path(points) });
      if (points.length === 1) // a line needs two to be seen
        add(svg, "circle", { cx: points[0][0], cy: points[0][1], r: 4, fill: colour });
    }
  }

  // The values at the place that is nearest to a pixel, or the next one to the left or right.
  function read(figure, pixel, turn = 0) {
    const { x, y, unit, width, height, top, bottom, at } = figure.view;
    const curves = shown(charts[figure.dataset.chart]).filter((curve) => curve.x.length);
    let known = [...new Set(curves.flatMap((curve) => curve.x))].sort((a, b) => a - b);
    if (!known.length) return;
    if (turn && at !== null)
      known = [known[Math.min(Math.max(known.indexOf(at) + turn, 0), known.length - 1)]];
    const place = known.reduce((a, b) => (Math.abs(x(b) - pixel) < Math.abs(x(a) - pixel) ? b : a));
    const svg = figure.querySelector("svg"), tip = figure.querySelector(".tip");
    unread(figure);
    add(svg, "path", { class: "mark", d: `M${x(place)} ${top}V${height - bottom}` });
    const head = document.createElement("b");
    head.textContent = `${place.toLocaleString("en")} ${unit}`;
    tip.append(head);
    for (const curve of curves) {
      const away = (i) => Math.abs(curve.x[i] - place);
      const near = curve.x.reduce((a, _, i) => (away(i) < away(a) ? i : a), 0);
      const value = curve.middle[near], low = curve.low[near], fill = styles[curve.group].colour;
      if (value === null || Math.abs(x(curve.x[near]) - x(place)) > width / 20) continue;
      add(svg, "circle", { class: "mark", cx: x(curve.x[near]), cy: y(value), r: 4, fill });
      const row = document.createElement("span");
      row.style.borderColor = fill;
      const spread = low === null ? "" : ` (${rounded(low)} to ${rounded(curve.high[near])})`;
      row.textContent = `${curve.group}: ${rounded(value)}${spread}`;
      tip.append(row);
    }
    tip.hidden = false;
    const scale = svg.clientWidth / width;
    const beyond = Math.max(0, svg.clientWidth - tip.offsetWidth);
    const beside = x(place) * scale > svg.clientWidth / 2 ? -12 - tip.offsetWidth : 12;
    tip.style.left = `${Math.min(Math.max(0, x(place) * scale + beside), beyond)}px`;
    figure.view.at = place;
  }

  function unread(figure) {
    for (const mark of figure.querySelectorAll(".mark")) mark.remove();
    const tip = figure.querySelector(".tip");
    tip.replaceChildren();
    tip.hidden = true;
  }

  function drawAll(width) {
    for (const figure of figures) {
      unread(figure);
      draw(figure, width);
    }
  }

  for (const figure of figures) {
    const svg = figure.querySelector("svg");
    const pixel = (event) => {
      const box = svg.getBoundingClientRect();
      return ((event.clientX - box.left) / box.width) * figure.view.width;
    };
    for (const kind of ["pointermove", "pointerdown"])
      svg.addEventListener(kind, (event) => read(figure, pixel(event)));
    svg.addEventListener("pointerleave", () => unread(figure));
    svg.addEventListener("keydown", (event) => {
      const turn = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      if (turn) read(figure, 0, turn);
    });
    new ResizeObserver(() => { unread(figure); draw(figure); }).observe(figure);
  }
  for (const box of document.querySelectorAll("input[name=group]"))
    box.addEventListener("change", () => {
      box.checked ? hidden.delete(box.value) : hidden.add(box.value);
      drawAll();
    });
  for (const choice of document.querySelectorAll("input[name=axis]"))
    choice.addEventListener("change", () => {
      axis = choice.value;
      drawAll();
    });
  addEventListener("beforeprint", () => drawAll(640));
  addEventListener("afterprint", () => drawAll());
  drawAll();
})();
