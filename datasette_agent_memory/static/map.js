// The map: each chunk a point, on a plot of uPlot's. What is under the pointer or lit up is drawn on a
// canvas of its own above it, so that a move of the mouse draws no other point again.
import uPlot from "./vendor/uplot/uPlot.esm.js";
import { Timeline } from "./timeline.js";

const MAX_COLOURS = 8;
const REACH_PX = 14;
const TEXT_CHARS = 600;
const SEARCH_DELAY_MS = 250;
const TEXT_DELAY_MS = 90;
const KEPT_TEXTS = 500;

// As visible.py has it: controls, bidirectional characters and tags have a sign in their place.
const UNSEEN = /[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\u{e0000}-\u{e007f}\ufeff]/gu;
const visible = text => String(text).replace(UNSEEN, character => {
  const code = character.codePointAt(0);
  if (code < 0x20) return String.fromCodePoint(0x2400 + code);
  return code === 0x7f ? "\u2421" : `‹U+${code.toString(16).toUpperCase().padStart(4, "0")}›`;
});

const element = (name, properties = {}, ...children) => {
  const made = Object.assign(document.createElement(name), properties);
  made.append(...children);
  return made;
};
const lines = (start, end) => start === end ? `line ${start}` : `lines ${start}–${end}`;
const dateOf = path => /^\d{4}-\d{2}-\d{2}(?!\d)/.exec(path.slice(path.lastIndexOf("/") + 1))?.[0];
const clamp = (value, low, high) => Math.min(high, Math.max(low, value));

const page = document.getElementById("am-map-page");
const form = document.getElementById("am-map-form");
const said = document.getElementById("am-map-said");
const pagePath = page.dataset.page;
const say = text => { said.textContent = text; };
const color = name => getComputedStyle(document.body).getPropertyValue(name).trim();

const filePath = (path, start, end) => {
  // A file of more lines has further pages.
  const query = new URLSearchParams(start > Number(page.dataset.pageLines) ? { path, from: start } : { path });
  return `${pagePath}/file?${query}#L${start}${end > start ? `-L${end}` : ""}`;
};

function parameters() {
  const given = new URLSearchParams(new FormData(form));
  for (const [name, value] of [...given]) {
    if (!value || value === form.elements[name].dataset?.default) given.delete(name);
  }
  return given;
}

/** The page's address shows what it shows, and can be shared. */
function writeAddress() {
  const given = parameters().toString();
  history.replaceState(null, "", given ? `?${given}` : location.pathname);
}

/** Which points are near a place, without a look at all others; coordinates are from -1 to 1. */
class Grid {
  constructor(x, y) {
    this.x = x;
    this.y = y;
    this.side = Math.max(1, Math.ceil(Math.sqrt(x.length / 4)));
    this.starts = new Int32Array(this.side * this.side + 1);
    this.points = new Int32Array(x.length);
    const cells = x.map((_, point) => this.row(y[point]) * this.side + this.row(x[point]));
    for (const cell of cells) this.starts[cell + 1]++;
    for (let cell = 0; cell < this.side * this.side; cell++) this.starts[cell + 1] += this.starts[cell];
    const next = this.starts.slice();
    cells.forEach((cell, point) => { this.points[next[cell]++] = point; });
  }

  row(value) {
    return clamp(Math.floor((value + 1) / 2 * this.side), 0, this.side - 1);
  }

  /** The nearest point that is accepted within a distance, or null. */
  nearest(x, y, reach, accepted) {
    let best = null;
    let least = reach * reach;
    for (let row = this.row(y - reach); row <= this.row(y + reach); row++) {
      const first = this.starts[row * this.side + this.row(x - reach)];
      const end = this.starts[row * this.side + this.row(x + reach) + 1];
      for (let at = first; at < end; at++) {
        const point = this.points[at];
        const distance = (this.x[point] - x) ** 2 + (this.y[point] - y) ** 2;
        if (distance <= least && accepted(point)) [best, least] = [point, distance];
      }
    }
    return best;
  }
}

/** The points by what they are coloured by: the commonest values, and all others in one. */
function groupsBy(colour, map) {
  const names = map[`${colour}s`];
  const values = map.points[colour];
  const byValue = names.map(() => []);
  values.forEach((value, point) => byValue[value].push(point));
  const all = names.map((name, value) => ({ name, points: byValue[value] }));
  if (colour === "month") return groupsByMonth(all);
  all.sort((a, b) => b.points.length - a.points.length);
  const groups = all.slice(0, MAX_COLOURS).map((group, number) => ({
    name: visible(group.name) || (colour === "folder" ? "(top folder)" : "(none)"),
    points: group.points,
    color: `--am-map-${number + 1}`,
  }));
  const others = all.slice(MAX_COLOURS);
  if (others.length) {
    groups.push({ name: `${others.length} others`, points: others.flatMap(group => group.points), color: "--am-map-other" });
  }
  return groups;
}

/** Months one by one, or several in a row; their colours are a scale. */
function groupsByMonth(all) {
  const undated = all.filter(group => !group.name);
  const dated = all.filter(group => group.name);
  const size = Math.max(1, Math.ceil(dated.length / MAX_COLOURS));
  const count = Math.ceil(dated.length / size);
  const groups = [];
  for (let number = 0; number < count; number++) {
    const months = dated.slice(number * size, (number + 1) * size);
    const step = count === 1 ? MAX_COLOURS : 1 + Math.round(number * (MAX_COLOURS - 1) / (count - 1));
    groups.push({
      name: months.length === 1 ? months[0].name : `${months[0].name} – ${months.at(-1).name}`,
      points: months.flatMap(month => month.points),
      color: `--am-map-month-${step}`,
    });
  }
  if (undated.length) groups.push({ name: "without a date", points: undated[0].points, color: "--am-map-other" });
  return groups;
}

/** A step that leads through so many points in no order, and to each. */
function stride(count) {
  const divisor = (a, b) => b ? divisor(b, a % b) : a;
  let step = Math.max(1, Math.floor(count * 0.618));
  while (divisor(step, count) > 1) step++;
  return step;
}

/** The texts of chunks, fetched when they are wanted. */
class Texts {
  #texts = new Map();
  #request = null;

  known(point) {
    return this.#texts.get(point);
  }

  cancel() {
    this.#request?.abort();
    this.#request = null;
  }

  async fetch(point, path, start, end) {
    this.cancel();
    const request = this.#request = new AbortController();
    await new Promise(resolve => setTimeout(resolve, TEXT_DELAY_MS));
    if (request.signal.aborted) return;
    const params = new URLSearchParams({ path, from: start, lines: end - start + 1 });
    const response = await fetch(`${pagePath}/file.json?${params}`, { signal: request.signal });
    const answer = await response.json();
    const text = answer.ok ? answer.text.trim() : answer.error;
    const characters = [...text.slice(0, TEXT_CHARS * 2)];
    const cut = text.length > TEXT_CHARS * 2 || characters.length > TEXT_CHARS;
    if (this.#texts.size >= KEPT_TEXTS) this.#texts.delete(this.#texts.keys().next().value);
    this.#texts.set(point, visible(characters.slice(0, TEXT_CHARS).join("")) + (cut ? "…" : ""));
  }
}

class MemoryMap {
  constructor(root, map) {
    this.map = map;
    this.x = map.points.x;
    this.y = map.points.y;
    this.grid = new Grid(this.x, this.y);
    this.plotElement = root.querySelector(".am-map-plot");
    this.holder = root.querySelector(".am-map-canvas");
    this.tip = root.querySelector(".am-map-tip");
    this.legend = root.querySelector(".am-map-legend");
    this.texts = new Texts();
    this.results = [];
    this.hovered = null;
    this.chosen = null;
    this.centre = { x: 0, y: 0 };
    this.zoom = 1;
    const colour = root.querySelector("#am-colour");
    colour.addEventListener("change", () => this.colourBy(colour.value));
    for (const button of root.querySelectorAll("[data-zoom]")) {
      button.addEventListener("click", () => this.zoomBy(Number(button.dataset.zoom)));
    }
    this.plotElement.addEventListener("keydown", event => this.onKey(event));
    this.plotElement.addEventListener("blur", () => this.showTip());
    this.plotElement.addEventListener("focus", () => this.showTip());
    root.hidden = false;
    this.radius = this.x.length <= 300 ? 5 : this.x.length <= 3000 ? 3.5 : 2.25;
    this.stride = stride(this.x.length);
    this.groups = [];
    this.build();
    this.colourBy(colour.value);
    new ResizeObserver(() => this.resize()).observe(this.holder);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.paint());
  }

  // Drawing all

  colourBy(colour) {
    this.groups = groupsBy(colour, this.map).map(group => ({ ...group, shown: true }));
    this.groupOf = new Uint8Array(this.x.length);
    this.groups.forEach((group, number) => {
      for (const point of group.points) this.groupOf[point] = number;
    });
    this.paint();
    this.legend.replaceChildren(...this.groups.map((group, number) => {
      const swatch = element("span", { className: "am-map-swatch" });
      swatch.style.background = `var(${group.color})`;
      const button = element(
        "button",
        { type: "button", className: "am-map-entry" },
        swatch, element("bdi", { textContent: group.name }),
        element("span", { className: "am-muted", textContent: group.points.length.toLocaleString("en") }),
      );
      button.setAttribute("aria-pressed", "true");
      button.addEventListener("click", () => this.toggle(number, button));
      return element("li", {}, button);
    }));
  }

  toggle(number, button) {
    const group = this.groups[number];
    group.shown = !group.shown;
    button.setAttribute("aria-pressed", group.shown);
    this.hovered = null;
    if (this.chosen !== null && !this.isShown(this.chosen)) this.choose(null);
    this.redraw();
    this.drawOverlay();
    this.showTip();
  }

  size() {
    const width = Math.max(200, this.holder.clientWidth);
    return { width, height: Math.round(clamp(width * 0.62, 320, 620)) };
  }

  build() {
    const { width, height } = this.size();
    this.plot = new uPlot(
      {
        mode: 2,
        width,
        height,
        padding: [0, 0, 0, 0],
        scales: { x: this.scale("x"), y: this.scale("y") },
        axes: [{ show: false }, { show: false }],
        legend: { show: false },
        cursor: {
          x: false,
          y: false,
          points: { show: false },
          dataIdx: () => null,
          drag: { x: true, y: true, setScale: false, dist: 5 },
          bind: { dblclick: () => () => this.wholeMap() },
        },
        series: [
          null,
          {
            facets: [{ scale: "x" }, { scale: "y" }],
            points: { show: false },
            paths: () => this.drawPoints(),
          },
        ],
        hooks: { setSelect: [() => this.zoomToSelection()] },
      },
      [null, [this.x, this.y]],
      this.holder,
    );
    const canvas = this.plot.ctx.canvas;
    canvas.setAttribute("role", "img");
    canvas.setAttribute("aria-label", this.plotElement.getAttribute("aria-label"));
    this.overlay = element("canvas", { className: "am-map-overlay" });
    this.overlay.setAttribute("aria-hidden", "true");
    this.plot.over.append(this.overlay);
    this.listen(this.plot.over);
    this.sizeOverlay();
  }

  /** Take the colours as they are now, of the groups and of the page. */
  paint() {
    this.colors = this.groups.map(group => color(group.color));
    this.sprites = this.colors.map(fill => this.sprite(fill));
    this.redraw();
    this.drawOverlay();
  }

  /** The range that is seen: as wide for one direction as for the other, so that distances are true. */
  scale(name) {
    return { time: false, auto: false, ...this.range(name), range: (plot, min, max) => [min, max] };
  }

  range(name) {
    const { width, height } = this.size();
    // The whole map has a margin, in which the largest point has room.
    const half = 1.06 * this.zoom / this.unit(width, height);
    const extent = half * (name === "x" ? width : height);
    return { min: this.centre[name] - extent, max: this.centre[name] + extent };
  }

  /** How many pixels the extent of the points may have, each way, for one unit of theirs. */
  unit(width, height) {
    const extent = values => values.reduce((most, value) => Math.max(most, Math.abs(value)), 0) || 1;
    this.extents ??= { x: extent(this.x), y: extent(this.y) };
    return Math.min(width / this.extents.x, height / this.extents.y);
  }

  sprite(fill) {
    const ratio = uPlot.pxRatio;
    const half = Math.ceil((this.radius + 1) * ratio);
    const canvas = element("canvas", { width: 2 * half, height: 2 * half });
    const ctx = canvas.getContext("2d");
    ctx.beginPath();
    ctx.arc(half, half, this.radius * ratio, 0, 2 * Math.PI);
    ctx.fillStyle = fill;
    ctx.fill();
    return canvas;
  }

  drawPoints() {
    const { ctx, bbox, scales: { x, y } } = this.plot;
    if (!this.groups.length) return null;
    const count = this.x.length;
    const sprites = this.sprites.map((sprite, group) => this.groups[group].shown ? sprite : null);
    const half = this.sprites[0].width / 2;
    const perX = bbox.width / (x.max - x.min);
    const perY = bbox.height / (y.max - y.min);
    ctx.save();
    ctx.globalAlpha = this.results.length ? 0.25 : 0.85;
    // In no order, so that no colour covers the others.
    for (let number = 0, point = 0; number < count; number++, point = (point + this.stride) % count) {
      const sprite = sprites[this.groupOf[point]];
      const left = (this.x[point] - x.min) * perX - half;
      const top = (y.max - this.y[point]) * perY - half;
      if (sprite && left < bbox.width && top < bbox.height && left > -2 * half && top > -2 * half) {
        ctx.drawImage(sprite, Math.round(bbox.left + left), Math.round(bbox.top + top));
      }
    }
    ctx.restore();
    return null;
  }

  redraw() {
    this.plot.redraw(false);
  }

  resize() {
    const { width, height } = this.size();
    if (width === this.plot.width && height === this.plot.height) return;
    this.plot.setSize({ width, height });
    this.look();
    this.sizeOverlay();
  }

  // What is seen of it

  look() {
    this.plot.batch(() => {
      this.plot.setScale("x", this.range("x"));
      this.plot.setScale("y", this.range("y"));
    });
    this.drawOverlay();
    this.showTip();
  }

  wholeMap() {
    this.zoom = 1;
    this.centre = { x: 0, y: 0 };
    this.look();
  }

  zoomBy(factor) {
    if (!factor) return this.wholeMap();
    if (this.chosen !== null && factor < 1) this.centre = { x: this.x[this.chosen], y: this.y[this.chosen] };
    this.zoom = clamp(this.zoom * factor, 0.001, 1);
    if (this.zoom === 1) this.centre = { x: 0, y: 0 };
    this.look();
  }

  zoomToSelection() {
    const { left, top, width, height } = this.plot.select;
    if (width < 4 && height < 4) return;
    const { width: allWidth, height: allHeight } = this.size();
    this.centre = {
      x: this.plot.posToVal(left + width / 2, "x"),
      y: this.plot.posToVal(top + height / 2, "y"),
    };
    this.zoom = Math.max(0.001, this.zoom * Math.max(width / allWidth, height / allHeight));
    this.plot.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
    this.look();
  }

  keepInView(point) {
    const { x, y } = this.plot.scales;
    const inside = (value, { min, max }) => value > min && value < max;
    if (inside(this.x[point], x) && inside(this.y[point], y)) return;
    this.centre = { x: this.x[point], y: this.y[point] };
    this.look();
  }

  // What lies above it

  sizeOverlay() {
    const { width, height } = this.size();
    const ratio = uPlot.pxRatio;
    Object.assign(this.overlay, { width: width * ratio, height: height * ratio });
    this.drawOverlay();
  }

  drawOverlay() {
    const ctx = this.overlay.getContext("2d");
    const ratio = uPlot.pxRatio;
    ctx.setTransform(ratio, 0, 0, ratio, 0, 0);
    ctx.clearRect(0, 0, this.overlay.width, this.overlay.height);
    const [ink, page] = [color("--am-ink"), color("--am-raised")];
    ctx.font = "bold 12px system-ui, sans-serif";
    ctx.textBaseline = "middle";
    ctx.lineJoin = "round";
    // The first lies on top.
    for (let place = this.results.length; place > 0; place--) {
      const point = this.results[place - 1];
      if (point === null || !this.isShown(point)) continue;
      const { left, top } = this.position(point);
      this.ring(ctx, left, top, this.radius + 2, this.colors[this.groupOf[point]], ink, 2);
      // Beside it, and inside the map.
      const isAtEdge = left + this.radius + 24 > this.plot.width;
      ctx.textAlign = isAtEdge ? "right" : "left";
      const beside = left + (this.radius + 6) * (isAtEdge ? -1 : 1);
      const above = Math.max(8, top - this.radius - 2);
      ctx.strokeStyle = page;
      ctx.lineWidth = 4;
      ctx.strokeText(place, beside, above);
      ctx.fillStyle = ink;
      ctx.fillText(place, beside, above);
    }
    const current = this.hovered ?? this.chosen;
    if (current !== null) {
      const { left, top } = this.position(current);
      this.ring(ctx, left, top, this.radius + 4, null, page, 5);
      this.ring(ctx, left, top, this.radius + 4, this.colors[this.groupOf[current]], ink, 2.5);
    }
  }

  ring(ctx, left, top, radius, fill, stroke, width) {
    ctx.beginPath();
    ctx.arc(left, top, radius, 0, 2 * Math.PI);
    if (fill) {
      ctx.fillStyle = fill;
      ctx.fill();
    }
    ctx.strokeStyle = stroke;
    ctx.lineWidth = width;
    ctx.stroke();
  }

  position(point) {
    return { left: this.plot.valToPos(this.x[point], "x"), top: this.plot.valToPos(this.y[point], "y") };
  }

  isShown(point) {
    return this.groups[this.groupOf[point]].shown;
  }

  light(results) {
    this.results = results;
    this.redraw();
    this.drawOverlay();
    this.tipOf = null;
    this.showTip();
  }

  /** The point under a place of the plot, in CSS pixels: a result before its neighbours. */
  at(left, top) {
    const x = this.plot.posToVal(left, "x");
    const y = this.plot.posToVal(top, "y");
    const reach = REACH_PX * (this.plot.scales.x.max - this.plot.scales.x.min) / this.plot.width;
    let best = null;
    let least = reach * reach;
    for (const point of this.results) {
      if (point === null || !this.isShown(point)) continue;
      const distance = (this.x[point] - x) ** 2 + (this.y[point] - y) ** 2;
      if (distance < least) [best, least] = [point, distance];
    }
    return best ?? this.grid.nearest(x, y, reach, point => this.isShown(point));
  }

  hover(left, top) {
    const point = left === null ? null : this.at(left, top);
    if (point === this.hovered) return;
    this.hovered = point;
    this.plot.over.style.cursor = point === null ? "" : "pointer";
    this.drawOverlay();
    this.showTip();
  }

  listen(over) {
    let frame = 0;
    let down = null;
    over.addEventListener("pointermove", event => {
      if (event.pointerType === "touch" || event.buttons) return;
      cancelAnimationFrame(frame);
      frame = requestAnimationFrame(() => this.hover(event.offsetX, event.offsetY));
    });
    over.addEventListener("pointerleave", () => {
      cancelAnimationFrame(frame);
      this.hover(null);
    });
    over.addEventListener("pointerdown", event => {
      down = { left: event.clientX, top: event.clientY, type: event.pointerType };
    });
    over.addEventListener("click", event => {
      if (down && Math.hypot(event.clientX - down.left, event.clientY - down.top) > 5) return;
      const point = this.at(event.offsetX, event.offsetY);
      // A finger does not hover: its first touch tells, and its second opens.
      if (down?.type === "touch" && point !== this.chosen) return this.choose(point);
      if (point !== null) this.open(point, event);
    });
  }

  // The one that is chosen

  href(point) {
    const { path, start_line, end_line } = this.map.points;
    return filePath(this.map.paths[path[point]], start_line[point], end_line[point]);
  }

  open(point, event) {
    if (event.ctrlKey || event.metaKey) window.open(this.href(point), "_blank", "noopener");
    else location.assign(this.href(point));
  }

  choose(point) {
    this.chosen = point;
    this.hovered = null;
    if (point === null) {
      say("");
    } else {
      this.keepInView(point);
      say(this.words(point));
    }
    this.drawOverlay();
    this.showTip();
  }

  words(point) {
    const { path, start_line, end_line } = this.map.points;
    const name = this.map.paths[path[point]];
    const place = this.results.indexOf(point);
    return [
      visible(name), lines(start_line[point], end_line[point]), dateOf(name), place >= 0 && `result ${place + 1}`,
    ].filter(Boolean).join(", ");
  }

  showTip() {
    const point = this.hovered ?? this.chosen;
    this.tip.hidden = point === null;
    if (point === null) {
      this.texts.cancel();
      this.tipOf = null;
      return;
    }
    if (this.tipOf !== point) {
      this.tipOf = point;
      const { path, start_line, end_line } = this.map.points;
      const name = this.map.paths[path[point]];
      const link = element("a", { href: this.href(point), tabIndex: -1 }, element("bdi", { textContent: visible(name) }));
      const place = this.results.indexOf(point);
      const about = [lines(start_line[point], end_line[point]), dateOf(name), place >= 0 && `result ${place + 1}`];
      const text = element("p", { className: "am-map-text", dir: "auto", textContent: this.texts.known(point) ?? "…" });
      this.tip.replaceChildren(
        element("p", {}, link),
        element("p", { className: "am-muted", textContent: about.filter(Boolean).join(" · ") }),
        text,
      );
      if (this.texts.known(point) === undefined) {
        this.texts.fetch(point, name, start_line[point], end_line[point]).then(() => {
          if (this.tipOf !== point || this.texts.known(point) === undefined) return;
          text.textContent = this.texts.known(point);
          this.placeTip(point);
          if (point === this.chosen) say(`${this.words(point)}: ${this.texts.known(point).slice(0, 200)}`);
        }, () => {}); // Overtaken, or the server is gone: the path is there.
      } else {
        this.texts.cancel();
      }
    }
    this.placeTip(point);
  }

  placeTip(point) {
    const { left, top } = this.position(point);
    const { width, height } = this.size();
    const gap = this.radius + 12;
    const right = left + gap + this.tip.offsetWidth > width;
    const above = top + gap + this.tip.offsetHeight > height && top > height / 2;
    const from = right ? left - gap - this.tip.offsetWidth : left + gap;
    this.tip.style.left = `${clamp(from, 0, Math.max(0, width - this.tip.offsetWidth))}px`;
    this.tip.style.top = `${above ? Math.max(0, top - gap - this.tip.offsetHeight) : top + gap}px`;
  }

  onKey(event) {
    const step = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, 1], ArrowDown: [0, -1] }[event.key];
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (step) this.choose(this.next(...step));
    else if (event.key === "Enter" && this.chosen !== null) this.open(this.chosen, event);
    else if (event.key === "Escape" && this.chosen !== null) this.choose(null);
    else if (event.key === "+" || event.key === "=") this.zoomBy(0.6);
    else if (event.key === "-") this.zoomBy(1 / 0.6);
    else if (event.key === "0") this.wholeMap();
    else return;
    event.preventDefault();
  }

  /** The nearest point in a direction; of all at first the best result, or the middle one. */
  next(stepX, stepY) {
    if (this.chosen === null) {
      const first = this.results.find(point => point !== null && this.isShown(point));
      return first ?? this.grid.nearest(this.centre.x, this.centre.y, 4, point => this.isShown(point));
    }
    let best = this.chosen;
    let least = Infinity;
    for (let point = 0; point < this.x.length; point++) {
      const x = this.x[point] - this.x[this.chosen];
      const y = this.y[point] - this.y[this.chosen];
      const along = x * stepX + y * stepY;
      const aside = Math.abs(x * stepY) + Math.abs(y * stepX);
      // Those at one place are gone through in their order: each can be come to.
      const behind = !x && !y && (point - this.chosen) * (stepX || -stepY) > 0;
      const distance = behind ? Math.abs(point - this.chosen) * 1e-12 : along > 0 ? along + 2 * aside : Infinity;
      if (distance < least && this.isShown(point)) [best, least] = [point, distance];
    }
    return best;
  }
}

/** The results of a search, in the list and on the map, as the words are typed. */
class Search {
  #request = null;
  #timer = 0;

  constructor(data) {
    this.map = null;
    this.idChars = data.points.id[0]?.length ?? 0;
    this.pointOf = new Map(data.points.id.map((id, point) => [id, point]));
    this.section = document.getElementById("am-map-results");
    this.notices = document.getElementById("am-map-notices");
    form.addEventListener("submit", event => {
      event.preventDefault();
      this.run();
    });
    form.elements.q.addEventListener("input", () => this.runSoon());
  }

  runSoon() {
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => this.run(), SEARCH_DELAY_MS);
  }

  async run() {
    clearTimeout(this.#timer);
    this.#request?.abort();
    const request = this.#request = new AbortController();
    const given = parameters();
    writeAddress();
    if (!(given.get("q") ?? "").trim()) return this.show(null);
    try {
      const response = await fetch(`${pagePath}.json?${given}`, { signal: request.signal });
      const answer = await response.json();
      if (this.#request === request) this.show(answer);
    } catch (error) {
      if (error.name !== "AbortError") this.show({ ok: false, error: "The server does not answer." });
    }
  }

  show(answer) {
    const results = answer?.results ?? [];
    const notices = answer?.ok ? answer.notices : answer ? [{ code: "error", message: answer.error }] : [];
    this.notices.replaceChildren(...notices.map(notice => {
      const shown = element("p", { className: "message-warning am-notice", textContent: notice.message });
      shown.dataset.code = notice.code;
      return shown;
    }));
    const points = results.map(result => this.pointOf.get([...result.id].slice(0, this.idChars).join("")) ?? null);
    const count = `${results.length} result${results.length === 1 ? "" : "s"}`;
    this.section.hidden = answer === null;
    this.section.querySelector("h2").textContent = count;
    this.section.querySelector("ol").replaceChildren(...results.map((result, number) => {
      const { path, start_line, end_line, score } = result;
      const elsewhere = this.map && points[number] === null ? " · not on the map" : "";
      return element(
        "li", {},
        element("a", { href: filePath(path, start_line, end_line) }, element("bdi", { textContent: visible(path) })),
        " ",
        element("span", {
          className: "am-muted",
          textContent: `${lines(start_line, end_line)} · ${score.toFixed(3)}${elsewhere}`,
        }),
      );
    }));
    if (answer) say(notices[0] ? `${count}. ${notices[0].message}` : count);
    this.map?.light(points);
  }
}

async function start() {
  const given = parameters();
  given.delete("q");
  const response = await fetch(`${pagePath}/map.json?${given}`);
  const data = await response.json();
  if (!data.ok) return say(data.error);
  const search = new Search(data);
  const root = document.getElementById("am-map");
  if (root && data.points.x.length) {
    // On the element, for scripts and plugins.
    search.map = root.memoryMap = new MemoryMap(root, data);
    root.querySelector("#am-colour").addEventListener("change", () => {
      writeAddress();
    });
  }
  if (form.elements.q.value.trim()) search.run();
  const timelineRoot = document.getElementById("am-timeline");
  if (timelineRoot && data.timeline.chunks.length) {
    timelineRoot.timeline = new Timeline(timelineRoot, data.timeline, {
      color,
      say,
      open: (since, until) => {
        const there = parameters();
        there.delete("colour");
        there.set("since", since);
        there.set("until", until);
        location.assign(`${pagePath}?${there}`);
      },
      changed: () => search.runSoon(),
    });
  }
}

start();
