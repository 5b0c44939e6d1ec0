"use strict";

/* Parts of chapters beside the figure: a slider with its value, bars that are one, too, and two phases. */

class Slider {
  constructor(parent, { label, min, max, value, text = String, step = 1, act }) {
    const box = make("label", "dial", parent);
    const head = make("span", "", box, label);
    this.output = make("output", "", head);
    this.input = make("input", "", box);
    Object.assign(this.input, { type: "range", min, max, step });
    this.input.id = `dial-${Slider.number = (Slider.number || 0) + 1}`;
    box.htmlFor = this.input.id; // an output would be what it labels
    this.text = text;
    this.act = act;
    this.input.addEventListener("input", () => this.set(Number(this.input.value)));
    this.set(value, true);
  }

  set(value, quiet = false) {
    this.value = value;
    this.input.value = value;
    this.output.textContent = ` ${this.text(value)}`;
    this.input.setAttribute("aria-valuetext", this.text(value));
    if (!quiet) this.act(value);
  }
}

/* Bars over the number of ranks: one series filled, others as lines above it. */
class Bars {
  constructor(parent, { title, series, pick }) {
    this.series = series;
    this.box = make("figure", "bars", parent);
    const id = `bars-${Bars.number = (Bars.number || 0) + 1}`;
    this.svg = draw("svg", { class: "chart", role: "img", "aria-labelledby": id }, this.box);
    make("figcaption", "", this.box, title).id = id;
    const point = (event) => {
      if (event.type === "pointermove" && !event.buttons) return;
      const box = this.svg.getBoundingClientRect();
      const { ranks } = this;
      const part = ((event.clientX - box.left) / box.width) * this.width - 34;
      pick(ranks[Math.max(0, Math.min(ranks.length - 1, Math.floor(part / this.pitch)))]);
    };
    this.svg.addEventListener("pointerdown", point);
    this.svg.addEventListener("pointermove", point);
  }

  lay(width, chosen) {
    this.width = width;
    this.ranks = this.series[0].points.map(([p]) => p);
    const high = 150;
    const { svg, series } = this;
    svg.replaceChildren();
    svg.setAttribute("viewBox", `0 0 ${width} ${high + 22}`);
    svg.setAttribute("height", high + 22);
    this.pitch = (width - 38) / this.ranks.length;
    const most = Math.max(...series.flatMap(({ points }) => points.map(([, y]) => y)));
    const top = (y) => high - (y / most) * (high - 18);
    for (const y of [0, most / 2, most]) {
      draw("line", { class: "rule", x1: 34, x2: width - 4, y1: top(y), y2: top(y) }, svg);
      draw("text", { class: "end", x: 30, y: top(y) }, svg).textContent = Number(y.toFixed(1));
    }
    const each = (this.pitch - 3) / series.length;
    series.forEach(({ points, colour }, k) => points.forEach(([p, y], n) => {
      const box = { x: 34 + n * this.pitch + k * each + 1.5, y: top(y), width: Math.max(1, each - 1),
        height: high - top(y) };
      const bar = draw("rect", { ...box, rx: 1.5, style: `fill:${colour}`, class: p === chosen ? "here" : "" }, svg);
      draw("title", {}, bar).textContent = `${countText(p, "rank")}: ${Number(y.toFixed(2))}`;
    }));
    this.ranks.forEach((p, n) => {
      if (this.pitch < 22 && p % 2) return;
      const kind = p === chosen ? "middle here" : "middle";
      const name = draw("text", { class: kind, x: 34 + (n + 0.5) * this.pitch, y: high + 12 }, svg);
      name.textContent = p;
    });
    series.forEach(({ name, colour }, k) => {
      const text = draw("text", { class: "key", x: 44, y: 12 + 17 * k }, svg);
      draw("tspan", { style: `fill:${colour}` }, text).textContent = "■ ";
      text.append(name);
    });
  }
}

/* The arrays of all ranks at the start, between two phases and at the end: a row for each rank, a column for each
   block, pale while its sum is not complete. Each is a button that shows this moment. */
class Phases {
  constructor(parent, names, pick) {
    this.box = make("div", "phases", parent);
    this.grids = ["Start", "Between the phases", "End"].map((name, k) => {
      const button = action(this.box, "moment", "", () => pick(this.steps[k]));
      button.setAttribute("aria-label", `${name}: show it`);
      if (k < names.length) {
        const arrow = make("p", "", this.box);
        make("strong", "", arrow, names[k]);
        make("span", "", arrow);
      }
      return draw("svg", {}, button);
    });
  }

  lay(run, between) {
    this.steps = [0, between, run.depth];
    this.box.hidden = run.p > MOST; // cells would be too small
    if (this.box.hidden) return;
    this.box.querySelectorAll("span").forEach((each, k) => {
      each.textContent = countText(this.steps[k + 1] - this.steps[k], "step");
    });
    this.grids.forEach((svg, k) => {
      svg.replaceChildren();
      svg.setAttribute("viewBox", `0 0 ${run.nblocks} ${run.p}`);
      for (let r = 0; r < run.p; r += 1) {
        for (let b = 0; b < run.nblocks; b += 1) {
          const [element] = run.bounds(b);
          const whole = run.held(r, element, run.steps[this.steps[k]]).mask === run.due(r, element);
          const kind = `${colourOf(run, b)} ${whole ? "whole" : ""}`;
          draw("rect", { class: kind, x: b + 0.04, y: r + 0.04, width: 0.92, height: 0.92 }, svg);
        }
      }
    });
  }
}
