"use strict";

/* Who wins when: the time of each algorithm over the size of the array, by the clock of the model. */

const MACHINE = explorer.machines.usual;
const SIZES = [...Array(12).keys()].map((k) => 2 ** (3 + 2 * k)); // 8 B to 32 MiB
const NAMES = {
  all_to_all: "all to all", master_worker: "master", tree: "tree", butterfly: "butterfly", ring: "ring",
};
const DASHES = { all_to_all: "7 4", master_worker: "2 4" }; // their colours are close to those of others

/* The time of an algorithm for arrays of so many bytes, without playing it. */
function timeOf(course, algorithm, p, nbytes, machine = MACHINE) {
  const [plan] = course.loaded.get(algorithm).cases[p].roots;
  return timed(plan.rounds.map((row) => row.length), messagesOf(plan, nbytes), machineOf(machine, p)).end;
}

const TIMES = new Map(); // "ring 8", with alpha and beta -> times for SIZES

function timesOf(course, algorithm, p, machine) {
  const key = `${algorithm} ${p} ${machine.alpha} ${machine.beta}`;
  if (!TIMES.has(key)) TIMES.set(key, SIZES.map((nbytes) => timeOf(course, algorithm, p, nbytes, machine)));
  return TIMES.get(key);
}

/* The algorithms from the fastest on, as [name, time]. */
function ranking(course, p, nbytes, machine = MACHINE) {
  return Object.keys(NAMES).map((name) => [name, timeOf(course, name, p, nbytes, machine)])
    .sort(([, a], [, b]) => a - b);
}

/* The sizes at which another algorithm becomes the fastest: where lines between points cross. */
function crossings(course, p, machine = MACHINE) {
  const every = Object.keys(NAMES).map((name) => [name, timesOf(course, name, p, machine)]);
  const best = (k) => every.reduce((one, other) => (other[1][k] < one[1][k] * (1 - 1e-9) ? other : one));
  const found = [];
  for (let k = 0; k + 1 < SIZES.length; k += 1) {
    const [from, to] = [best(k), best(k + 1)];
    if (from === to) continue;
    const [a, b] = [to[1][k] - from[1][k], to[1][k + 1] - from[1][k + 1]];
    const part = a / (a - b);
    found.push({
      nbytes: SIZES[k] + part * (SIZES[k + 1] - SIZES[k]),
      time: from[1][k] + part * (from[1][k + 1] - from[1][k]),
      from: from[0], to: to[0],
    });
  }
  return found;
}

class Curves {
  constructor(parent, chapter, pick) {
    this.chapter = chapter;
    this.course = chapter.course;
    this.p = chapter.p;
    this.nbytes = 2 ** 10;
    this.machine = MACHINE;
    this.box = make("figure", "figure curves", parent);
    this.svg = draw("svg", { class: "plot", role: "img" }, this.box);
    this.words = make("figcaption", "words", this.box);
    this.words.setAttribute("aria-live", "polite");
    this.table = make("table", "", this.box);
    const point = (event) => {
      if (!this.open || (event.type === "pointermove" && !event.buttons)) return;
      const box = this.svg.getBoundingClientRect();
      const part = (((event.clientX - box.left) / box.width) * this.width - 52) / (this.width - 64);
      pick(Math.round(3 + Math.max(0, Math.min(1, part)) * 22));
    };
    this.svg.addEventListener("pointerdown", point);
    this.svg.addEventListener("pointermove", point);
    this.open = false; // whether the curves are shown, or only the axes
  }

  show(more) {
    Object.assign(this, more);
    this.lay();
  }

  x(nbytes) {
    return 52 + ((Math.log2(nbytes) - 3) / 22) * (this.width - 64);
  }

  y(time) {
    const [low, high] = this.range;
    return 330 - ((Math.log10(time) - low) / (high - low)) * 310;
  }

  axes() {
    const { svg } = this;
    for (let k = 3; k <= 25; k += 1) {
      if ((k - 3) % 5 && k !== 25) continue;
      if (k === 23) continue;
      const x = this.x(2 ** k);
      draw("line", { class: "rule", x1: x, x2: x, y1: 20, y2: 330 }, svg);
      const place = k === 3 ? "begin" : k === 25 ? "end" : "middle";
      draw("text", { class: place, x, y: 346 }, svg).textContent = bytesText(2 ** k);
    }
    for (let power = Math.ceil(this.range[0]); power <= this.range[1]; power += 1) {
      const y = this.y(10 ** power);
      draw("line", { class: "rule", x1: 52, x2: this.width - 12, y1: y, y2: y }, svg);
      draw("text", { class: "end", x: 46, y }, svg).textContent = timeText(10 ** power);
    }
    draw("text", { class: "begin title", x: 6, y: 10 }, svg).textContent = "time of the allreduce";
    draw("text", { class: "end title", x: this.width - 12, y: 366 }, svg).textContent = "size of the array";
  }

  lay() {
    const { svg, course, p } = this;
    this.width = Math.max(300, Math.floor(svg.parentNode.clientWidth - 28));
    svg.replaceChildren();
    svg.setAttribute("viewBox", `0 0 ${this.width} 374`);
    svg.setAttribute("height", 374);
    const times = Object.keys(NAMES).flatMap((name) => timesOf(course, name, p, this.machine)).map(Math.log10);
    this.range = [Math.min(-5.75, ...times), Math.max(-0.9, ...times)];
    this.axes();
    const order = ranking(course, p, this.nbytes, this.machine);
    if (this.open) this.lines(order);
    this.say(order);
  }

  lines(order) {
    const { svg, course, p } = this;
    for (const [name] of [...order].reverse()) {
      const times = timesOf(course, name, p, this.machine);
      const points = SIZES.map((nbytes, k) => `${this.x(nbytes).toFixed(1)} ${this.y(times[k]).toFixed(1)}`);
      const best = name === order[0][0];
      const style = `stroke:${this.colour(name)};stroke-dasharray:${DASHES[name] || "none"}`;
      const line = { d: `M${points.join("L")}`, style };
      draw("path", { class: best ? "curve best" : "curve", ...line }, svg);
    }
    for (const { nbytes, time, from, to } of crossings(course, p, this.machine)) {
      const mark = draw("circle", { class: "crossing", cx: this.x(nbytes), cy: this.y(time), r: 6 }, svg);
      draw("title", {}, mark).textContent = `${NAMES[from]} and ${NAMES[to]}: ${bytesText(nbytes)}`;
      const right = this.x(nbytes) > this.width - 110;
      const at = { x: this.x(nbytes) + (right ? -10 : 10), y: this.y(time) + 18 };
      const text = draw("text", { class: right ? "end here" : "here", ...at }, svg);
      text.textContent = bytesText(nbytes);
    }
    const x = this.x(this.nbytes);
    draw("line", { class: "head", x1: x, x2: x, y1: 12, y2: 334 }, svg);
    for (const [name, time] of order) {
      draw("circle", { cx: x, cy: this.y(time), r: 4, style: `fill:${this.colour(name)}` }, svg);
    }
  }

  colour(name) {
    const entry = this.course.contract("allreduce").algorithms.find((each) => each.name === name);
    return `var(--a${entry.colour})`;
  }

  /* The fastest in words, and all of them with the terms of the model: messages in a row, and the rest. */
  say(order) {
    const { course, p, nbytes } = this;
    this.table.hidden = !this.open;
    this.svg.setAttribute("aria-label", this.open
      ? `Time over size on ${countText(p, "rank")}. The table has the times for ${bytesText(nbytes)}.`
      : "Axes without curves");
    if (!this.open) {
      this.words.textContent = "The curves appear when you have predicted.";
      return;
    }
    const [[first, time], [second, other]] = order;
    const as = other < time * 1.001 ? `, as fast as ${NAMES[second]}` : "";
    this.words.textContent = `${bytesText(nbytes)} on ${countText(p, "rank")}: ${NAMES[first]} is the `
      + `fastest${as}, with ${timeText(time)}.`;
    this.table.replaceChildren();
    const head = make("tr", "", make("thead", "", this.table));
    for (const each of ["algorithm", "messages in a row", "they take", "bytes take", "time"]) {
      make("th", "", head, each).scope = "col";
    }
    const body = make("tbody", "", this.table);
    for (const [name, all] of order) {
      const row = make("tr", "", body);
      const label = make("th", "", row, NAMES[name]);
      label.scope = "row";
      label.style.setProperty("--a", this.colour(name));
      if (DASHES[name]) label.classList.add("dashed");
      const empty = timeOf(course, name, p, 0, this.machine);
      make("td", "", row, String(Math.round(empty / this.machine.alpha)));
      for (const each of [empty, all - empty, all]) make("td", "", row, timeText(each));
    }
  }
}
