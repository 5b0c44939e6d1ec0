"use strict";

/* The stage: a row for each rank with its array, messages under way between them, and below the same
   over time: what each rank sends, receives and folds. */

/* Where the cells of all ranks are, for a width in pixels, and the same heights for all `runs`. */
class Layout {
  constructor(run, width, runs) {
    const { p } = run;
    const layout = run.contract.layout;
    this.left = width < 500 ? 24 : 62;
    const room = width - this.left - (layout === "whole" ? 30 : 12);
    const ranks = [...Array(p).keys()];
    this.lines = ranks.map((r) => this.arrays(run, r, layout));
    const every = runs.flatMap((each) => ranks.map((r) => this.arrays(each, r, layout)));
    const columns = Math.max(...every.flat().map((line) => line.length), 1);
    this.wide = Math.max(6, Math.min(124, room / columns));
    this.high = Math.max(18, Math.min(48, 0.8 * this.wide, 60 - 3 * p));
    const apart = Math.max(14, Math.min(48, 260 / p));
    const most = Math.max(...every.map((lines) => lines.length));
    this.inner = this.high + 4;
    this.pitch = most * this.inner + apart;
    // How far above its cell waits what is folded in.
    const folds = runs.some((each) => each.messages.some((m) => m.fold));
    this.lift = folds ? Math.min(0.75 * this.high, 0.8 * apart) : 0;
    this.top = this.lift + 6;
    this.height = this.top + p * this.pitch - apart + 12;
    this.font = Math.min(22, this.wide * 0.46, this.high * 0.6);
    this.places = this.lines.map((lines) => {
      const found = new Map();
      lines.forEach((line, y) => line.forEach((element, x) => {
        if (element === null) return;
        if (!found.has(element)) found.set(element, []);
        found.get(element).push([x, y]);
      }));
      return found;
    });
  }

  /* The lines of a rank: for an alltoall what it gives, what it gets, and what passes through. */
  arrays(run, r, layout) {
    const every = [...Array(run.length).keys()];
    if (layout !== "pairs") return [every];
    const cut = run.nblocks / (run.p * run.p);
    const part = (e) => Math.floor(e / cut);
    const gives = every.filter((e) => Math.floor(part(e) / run.p) === r);
    const gets = every.filter((e) => part(e) % run.p === r);
    const passing = [...run.changes[r].keys()].filter((e) => !gives.includes(e) && !gets.includes(e));
    const lines = [gives, gets];
    while (passing.length) lines.push(passing.splice(0, gives.length));
    return lines;
  }

  /* The corner of a cell: of the last place of an element where something comes in. */
  at(rank, element, comesIn = false) {
    const places = this.places[rank].get(element);
    const [x, y] = places[comesIn ? places.length - 1 : 0];
    return this.corner(rank, x, y);
  }

  /* Whether something as high as a cell hides the row of one of the ranks between two others. */
  hides(y, source, target) {
    const [low, high] = [Math.min(source, target), Math.max(source, target)];
    for (let r = low + 1; r < high; r += 1) {
      const top = this.corner(r, 0, 0)[1];
      const bottom = top + this.lines[r].length * this.inner - 4;
      if (y + 0.75 * this.high > top && y + 0.25 * this.high < bottom) return true;
    }
    return false;
  }

  corner(rank, x, y) {
    return [this.left + x * this.wide, this.top + rank * this.pitch + y * this.inner];
  }
}

class Stage {
  constructor(parent) {
    this.svg = draw("svg", { class: "stage", role: "img" }, parent);
  }

  /* Draw everything that stays. */
  lay(run, width, showRanks, runs) {
    this.run = run;
    this.showRanks = showRanks;
    this.layout = new Layout(run, width, runs);
    const { layout, svg } = this;
    svg.replaceChildren();
    svg.setAttribute("viewBox", `0 0 ${width} ${layout.height}`);
    svg.setAttribute("height", layout.height);
    svg.style.setProperty("--font", `${layout.font}px`);
    this.cells = [];
    this.frames(width);
    for (let r = 0; r < run.p; r += 1) {
      const lines = layout.lines[r];
      const [, y] = layout.corner(r, 0, 0);
      const name = draw("text", { class: "rank", x: 0, y: y + layout.high / 2 }, svg);
      name.textContent = layout.left > 30 ? `rank ${r}` : r;
      const wanted = new Set(run.elements(run.plan.wanted[r]));
      lines.forEach((line, row) => line.forEach((element, column) => {
        const gets = lines.length < 2 || row === 1;
        const slot = gets ? wanted.has(element) : row === 0;
        this.cells.push(this.cell(r, element, column, row, slot));
      }));
    }
    this.paths = draw("g", { class: "paths" }, svg);
    this.chips = draw("g", { class: "chips" }, svg);
    this.flying = new Map();
  }

  /* A frame around the ranks of each group; its ranks are consecutive. */
  frames(width) {
    const { layout, run } = this;
    const low = layout.pitch - layout.lines[0].length * layout.inner;
    run.groups.forEach((group, first) => {
      if (first && run.groups[first - 1] === group) return;
      const last = run.groups.lastIndexOf(group);
      const [, y] = layout.corner(first, 0, 0);
      const height = (last - first + 1) * layout.pitch - low + 6;
      const frame = draw("rect", { class: "group", x: -6, y: y - 4, width: width + 8, height, rx: 6 },
        this.svg);
      draw("title", {}, frame).textContent = `group ${group}`;
    });
  }

  cell(rank, element, column, row, slot) {
    const { layout, run } = this;
    const [x, y] = layout.corner(rank, column, row);
    const block = run.blockOf(element);
    const group = draw("g", { class: `cell ${colourOf(run, block)}` }, this.svg);
    const box = { x: x + 1, y: y + 1, width: layout.wide - 2, height: layout.high - 2, rx: 3 };
    const title = draw("title", {}, group);
    draw("rect", { class: slot ? "slot" : "slot none", ...box }, group);
    draw("rect", { class: "fill", ...box }, group);
    draw("rect", { class: "glow", ...box }, group);
    const middle = { x: x + layout.wide / 2, y: y + layout.high / 2 };
    const text = draw("text", { class: "value", ...middle }, group);
    return { rank, element, block, group, title, text, shown: "" };
  }

  /* Show a time; `since` is when what counts as new began. */
  show(time, since) {
    const glow = this.run.end / (12 * Math.max(this.run.depth, 1));
    for (const cell of this.cells) {
      const state = this.run.held(cell.rank, cell.element, time);
      const fresh = state && state.kind !== "start" && state.time > since && state.time <= time;
      const lit = fresh && state.kind === "fold" && (this.busy(cell, time) || time - state.time < glow);
      const key = state ? `${state.value} ${state.mask} ${fresh} ${lit}` : "";
      if (key !== cell.shown) this.fill(cell, state, fresh, lit);
      cell.shown = key;
    }
    for (const message of this.run.messages) {
      const under = message.start < time && time < message.done && message.load.length;
      if (under) this.fly(message, time);
      else if (this.flying.has(message)) {
        for (const part of this.flying.get(message)) part.remove();
        this.flying.delete(message);
      }
    }
  }

  busy(cell, time) {
    return this.run.messages.some((m) => m.fold && m.target === cell.rank
      && m.arrive <= time && time < m.done && m.blocks.includes(cell.block));
  }

  fill(cell, state, fresh, lit) {
    const { group, text, title, rank, element, block } = cell;
    const due = this.run.due(rank, element);
    const whole = state && state.mask === due;
    const kinds = ["cell", colourOf(this.run, block)];
    if (state) kinds.push(whole ? "whole" : "part");
    if (fresh) kinds.push("fresh");
    if (lit) kinds.push("lit");
    group.setAttribute("class", kinds.join(" "));
    if (!state) {
      text.textContent = title.textContent = "";
      return;
    }
    const owners = spansText(bits(state.mask));
    this.write(text, this.showRanks ? owners : String(state.value));
    const from = bits(state.mask).length > 1 ? "ranks" : "rank";
    title.textContent = `rank ${rank}, ${blocksText(this.run, [block])}: ${state.value}, from ${from} `
      + `${owners}${whole ? ", complete" : ""}`;
  }

  /* Write what fits into a cell, or into a part of its width. */
  write(text, words, letter = 0.58, wide = this.layout.wide) {
    const { font } = this.layout;
    const least = wide < this.layout.wide ? 3 : 2; // letters, so that most sizes are the same
    const size = Math.min(font, (wide - 5) / (Math.max(words.length, least) * letter));
    text.style.fontSize = `${size}px`;
    text.textContent = size < 6 ? "" : words;
  }

  /* Show a message under way: its numbers, side by side as in the array. */
  fly(message, time) {
    if (!this.flying.has(message)) this.flying.set(message, this.lift(message));
    const [path, ...chips] = this.flying.get(message);
    const length = message.arrive - message.start;
    const part = length > 0 ? Math.min(1, (time - message.start) / length) : 1;
    const eased = part * part * (3 - 2 * part);
    path.setAttribute("class", `path ${colourOf(this.run, message.blocks[0])}`);
    chips.forEach((chip, k) => {
      const { element } = message.load[k];
      const [x1, y1] = this.layout.at(message.source, element);
      const [x2, y2] = this.layout.at(message.target, element, true);
      const [bx, by] = this.bend(message, x2 - x1, y2 - y1).map((each) => each * 4 * eased * (1 - eased));
      const merging = message.fold && part === 1;
      const y = y1 + eased * (y2 - y1) + by - (merging ? this.layout.lift : 0);
      chip.classList.toggle("merging", merging);
      chip.classList.toggle("passing", this.layout.hides(y, message.source, message.target));
      const x = x1 + eased * (x2 - x1) + bx;
      chip.setAttribute("transform", `translate(${x.toFixed(1)} ${y.toFixed(1)})`);
    });
  }

  /* Whether a message comes the opposite way at the same time: both then take half of the width. */
  meets(message) {
    message.met ??= this.run.messages.some((m) => m.source === message.target
      && m.target === message.source && m.start < message.arrive && message.start < m.arrive);
    return message.met;
  }

  /* How far the middle of a way is off the straight line. What goes straight up or down makes room:
     down to the right, up to the left. */
  bend(message, across) {
    if (Math.abs(across) > this.layout.wide || this.meets(message)) return [0, 0];
    const far = Math.abs(message.target - message.source);
    return [Math.sign(message.target - message.source) * Math.min(26, 4 + 5 * (far - 1)), 0];
  }

  lift(message) {
    const { layout, run } = this;
    const middle = message.load[Math.floor((message.load.length - 1) / 2)].element;
    const [x1, y1] = layout.at(message.source, middle);
    const [x2, y2] = layout.at(message.target, middle, true);
    const half = this.meets(message) && Math.abs(x2 - x1) < layout.wide;
    const wide = half ? layout.wide / 2 : layout.wide;
    const left = half && message.target > message.source ? wide : 0;
    const dx = left + wide / 2;
    const dy = layout.high / 2;
    const [bx, by] = this.bend(message, x2 - x1, y2 - y1);
    const [cx, cy] = [(x1 + x2) / 2 + dx + 2 * bx, (y1 + y2) / 2 + dy + 2 * by];
    const path = draw("path", {
      d: `M${x1 + dx} ${y1 + dy}Q${cx} ${cy} ${x2 + dx} ${y2 + dy}`,
    }, this.paths);
    const chips = message.load.map(({ element, value, mask }) => {
      const chip = draw("g", { class: `chip ${colourOf(run, run.blockOf(element))}` }, this.chips);
      const margin = half ? 1 : 2;
      const box = {
        x: left + margin, y: 2, width: wide - 2 * margin, height: layout.high - 4, rx: 5,
      };
      draw("rect", { class: "body", ...box }, chip);
      const text = draw("text", { class: "value", x: dx, y: dy }, chip);
      const plus = message.fold && !run.contract.idempotent ? "+" : "";
      this.write(text, plus + (this.showRanks ? spansText(bits(mask)) : value), 0.7, wide);
      return chip;
    });
    return [path, ...chips];
  }
}

/* The colour of a block; in an alltoall, of the rank that it comes from. */
function colourOf(run, block) {
  const number = run.contract.layout === "pairs" ? Math.floor((block * run.p) / run.nblocks) : block;
  return `c${number % 8}`;
}

/* The same over time: for each rank what it sends (above), receives and folds (below). */
class Lanes {
  constructor(parent, seek) {
    this.svg = draw("svg", { class: "lanes", "aria-hidden": "true" }, parent);
    const point = (event) => {
      if (event.type === "pointermove" && !event.buttons) return;
      const box = this.svg.getBoundingClientRect();
      const x = ((event.clientX - box.left) / box.width) * this.width;
      seek(Math.max(0, Math.min(1, (x - this.left) / (this.width - this.left - 6))));
    };
    this.svg.addEventListener("pointerdown", point);
    this.svg.addEventListener("pointermove", point);
  }

  lay(run, width, end) {
    this.width = width;
    this.left = width < 500 ? 24 : 62;
    this.end = end;
    const lane = run.p > 8 ? 11 : 18;
    const height = run.p * lane + 20;
    const { svg } = this;
    svg.replaceChildren();
    svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    svg.setAttribute("height", height);
    for (let r = 0; r < run.p; r += 1) {
      const shade = { x: this.left, y: r * lane, width: width - this.left - 6, height: lane - 2 };
      draw("rect", { class: "lane", ...shade }, svg);
      const name = draw("text", { class: "rank", x: 0, y: r * lane + lane / 2 }, svg);
      name.textContent = r;
    }
    const half = (lane - 2) / 2;
    const bar = (rank, row, from, to, kind) => draw("rect", {
      class: kind, x: this.x(from), y: rank * lane + row * half,
      width: Math.max(1, this.x(to) - this.x(from) - 0.6), height: half - 0.5,
    }, svg);
    for (const m of run.messages) {
      const colour = colourOf(run, m.blocks[0]);
      bar(m.source, 0, m.start, m.leave, `bar ${colour}`);
      bar(m.target, 1, m.start, m.leave, `bar ${colour} in`);
      if (m.fold) bar(m.target, 1, m.arrive, m.done, "bar folding");
    }
    for (const time of run.steps.slice(1)) {
      const x = this.x(time);
      draw("line", { class: "tick", x1: x, x2: x, y1: run.p * lane - 2, y2: run.p * lane + 3 }, svg);
    }
    const over = this.x(run.end);
    draw("line", { class: "over", x1: over, x2: over, y1: 0, y2: run.p * lane - 2 }, svg);
    const label = draw("text", { class: "over", y: run.p * lane + 12 }, svg);
    const early = over < width * 0.8;
    label.setAttribute("x", early ? over : width - 6);
    label.setAttribute("text-anchor", early ? "middle" : "end");
    label.textContent = run.depth ? timeText(run.end) : "";
    this.head = draw("line", { class: "head", y1: 0, y2: run.p * lane + 2 }, svg);
  }

  x(time) {
    return this.left + (this.end ? time / this.end : 0) * (this.width - this.left - 6);
  }

  show(time) {
    const x = this.x(Math.min(time, this.end));
    this.head.setAttribute("x1", x);
    this.head.setAttribute("x2", x);
  }
}
