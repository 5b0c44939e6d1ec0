"use strict";

/* The chapter in which the reader draws the messages of an allreduce between four ranks, before an algorithm
   has been shown. Every step is judged by the numbers that the ranks hold, as the library's proof does. */

const FEWEST = 6; // messages of an allreduce on four ranks: three bring numbers to one rank, three the sum back

/* A case, as the data have them, of messages [source, target] in steps; it ends where a number counts twice. */
function drawnCase(steps, p) {
  const messages = [];
  let held = Array.from({ length: p }, (_, r) => 1n << BigInt(r));
  let error = "";
  let depth = 0;
  for (const [number, step] of steps.entries()) {
    const next = held.slice();
    const come = step.map(([, target]) => target);
    depth = number + 1;
    for (const [source, target] of step) {
      const alone = come.filter((each) => each === target).length === 1;
      const whole = alone && (held[source] | held[target]) === held[source]; // all that the target holds, too
      const twice = bits(next[target] & held[source]);
      if (twice.length && !whole && !error) {
        const whose = twice.length > 1 ? "the numbers of ranks" : "that of rank";
        error = `Step ${depth}: rank ${target} would count ${whose} ${spansText(twice)} twice.`;
      }
      next[target] = whole ? held[source] : next[target] | held[source];
      messages.push([source, number, target, number, whole ? 0 : 1, depth, 0]);
    }
    held = next;
    if (error) break;
  }
  const all = (1n << BigInt(p)) - 1n;
  const every = Array.from({ length: p }, () => [0]);
  messages.sort((a, b) => a[0] - b[0] || a[1] - b[1]);
  const plan = {
    nblocks: 1, pieces: 1, depth, messages, held: every, wanted: every, due: [[all.toString(16)]],
    rounds: Array.from({ length: p }, () => Array(depth).fill(0)),
  };
  return { roots: [plan], error, stuck: [], done: held.flatMap((each, r) => (each === all ? [r] : [])) };
}

class Drawing {
  constructor(chapter) {
    this.chapter = chapter;
    this.course = chapter.course;
    this.p = chapter.p;
    this.box = make("section", "editor drawing", chapter.asking);
    const row = make("div", "transport", this.box);
    [this.from, this.to] = ["From", "To"].map((name, k) => this.choice(row, name, k));
    action(row, "next", "Draw", () => this.add(Number(this.from.value), Number(this.to.value)));
    this.list = make("ol", "steps", this.box);
    const bar = make("div", "transport", this.box);
    this.more = action(bar, "next", "Next step", () => this.step());
    this.undo = action(bar, "", "Undo", () => this.back());
    action(bar, "", "Start again", () => this.clear());
    this.told = make("div", "told", this.box);
    this.told.setAttribute("role", "status");
    this.follow(chapter.figure.scene.box);
    this.clear();
  }

  choice(row, name, value) {
    const label = make("label", "", row, name);
    const select = make("select", "", label);
    for (let r = 0; r < this.p; r += 1) select.append(new Option(`rank ${r}`, r));
    select.value = value;
    return select;
  }

  /* An arrow is dragged from one card to another. */
  follow(box) {
    box.classList.add("canvas");
    let from = -1;
    box.addEventListener("pointerdown", (event) => {
      from = this.rankAt(event);
      if (from >= 0) box.setPointerCapture(event.pointerId);
    });
    box.addEventListener("pointerup", (event) => {
      const to = this.rankAt(event);
      if (from >= 0 && to >= 0 && to !== from) this.add(from, to);
      from = -1;
    });
  }

  /* The rank whose card is below the pointer, or -1. */
  rankAt(event) {
    const { svg, layout } = this.chapter.figure.scene;
    const box = svg.getBoundingClientRect();
    const scale = svg.viewBox.baseVal.width / box.width;
    const [x, y] = [(event.clientX - box.left) * scale, (event.clientY - box.top) * scale];
    return layout.centres.findIndex(([cx, cy]) =>
      Math.abs(x - cx) <= layout.card[0] / 2 && Math.abs(y - cy) <= layout.card[1] / 2);
  }

  clear() {
    this.steps = [[]];
    this.show();
  }

  add(source, target) {
    const now = this.steps[this.steps.length - 1];
    if (source === target || now.some(([a, b]) => a === source && b === target)) return;
    now.push([source, target]);
    this.show();
  }

  /* Take back the last arrow, or the empty step. */
  back() {
    const now = this.steps[this.steps.length - 1];
    if (now.length) now.pop();
    else if (this.steps.length > 1) this.steps.pop();
    this.show();
  }

  /* Play the step, and begin another one unless it was wrong or the last one. */
  async step() {
    const { figure } = this.chapter;
    const found = this.found;
    await figure.playTo(figure.run.depth);
    if (found !== this.found || found.error || found.done.length === this.p) return;
    this.steps.push([]);
    this.show();
  }

  /* The figure stands before the last step, whose arrows are drawn. */
  show() {
    const { chapter, steps } = this;
    const filled = steps.filter((each) => each.length);
    const now = steps[steps.length - 1];
    this.found = drawnCase(filled, this.p);
    this.shown = (this.shown || 0) + 1;
    const data = { cases: { [this.p]: this.found } };
    chapter.show({ data, algorithm: `drawn ${this.shown}` });
    chapter.figure.seek(now.length ? chapter.run.steps[filled.length - 1] : chapter.run.end);
    this.arrows(now);
    this.list.replaceChildren(...steps.map((step) => {
      const texts = step.map(([a, b]) => `${a} → ${b}`);
      return make("li", "", null, texts.join(", ") || "drag from one rank to another");
    }));
    this.more.disabled = !now.length;
    this.undo.disabled = !filled.length;
    this.say(filled);
  }

  arrows(step) {
    const { svg, layout } = this.chapter.figure.scene;
    const group = draw("g", { class: "arrows" }, svg);
    const [wide, high] = layout.card.map((each) => each / 2 + 4);
    for (const [from, to] of step) {
      const [[x1, y1], [x2, y2]] = [layout.centres[from], layout.centres[to]];
      const turn = Math.atan2(y2 - y1, x2 - x1);
      const [ux, uy] = [Math.cos(turn), Math.sin(turn)];
      const out = Math.min(wide / Math.abs(ux), high / Math.abs(uy)); // where a line leaves a card
      const [dx, dy] = [uy * 9, -ux * 9]; // two that meet stand side by side
      const [x, y] = [x2 - out * ux + dx, y2 - out * uy + dy];
      draw("path", { d: `M${x1 + out * ux + dx} ${y1 + out * uy + dy}L${x - 10 * ux} ${y - 10 * uy}` }, group);
      const transform = `translate(${x} ${y}) rotate(${(turn * 180) / Math.PI})`;
      draw("path", { class: "head", d: "M-14 -7L0 0L-14 7Z", transform }, group);
    }
  }

  say(filled) {
    const { run } = this.chapter;
    const { error, done } = this.found;
    this.told.replaceChildren();
    if (!filled.length) return;
    const right = !error && done.length === this.p;
    const box = make("p", right ? "verdict right" : "verdict", this.told);
    make("strong", "", box, error ? "Not an allreduce. " : right ? "Proven. " : "Not yet. ");
    if (error) box.append(`${error} Take that arrow back.`);
    else if (!right) {
      box.append(`${done.length || "No"} ${done.length === 1 ? "rank has" : "ranks have"} the sum of all.`);
    } else {
      const [messages, steps] = [run.messages.length, run.depth];
      const best = Math.min(...Object.keys(NAMES).map((name) => this.course.made(name, this.p).end));
      const fewer = messages > FEWEST ? ` ${FEWEST} messages are enough: can you find them?` : "";
      const quick = steps > 1 ? " One step is enough, too, with more messages." : "";
      box.append(`Every rank has the sum, after ${countText(messages, "message")} in ${countText(steps, "step")}, `
        + `which takes ${timeText(run.end)}. The fastest of this course takes ${timeText(best)}.${fewer}${quick}`);
    }
  }
}

CHAPTERS.splice(1, 0, {
  id: "draw",
  title: "Draw your own",
  lead: [
    "How can the numbers travel? Drag from one rank to another: an arrow is a *message* with all that the sender "
      + "holds. The arrows of one *step* are sent at the same time.",
    "The receiver adds what it does not have yet. A message that contains all of the receiver's numbers replaces "
      + "them. No number may count twice. Go on until every rank has the sum.",
  ],
  view: () => {
    const data = { cases: { 4: drawnCase([], 4) } };
    return { algorithm: "drawn 0", shape: "ring", p: 4, time: true, data };
  },
  begin: (c) => { c.drawing = new Drawing(c); },
  asks: [],
});
