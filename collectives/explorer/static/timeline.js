"use strict";

/* Work over time: a row for each that works, boxes while it does, and lines from row to row. It is drawn up to
   the time that is shown, and played as the figures are. */

/* What a timeline plays: rows with names, boxes [row, from, to, kind, text], lines [time, row, time, row, kind],
   the ends of its steps, what a step says, and what has been counted up to a time. */
class Work extends Stepped {
  /* The end of all, and steps at some times. */
  finish(end, times) {
    this.end = end;
    this.steps = [...new Set([0, ...times])].sort((a, b) => a - b);
    this.depth = this.steps.length - 1;
  }
}

class Timeline extends Board {
  place() {
    this.svg = draw("svg", { class: "timeline", role: "img" }, this.picture);
  }

  take(run) {
    this.stop();
    this.run = run;
    this.time = 0;
    this.counts.replaceChildren();
    this.count = counters(this.counts, run.names);
    this.lay();
  }

  x(time) {
    return this.left + (time / this.end) * (this.width - this.left - 8);
  }

  lay() {
    if (!this.run) return;
    const { run, svg } = this;
    this.width = Math.max(270, Math.floor(this.picture.clientWidth));
    this.left = 68;
    const [high, pitch] = [30, run.rows.length > 3 ? 48 : 68];
    const floor = (run.rows.length - 1) * pitch + high + 4;
    svg.replaceChildren();
    svg.setAttribute("viewBox", `0 0 ${this.width} ${floor + 24}`);
    svg.setAttribute("height", floor + 24);
    run.rows.forEach((name, row) => {
      draw("text", { class: "name", x: 0, y: row * pitch + high / 2 + 2 }, svg).textContent = name;
      const place = { x: this.left, y: row * pitch + 2, width: this.width - this.left - 8, height: high };
      draw("rect", { class: "lane", ...place }, svg);
    });
    const group = this.shown = draw("svg", { height: floor }, svg); // hides what is later
    for (const [from, top, to, bottom, kind] of run.lines) {
      const [y1, y2] = top < bottom ? [top * pitch + high + 2, bottom * pitch + 2]
        : [top * pitch + 2, bottom * pitch + high + 2];
      draw("line", { class: `link ${kind}`, x1: this.x(from), x2: this.x(to), y1, y2 }, group);
    }
    for (const [row, from, to, kind, text] of run.boxes) {
      const wide = Math.max(1.5, this.x(to) - this.x(from) - 1);
      const box = draw("g", { class: `work ${kind}` }, group);
      draw("rect", { x: this.x(from), y: row * pitch + 2, width: wide, height: high, rx: 2 }, box);
      if (wide < 7 * text.length + 3) continue;
      const middle = { x: this.x(from) + wide / 2, y: row * pitch + high / 2 + 2 };
      draw("text", { class: "value", ...middle }, box).textContent = text;
    }
    for (const part of [0, 0.25, 0.5, 0.75, 1]) {
      const kind = part === 1 ? "axis end" : part ? "axis middle" : "axis";
      draw("text", { class: kind, x: this.x(part * this.end), y: floor + 14 }, svg).textContent
        = timeText(part * this.end);
    }
    this.head = draw("line", { class: "now", y1: 0, y2: floor }, svg);
    this.show();
  }

  show() {
    const { run, time } = this;
    const step = run.steps.filter((end) => end <= time).length - 1;
    const x = this.x(time);
    this.shown.setAttribute("width", x);
    this.shown.style.width = `${x}px`; // for browsers in which a style sheet goes before the attribute
    this.head.setAttribute("x1", x);
    this.head.setAttribute("x2", x);
    const found = run.counted(time);
    for (const [name, text] of Object.entries(found)) setText(this.count[name], text);
    const words = step ? run.said(step) : run.begin;
    setText(this.words, words);
    this.mark(this.at());
    const label = `${run.rows.join(", ")}, over time up to ${timeText(run.steps[step])}. ${words}`;
    if (label !== this.label) this.svg.setAttribute("aria-label", label);
    this.label = label;
  }
}
