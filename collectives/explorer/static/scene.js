"use strict";

/* The scene of the course: each rank is a card with its array, and the cards stand in the shape that
   the messages make: a ring, a star, a tree, a cube. Messages fly between cards as on the stage. */

const SHAPES = {
  /* Round a circle, from the top clockwise. */
  ring: (p) => Array.from({ length: p }, (_, r) => {
    const angle = (2 * Math.PI * r) / p - Math.PI / 2;
    return [0.5 + 0.5 * Math.cos(angle), 0.5 + 0.5 * Math.sin(angle)];
  }),

  /* The rank with the most messages in the middle, the others round it. */
  star(p, run) {
    const places = SHAPES.ring(p - 1).map(([x, y]) => (p === 2 ? [1, 0.5] : [x, y]));
    places.splice(hubOf(run), 0, [0.5, 0.5]);
    return places;
  },

  /* The root above the ranks that it exchanges messages with, these above theirs, and so on. */
  tree(p, run) {
    const below = Array.from({ length: p }, () => []);
    const pairs = pairsOf(run);
    const found = [run.root];
    for (const rank of found) { // grows as it goes
      const near = pairs.filter((pair) => pair.includes(rank)).map(([a, b]) => a + b - rank);
      below[rank] = near.filter((other) => !found.includes(other)).sort((a, b) => a - b);
      found.push(...below[rank]);
    }
    const places = [];
    let leaf = 0;
    const put = (rank, level) => {
      const inner = below[rank].map((child) => put(child, level + 1));
      const x = inner.length ? (inner[0] + inner[inner.length - 1]) / 2 : leaf++;
      places[rank] = [x, level];
      return x;
    };
    put(run.root, 0);
    if (places.filter(Boolean).length < p) return SHAPES.ring(p); // of an algorithm that is wrong
    const [wide, deep] = [0, 1].map((k) => Math.max(1, ...places.map((place) => place[k])));
    return places.map(([x, y]) => [x / wide, y / deep]);
  },

  /* A rank whose number differs in one bit is a neighbour: a square, a cube, two cubes. */
  cube(p) {
    if (p & (p - 1)) return SHAPES.ring(p);
    if (p > 16) return SHAPES.grid(p);
    const [x, y] = p > 8 ? [[0.28, 0, 0.14, 0.58], [0, 0.62, 0.25, 0.13]]
      : p > 4 ? [[0.66, 0, 0.34], [0, 0.66, 0.34]] : [[1, 0], [0, 1]];
    const along = (r, axis) => axis.reduce((sum, far, k) => sum + ((r >> k) & 1) * far, 0);
    return Array.from({ length: p }, (_, r) => [along(r, x), p === 2 ? 0.5 : along(r, y)]);
  },

  /* Rows and columns of as many ranks as they are long. */
  grid(p) {
    const side = Math.round(Math.sqrt(p));
    if (side * side !== p) return SHAPES.ring(p);
    return Array.from({ length: p }, (_, r) =>
      [(r % side) / Math.max(1, side - 1), Math.floor(r / side) / Math.max(1, side - 1)]);
  },
};

function hubOf(run) {
  const messages = run.counts(Infinity).perRank;
  return messages.indexOf(Math.max(...messages));
}

/* The pairs of ranks that ever send to each other. */
function pairsOf(run) {
  const pairs = new Set(run.messages.map((m) =>
    [Math.min(m.source, m.target), Math.max(m.source, m.target)].join(" ")));
  return [...pairs].map((pair) => pair.split(" ").map(Number));
}

/* The shape that the messages of a run make; "rows" if they make none, or numbers would be too small in it. */
function shapeOf(run) {
  const { p } = run;
  if (p < 3 || (p > 8 && p <= 16) || run.contract.layout === "pairs" || run.groups.length) return "rows";
  const pairs = pairsOf(run);
  if (pairs.every(([a, b]) => b - a === 1 || b - a === p - 1)) return "ring";
  const hub = hubOf(run);
  if (pairs.every((pair) => pair.includes(hub))) return "star";
  const power = (n) => !(n & (n - 1));
  if (p <= 8 && power(p) && pairs.every(([a, b]) => power(a ^ b))) return "cube";
  return pairs.length === p - 1 ? "tree" : "rows";
}

/* Where the cards and their cells are: as large as they can be without touching each other. */
class Places {
  constructor(run, width, shape, most) {
    const unit = SHAPES[shape](run.p, run);
    const every = [...Array(run.length).keys()];
    this.small = run.p > 16; // cells have colours only
    this.columns = run.length <= 5 ? run.length : Math.ceil(run.length / Math.ceil(run.length / 4));
    if (this.small) this.columns = Math.ceil(Math.sqrt(run.length));
    this.rows = Math.ceil(run.length / this.columns);
    this.lines = unit.map(() => Array.from({ length: this.rows },
      (_, row) => every.slice(row * this.columns, (row + 1) * this.columns)));
    this.height = Math.round(Math.min(this.small ? 520 : most, Math.max(300, 0.56 * width)));
    while (!this.fits(unit, width) && this.height < 900) this.height += 60; // on a narrow screen
    this.lift = 0.6 * this.high;
    this.font = Math.min(21, this.wide * 0.5, this.high * 0.6);
  }

  /* Whether the cards fit into the width and the height: as large as they can be then. */
  fits(unit, width) {
    const [most, least, step] = this.small ? [16, 1, 0.5] : [46, 5, 1];
    for (this.wide = most; this.wide > least; this.wide -= step) {
      this.size();
      this.centres = unit.map(([x, y]) => [
        this.card[0] / 2 + 2 + x * (width - this.card[0] - 4),
        this.card[1] / 2 + 2 + y * (this.height - this.card[1] - 4),
      ]);
      if (this.apart()) return true;
    }
    return false;
  }

  size() {
    if (this.small) {
      this.high = this.wide;
      this.edge = 1.5;
      this.head = this.columns * this.wide > 18 ? 11 : 1.5;
      this.foot = 4;
      this.card = [this.columns * this.wide + 2 * this.edge, this.head + this.rows * this.high + this.foot];
      return;
    }
    this.high = Math.max(9, Math.min(38, 0.86 * this.wide));
    this.edge = this.wide > 16 ? 7 : 3;
    this.head = this.wide > 12 ? 20 : 13;
    this.foot = 9;
    this.card = [
      this.columns * this.wide + 2 * this.edge,
      this.head + this.rows * this.high + this.foot,
    ];
  }

  /* Whether no two cards touch. */
  apart() {
    const [wide, high] = this.small ? this.card.map((each) => each + 2) : [this.card[0] + 10, this.card[1] + 8];
    return this.centres.every(([x, y], r) => this.centres.every(([x2, y2], q) =>
      q <= r || Math.abs(x - x2) >= wide || Math.abs(y - y2) >= high));
  }

  corner(rank, x, y) {
    const [cx, cy] = this.centres[rank];
    return [cx - this.card[0] / 2 + this.edge + x * this.wide, cy - this.card[1] / 2 + this.head + y * this.high];
  }

  at(rank, element) {
    return this.corner(rank, element % this.columns, Math.floor(element / this.columns));
  }

  hides() {
    return false;
  }
}

class Scene extends Stage {
  constructor(parent) {
    super(parent);
    for (const svg of [this.svg, this.air]) svg.classList.add("scene");
  }

  lay(run, width, shape, { ways = true, showRanks = false, most = 410 } = {}) {
    this.run = run;
    this.shape = shape;
    this.showRanks = showRanks;
    this.layout = new Places(run, width, shape, most);
    const { layout, svg } = this;
    this.clear(width);
    this.box.style.setProperty("--lit", `${Math.min(4, layout.wide / 9)}px`);
    if (ways) this.ways();
    this.waits = draw("g", { class: "waits" }, svg);
    this.failed = "";
    this.cards = layout.centres.map((_, rank) => this.cardOf(rank));
    svg.append(this.squares, this.paths);
    this.most = Math.max(1, busiest(run).most);
  }

  /* A line between two ranks that ever send to each other, where the lines can be told apart; a ring is a curve. */
  ways() {
    const { layout, run } = this;
    const pairs = pairsOf(run);
    if (pairs.length > 300) return;
    const lines = [];
    for (const [a, b] of pairs) {
      const [[x1, y1], [x2, y2]] = [layout.centres[a], layout.centres[b]];
      const turns = this.shape === "ring" && run.p > 2 && (b - a === 1 || b - a === run.p - 1);
      const [from, to] = b - a === 1 ? [[x1, y1], [x2, y2]] : [[x2, y2], [x1, y1]];
      const rx = (Math.max(...layout.centres.map(([x]) => x)) - Math.min(...layout.centres.map(([x]) => x))) / 2;
      const ry = (Math.max(...layout.centres.map(([, y]) => y)) - Math.min(...layout.centres.map(([, y]) => y))) / 2;
      const d = turns ? `M${from}A${rx} ${ry} 0 0 1 ${to}` : `M${x1} ${y1}L${x2} ${y2}`;
      lines.push(d);
    }
    draw("path", { class: "ways", d: lines.join("") }, this.svg);
  }

  cardOf(rank) {
    const { layout, run, svg } = this;
    const [cx, cy] = layout.centres[rank];
    const [wide, high] = layout.card;
    const [left, top] = [cx - wide / 2, cy - high / 2];
    const group = draw("g", { class: "card" }, svg);
    draw("rect", { class: "sheet", x: left, y: top, width: wide, height: high, rx: layout.small ? 2 : 8 }, group);
    if (layout.head > 10) {
      const name = draw("text", { class: "rank", x: left + layout.edge, y: top + layout.head / 2 + 1 }, group);
      name.textContent = wide > 62 ? `rank ${rank}` : rank;
    }
    const load = draw("text", { class: "load", x: left + wide - layout.edge, y: top + layout.head / 2 + 1 }, group);
    const thick = layout.small ? 2 : 3;
    const meter = { x: left + layout.edge, y: top + high - 2 * thick + 1, height: thick, rx: 1 };
    draw("rect", { class: "meter", ...meter, width: wide - 2 * layout.edge }, group);
    const bar = draw("rect", { class: "bytes", ...meter, width: 0 }, group);
    const wanted = new Set(run.elements(run.plan.wanted[rank]));
    layout.lines[rank].forEach((line, row) => line.forEach((element, column) => {
      this.cells.push(this.cell(rank, element, column, row, wanted.has(element)));
    }));
    return { group, load, bar, room: wide - 2 * layout.edge, wide };
  }

  show(time, since) {
    super.show(time, since);
    const bytes = this.run.counts(time).through;
    const most = Math.max(...bytes);
    const least = Math.min(...bytes);
    bytes.forEach((each, rank) => {
      const card = this.cards[rank];
      const busiest = each === most && least < most;
      if (card.bytes === each && card.busiest === busiest) return;
      Object.assign(card, { bytes: each, busiest });
      card.bar.setAttribute("width", (card.room * each) / this.most);
      card.load.textContent = card.wide > 108 && each ? bytesText(each) : "";
      card.group.classList.toggle("busiest", busiest);
    });
  }

  /* Mark what is wrong: ranks that did not end, and who waits for whom. */
  fail(error) {
    if (this.failed === error) return;
    this.failed = error;
    const stuck = error ? this.run.stuck : [];
    this.cards.forEach(({ group }, rank) => group.classList.toggle("stuck", stuck.includes(rank)));
    this.waits.replaceChildren();
    for (const [, from, to] of error.matchAll(/rank (\d+) in round \d+ waits for rank (\d+)/g)) {
      const [[x1, y1], [x2, y2]] = [this.layout.centres[from], this.layout.centres[to]];
      draw("path", { d: `M${x1} ${y1}L${x2} ${y2}` }, this.waits);
      const turn = (Math.atan2(y2 - y1, x2 - x1) * 180) / Math.PI;
      const middle = `translate(${(x1 + x2) / 2} ${(y1 + y2) / 2}) rotate(${turn})`;
      draw("path", { class: "head", d: "M-7 -7L7 0L-7 7Z", transform: middle }, this.waits);
    }
  }

  meets() {
    return false;
  }

  /* Messages keep to their left, so that two that meet do not cover each other. */
  bend(message, dx, dy) {
    const length = Math.hypot(dx, dy) || 1;
    const off = Math.min(30, 0.13 * length);
    return [(dy / length) * off, (-dx / length) * off];
  }
}
