// The timeline: chunks a day, week or month as bars, and over them the weight that decay gives.
import uPlot from "./vendor/uplot/uPlot.esm.js";

const DAY_S = 86400;
const LINE_POINTS = 400;
const HEIGHT_PX = 220;

const seconds = date => Date.parse(date) / 1000;

export class Timeline {
  constructor(root, data, { color, say, open, changed }) {
    this.data = data;
    this.color = color;
    this.say = say;
    this.open = open;
    this.plotElement = root.querySelector(".am-timeline-plot");
    this.caption = root.querySelector(".am-timeline-caption");
    this.since = data.since.map(seconds);
    this.end = data.until.map(date => seconds(date) + DAY_S);
    this.now = data.now === null ? this.end.at(-1) : seconds(data.now);
    this.halfLife = data.half_life;
    this.chosen = null;
    root.hidden = false;
    this.prepareHalfLife(changed);
    this.prepareLine();
    this.build();
    this.plotElement.addEventListener("keydown", event => this.onKey(event));
    new ResizeObserver(() => this.resize()).observe(this.plotElement);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.build());
  }

  prepareHalfLife(changed) {
    const number = document.getElementById("am-half-life");
    const range = document.getElementById("am-half-life-range");
    range.value = this.halfLife;
    range.hidden = false;
    const set = (value, other) => {
      if (!(value >= 0.01 && value <= 1_000_000)) return;
      this.halfLife = value;
      other.value = value;
      this.plot.setData(this.columns(), false);
      this.tell();
      changed();
    };
    range.addEventListener("input", () => set(Number(range.value), number));
    number.addEventListener("input", () => set(Number(number.value), range));
  }

  /** The times of the bars and of the line: a bar stands at its beginning. */
  prepareLine() {
    const [first, last] = [this.since[0], this.end.at(-1)];
    // One day alone would be one wide bar.
    const margin = Math.max((last - first) * 0.01, (20 * DAY_S - (last - first)) / 2, DAY_S / 2);
    this.range = [first - margin, last + margin];
    const width = this.range[1] - this.range[0];
    const times = new Set(this.since);
    for (let step = 0; step <= LINE_POINTS; step++) times.add(this.range[0] + width * step / LINE_POINTS);
    this.times = [...times].sort((a, b) => a - b);
    this.barAt = new Map(this.since.map((time, bar) => [time, bar]));
  }

  weight(time) {
    return 2 ** (-Math.max(0, this.now - time) / DAY_S / this.halfLife);
  }

  columns() {
    return [
      this.times,
      this.times.map(time => this.data.chunks[this.barAt.get(time)] ?? null),
      this.times.map(time => this.weight(time)),
    ];
  }

  build() {
    this.plot?.destroy();
    const axis = {
      stroke: this.color("--am-muted"),
      grid: { stroke: this.color("--am-line"), width: 1 },
      ticks: { stroke: this.color("--am-line"), width: 1 },
      font: "12px system-ui, sans-serif",
    };
    const most = Math.max(...this.data.chunks);
    this.plot = new uPlot(
      {
        width: Math.max(200, this.plotElement.clientWidth),
        height: HEIGHT_PX,
        tzDate: time => uPlot.tzDate(new Date(time * 1000), "Etc/UTC"),
        legend: { show: false },
        cursor: { x: false, y: false, points: { show: false }, drag: { x: false, y: false } },
        scales: {
          x: { range: () => this.range },
          chunks: { range: () => [0, most * 1.1] },
          weight: { range: () => [0, 1.02] },
        },
        axes: [
          { ...axis, size: 30, space: 64, values: (plot, times) => times.map(time => this.label(time)) },
          { ...axis, scale: "chunks", incrs: [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000, 50000, 100000] },
          {
            ...axis, scale: "weight", side: 1, grid: { show: false }, stroke: this.color("--am-text"),
            splits: () => [0, 0.5, 1], values: (plot, weights) => weights.map(String), size: 36,
          },
        ],
        series: [
          {},
          { scale: "chunks", points: { show: false }, paths: () => this.drawBars() },
          {
            scale: "weight", stroke: this.color("--am-text"), width: 2, points: { show: false },
            paths: uPlot.paths.linear(), spanGaps: true,
          },
        ],
      },
      this.columns(),
      this.plotElement,
    );
    this.plot.ctx.canvas.setAttribute("role", "img");
    this.plot.ctx.canvas.setAttribute("aria-label", this.plotElement.getAttribute("aria-label"));
    this.mark = document.createElement("div");
    this.mark.className = "am-timeline-mark";
    this.plot.over.append(this.mark);
    this.plot.over.addEventListener("pointermove", event => this.choose(this.barNear(event.offsetX)));
    this.plot.over.addEventListener("pointerleave", () => this.choose(null));
    this.plot.over.addEventListener("click", event => this.go(this.barNear(event.offsetX)));
    this.tell();
  }

  label(time) {
    const date = new Date(time * 1000).toISOString();
    const span = (this.range[1] - this.range[0]) / DAY_S;
    return span > 8 * 366 ? date.slice(0, -20) : span > 90 ? date.slice(0, -17) : date.slice(0, -14);
  }

  resize() {
    const width = Math.max(200, this.plotElement.clientWidth);
    if (width === this.plot.width) return;
    this.plot.setSize({ width, height: HEIGHT_PX });
    this.tell();
  }

  drawBars() {
    const { ctx, bbox } = this.plot;
    ctx.save();
    ctx.fillStyle = this.color("--am-vector");
    const floor = bbox.top + bbox.height;
    this.since.forEach((since, bar) => {
      // On whole pixels, so that thin bars are not pale.
      const left = Math.round(this.plot.valToPos(since, "x", true));
      const width = Math.round(this.plot.valToPos(this.end[bar], "x", true)) - left;
      // Neighbours stand apart where there is room for it.
      const gap = width >= 4 * uPlot.pxRatio ? Math.round(uPlot.pxRatio) : 0;
      const top = Math.round(this.plot.valToPos(this.data.chunks[bar], "chunks", true));
      ctx.fillRect(left, top, Math.max(Math.round(uPlot.pxRatio), width - gap), floor - top);
    });
    ctx.restore();
    return null;
  }

  /** The bar at or near a place, in CSS pixels, or null. */
  barNear(left) {
    const time = this.plot.posToVal(left, "x");
    const reach = 6 * (this.range[1] - this.range[0]) / this.plot.over.clientWidth;
    let best = null;
    let least = reach;
    this.since.forEach((since, bar) => {
      const distance = Math.max(0, since - time, time - this.end[bar]);
      if (distance < least) [best, least] = [bar, distance];
    });
    return best;
  }

  choose(bar) {
    if (bar === this.chosen) return;
    this.chosen = bar;
    this.plot.over.style.cursor = bar === null ? "" : "pointer";
    this.tell();
  }

  words(bar) {
    const { unit, since, until, chunks } = this.data;
    const time = unit === "day" ? since[bar] : unit === "week" ? `${since[bar]} to ${until[bar]}` : since[bar].slice(0, -3);
    return `${time}: ${chunks[bar]} chunk${chunks[bar] === 1 ? "" : "s"}, weight ${this.weight(this.since[bar]).toFixed(2)}`;
  }

  tell() {
    const bar = this.chosen;
    this.caption.textContent = bar === null ? "\u00a0" : this.words(bar);
    this.mark.hidden = bar === null;
    if (bar === null) return;
    const left = this.plot.valToPos(this.since[bar], "x");
    this.mark.style.insetInlineStart = `${left - 2}px`;
    this.mark.style.width = `${Math.max(1, this.plot.valToPos(this.end[bar], "x") - left) + 4}px`;
  }

  go(bar) {
    if (bar !== null) this.open(this.data.since[bar], this.data.until[bar]);
  }

  onKey(event) {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const last = this.since.length - 1;
    if (step) this.choose(this.chosen === null ? (step > 0 ? 0 : last) : Math.min(last, Math.max(0, this.chosen + step)));
    else if (event.key === "Home") this.choose(0);
    else if (event.key === "End") this.choose(last);
    else if (event.key === "Enter" && this.chosen !== null) this.go(this.chosen);
    else if (event.key === "Escape" && this.chosen !== null) this.choose(null);
    else return;
    event.preventDefault();
    this.say(this.chosen === null ? "" : this.words(this.chosen));
  }
}
