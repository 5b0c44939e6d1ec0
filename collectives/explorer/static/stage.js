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
    this.small = p > 16; // cells have colours only
    this.high = Math.max(this.small ? 6 : 18, Math.min(48, 0.8 * this.wide, 60 - 3 * p));
    const apart = Math.max(this.small ? 4 : 14, Math.min(48, 260 / p));
    const most = Math.max(...every.map((lines) => lines.length));
    this.inner = this.high + (this.small ? 1 : 4);
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
    const row = (at) => Math.floor((at - this.top) / this.pitch);
    const [top, bottom] = [y + 0.25 * this.high, y + 0.75 * this.high];
    const last = Math.min(high - 1, row(bottom));
    for (let r = Math.max(low + 1, row(top)); r <= last; r += 1) {
      const [, begin] = this.corner(r, 0, 0);
      if (bottom > begin && top < begin + this.lines[r].length * this.inner - 4) return true;
    }
    return false;
  }

  corner(rank, x, y) {
    return [this.left + x * this.wide, this.top + rank * this.pitch + y * this.inner];
  }
}

class Stage {
  constructor(parent) {
    this.box = make("div", "layers", parent);
    this.svg = draw("svg", { class: "stage", role: "img" }, this.box);
    // Messages move on a layer of their own, so that a browser need not paint the cells again.
    this.air = draw("svg", { class: "stage air", "aria-hidden": "true" }, this.box);
  }

  /* Empty both layers, which are of one size. */
  clear(width) {
    for (const svg of [this.svg, this.air]) {
      svg.replaceChildren();
      svg.setAttribute("viewBox", `0 0 ${width} ${this.layout.height}`);
      svg.setAttribute("height", this.layout.height);
      svg.classList.toggle("small", this.layout.small);
    }
    this.squares = draw("g");
    this.paths = draw("g"); // they change when cells do, so that they are on the layer of these
    this.chips = draw("g", { class: "chips" }, this.air);
    this.flying = new Map();
    this.alike = new Map(); // looks of small cells: the cells
    this.restyled = new Set(); // looks that other cells have now
    this.squared = new Map(); // looks of small cells: their paths
    this.dotted = new Map(); // looks of whole messages: their paths
    this.cells = [];
    this.time = null;
  }

  /* Draw everything that stays. */
  lay(run, width, showRanks, runs) {
    this.run = run;
    this.showRanks = showRanks;
    this.layout = new Layout(run, width, runs);
    const { layout, svg } = this;
    this.clear(width);
    this.frames(width);
    for (let r = 0; r < run.p; r += 1) {
      const lines = layout.lines[r];
      const [, y] = layout.corner(r, 0, 0);
      if (!layout.small || r % 4 === 0) {
        const name = draw("text", { class: "rank", x: 0, y: y + layout.high / 2 }, svg);
        name.textContent = layout.left > 30 ? `rank ${r}` : r;
      }
      const wanted = new Set(run.elements(run.plan.wanted[r]));
      lines.forEach((line, row) => line.forEach((element, column) => {
        const gets = lines.length < 2 || row === 1;
        const slot = gets ? wanted.has(element) : row === 0;
        this.cells.push(this.cell(r, element, column, row, slot));
      }));
    }
    svg.append(this.squares, this.paths);
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
    const made = { rank, element, block, state: undefined, fresh: false, lit: false };
    if (layout.small) { // there are thousands: those of a rank that look alike are one path
      const [wide, high] = [layout.wide - 0.5, layout.high - 0.5];
      made.square = `M${x.toFixed(2)} ${y.toFixed(2)}h${wide}v${high}h${-wide}z`;
      return made;
    }
    const group = made.group = draw("g", { class: `cell ${colourOf(run, block)}` }, this.svg);
    const box = { x: x + 1, y: y + 1, width: layout.wide - 2, height: layout.high - 2, rx: 3 };
    made.title = draw("title", {}, group);
    draw("rect", { class: slot ? "slot" : "slot none", ...box }, group);
    draw("rect", { class: "fill", ...box }, group);
    draw("rect", { class: "glow", ...box }, group);
    const middle = { x: x + layout.wide / 2, y: y + layout.high / 2 };
    made.text = draw("text", { class: "value", ...middle }, group);
    return made;
  }

  /* Show a time; `since` is when what counts as new began. */
  show(time, since) {
    const glow = this.run.end / (12 * Math.max(this.run.depth, 1));
    const news = [];
    for (const cell of this.touched(time)) {
      const { state } = cell;
      const fresh = Boolean(state) && state.kind !== "start" && state.time > since;
      const lit = fresh && state.kind === "fold" && (time - state.time < glow || this.busy(cell, time));
      if (state !== cell.filled || fresh !== cell.fresh || lit !== cell.lit) this.fill(cell, state, fresh, lit);
      Object.assign(cell, { filled: state, fresh, lit });
      if (fresh) news.push(cell);
    }
    this.news = news;
    this.trace(this.squared, this.squares, [...this.restyled].map((look) =>
      [look, Array.from(this.alike.get(look), ({ square }) => square).join("")]));
    this.restyled.clear();
    const under = new Set(this.run.under(time));
    for (const [message, flight] of this.flying) {
      if (under.has(message)) continue;
      flight.path.remove();
      for (const { group } of flight.parts) group?.remove();
      this.flying.delete(message);
    }
    for (const message of under) this.fly(message, time);
    if (this.layout.small) this.dots();
  }

  /* Give cells their states at a time, and return those that may look different: all of them, or if
     time went on, those that have changed and those that were new. */
  touched(time) {
    if (this.time === null) {
      const changes = ({ rank, element }) => this.run.changes[rank].get(element) || [];
      this.changes = this.cells.flatMap((cell) => changes(cell).map((state) => ({ cell, state })))
        .sort((a, b) => a.state.time - b.state.time);
    }
    const found = new Set(this.time === null || time < this.time ? this.cells : this.news);
    if (found.size === this.cells.length) {
      for (const cell of this.cells) cell.state = undefined;
      this.changed = 0;
    }
    this.time = time;
    for (; this.changed < this.changes.length; this.changed += 1) {
      const { cell, state } = this.changes[this.changed];
      if (state.time > time) break;
      cell.state = state;
      found.add(cell);
    }
    return found;
  }

  busy(cell, time) {
    return this.run.into[cell.rank].some((m) => m.fold && m.arrive <= time && time < m.done
      && m.blocks.includes(cell.block));
  }

  fill(cell, state, fresh, lit) {
    const { group, text, title, rank, element, block } = cell;
    const due = this.run.due(rank, element);
    const whole = state && state.mask === due;
    const kinds = ["cell", colourOf(this.run, block)];
    if (state) kinds.push(whole ? "whole" : "part");
    if (this.layout.small) {
      this.restyle(cell, state ? `${rank} ${kinds.join(" ")}` : "");
      return;
    }
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

  /* Have a small cell look like others of its rank, or like nothing. */
  restyle(cell, look) {
    if (look === cell.look) return;
    for (const each of [cell.look, look].filter(Boolean)) {
      if (!this.alike.has(each)) this.alike.set(each, new Set());
      if (each === look) this.alike.get(each).add(cell);
      else this.alike.get(each).delete(cell);
      this.restyled.add(each);
    }
    cell.look = look;
  }

  /* Draw paths, by looks: a class, which may follow the number of a rank. A path without a way goes. */
  trace(paths, parent, found) {
    for (const [look, d] of found) {
      if (!paths.has(look)) paths.set(look, draw("path", { class: look.replace(/^\d+ /, "") }, parent));
      if (d) paths.get(look).setAttribute("d", d);
      else {
        paths.get(look).remove();
        paths.delete(look);
      }
    }
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
    const length = message.arrive - message.start;
    const part = length > 0 ? Math.min(1, (time - message.start) / length) : 1;
    const eased = part * part * (3 - 2 * part);
    const merging = message.fold && part === 1;
    for (const each of this.flying.get(message).parts) {
      const { from, way, bend, group, kind } = each;
      const [x, y] = [0, 1].map((k) => from[k] + eased * (way[k] + 4 * (1 - eased) * bend[k]));
      const top = merging ? y - this.layout.lift : y;
      const passing = this.layout.hides(top, message.source, message.target);
      each.at = [x.toFixed(1), top.toFixed(1)];
      each.kind = `${merging ? "merging" : ""} ${passing ? "passing" : ""}`;
      if (!group) continue;
      group.style.transform = `translate(${each.at[0]}px, ${each.at[1]}px)`;
      if (each.kind !== kind) group.setAttribute("class", each.kind);
    }
  }

  /* Show whole messages between small cells: those that look alike are one path. */
  dots() {
    const { wide, high } = this.layout;
    const side = Math.max(7, Math.min(12, wide, high));
    const edge = side - 4; // between the corners
    const square = `m${(wide - side) / 2 + 2} ${(high - side) / 2}h${edge}a2 2 0 0 1 2 2v${edge}a2 2 0 0 1 -2 2`
      + `h${-edge}a2 2 0 0 1 -2 -2v${-edge}a2 2 0 0 1 2 -2z`;
    const found = new Map();
    for (const [message, { parts: [{ at, kind }] }] of this.flying) {
      const look = `chip ${colourOf(this.run, message.blocks[0])} ${kind}`;
      found.set(look, `${found.get(look) || ""}M${at[0]} ${at[1]}${square}`);
    }
    for (const look of this.dotted.keys()) if (!found.has(look)) found.set(look, "");
    this.trace(this.dotted, this.chips, found);
  }

  /* Whether a message comes the opposite way at the same time: both then take half of the width. */
  meets(message) {
    message.met ??= this.run.into[message.source].some((m) => m.source === message.target
      && m.start < message.arrive && message.start < m.arrive);
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
      class: `path ${colourOf(run, message.blocks[0])}`,
      d: `M${x1 + dx} ${y1 + dy}Q${cx} ${cy} ${x2 + dx} ${y2 + dy}`,
    }, this.paths);
    const parts = new Map(); // numbers of one row that go the same way move as one
    for (const { element, value, mask } of layout.small ? message.load.slice(0, 1) : message.load) {
      const from = layout.at(message.source, element);
      const way = layout.at(message.target, element, true).map((each, k) => each - from[k]);
      const key = [from[1], ...way].join(" ");
      if (!parts.has(key)) {
        const group = layout.small ? null : draw("g", {}, this.chips);
        parts.set(key, { from, way, bend: this.bend(message, ...way), group });
      }
      if (layout.small) continue;
      const begin = parts.get(key);
      const place = `translate(${from[0] - begin.from[0]})`;
      const chip = draw("g", { class: `chip ${colourOf(run, run.blockOf(element))}`, transform: place }, begin.group);
      const margin = half ? 1 : 2;
      const box = {
        x: left + margin, y: 2, width: wide - 2 * margin, height: layout.high - 4, rx: 5,
      };
      draw("rect", { class: "body", ...box }, chip);
      const text = draw("text", { class: "value", x: dx, y: dy }, chip);
      const plus = message.fold && !run.contract.idempotent ? "+" : "";
      this.write(text, plus + (this.showRanks ? spansText(bits(mask)) : value), 0.7, wide);
    }
    return { path, parts: [...parts.values()] };
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
    this.box = make("div", "layers", parent);
    this.svg = draw("svg", { class: "lanes", "aria-hidden": "true" }, this.box);
    this.head = make("div", "head", this.box); // on a layer of its own, as messages are
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
    const lane = run.p > 16 ? 7 : run.p > 8 ? 11 : 18;
    const height = run.p * lane + 20;
    const { svg } = this;
    svg.replaceChildren();
    svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    svg.setAttribute("height", height);
    for (let r = 0; r < run.p; r += 1) {
      const shade = { x: this.left, y: r * lane, width: width - this.left - 6, height: lane - 2 };
      draw("rect", { class: "lane", ...shade }, svg);
      if (run.p > 16 && r % 4) continue;
      const name = draw("text", { class: "rank", x: 0, y: r * lane + lane / 2 }, svg);
      name.textContent = r;
    }
    const half = (lane - 2) / 2;
    const bars = new Map(); // all of one kind are one path, because thousands of elements are slow
    const bar = (rank, row, from, to, kind, high = half - 0.5) => {
      const [x, end] = [this.x(from), this.x(to)];
      const d = `M${x.toFixed(1)} ${rank * lane + row * half}h${Math.max(1, end - x - 0.6).toFixed(1)}`
        + `v${high}H${x.toFixed(1)}z`;
      bars.set(kind, (bars.get(kind) || "") + d);
    };
    run.late.forEach((seconds, rank) => {
      if (seconds) bar(rank, 0, 0, seconds, "bar late", lane - 2);
    });
    for (const m of run.messages) {
      const colour = colourOf(run, m.blocks[0]);
      for (const [rank, row, kind] of [[m.source, 0, ""], [m.target, 1, " in"]]) {
        if (m.flow > m.start) bar(rank, row, m.start, m.flow, `bar alpha${kind}`);
        if (m.leave > m.flow) bar(rank, row, m.flow, m.leave, `bar ${colour}${kind}`);
      }
      if (m.fold) bar(m.target, 1.5, m.arrive, m.done, "bar folding", half / 2 - 0.5);
    }
    const over = [...bars].sort(([one], [other]) => one.includes("folding") - other.includes("folding"));
    for (const [kind, d] of over) draw("path", { class: kind, d }, svg);
    for (const time of run.steps.slice(1)) {
      const x = this.x(time);
      draw("line", { class: "tick", x1: x, x2: x, y1: run.p * lane - 2, y2: run.p * lane + 3 }, svg);
    }
    const last = this.x(run.end);
    draw("line", { class: "over", x1: last, x2: last, y1: 0, y2: run.p * lane - 2 }, svg);
    const label = draw("text", { class: "over", y: run.p * lane + 12 }, svg);
    const early = last < width * 0.8;
    label.setAttribute("x", early ? last : width - 6);
    label.setAttribute("text-anchor", early ? "middle" : "end");
    label.textContent = run.depth ? timeText(run.end) : "";
    this.head.style.height = `${run.p * lane + 2}px`;
  }

  x(time) {
    return this.left + (this.end ? time / this.end : 0) * (this.width - this.left - 6);
  }

  show(time) {
    this.head.style.transform = `translateX(${this.x(Math.min(time, this.end)) - 1}px)`;
  }
}
