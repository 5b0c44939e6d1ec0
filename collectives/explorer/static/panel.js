"use strict";

/* One algorithm on the page: its counters, the stage, the text of its generator, a table. */

function make(tag, className, parent, text) {
  const element = document.createElement(tag);
  if (className) element.className = className;
  if (text !== undefined) element.textContent = text;
  if (parent) parent.append(element);
  return element;
}

/* A button that acts. */
function action(parent, className, text, act) {
  const button = make("button", className, parent, text);
  button.type = "button";
  button.addEventListener("click", act);
  return button;
}

/* Change the text of an element if it is another one, because a browser lays it out again. */
function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/* Named counters in a list of definitions: the elements of their numbers. */
function counters(list, names) {
  return Object.fromEntries(Object.entries(names).map(([name, label]) => {
    const pair = make("div", `count-${name}`, list);
    make("dt", "", pair, label);
    return [name, make("dd", "", pair)];
  }));
}

/* The text of a generator, with the ranks at the lines where they are. */
class Text {
  constructor(parent) {
    this.box = make("details", "text", parent);
    this.box.open = true;
    make("summary", "", this.box, "The text that runs");
    this.body = make("div", "functions", this.box);
  }

  lay(run, data) {
    this.run = run;
    this.spots = data.spots;
    this.rows = data.functions.map(() => new Map());
    this.body.replaceChildren();
    this.rounds = null; // that are shown
    data.functions.forEach((each, number) => {
      if (!each.lines.length) {
        make("p", "file", this.body, `${each.name}: its text is not at hand`);
        return;
      }
      make("p", "file", this.body, each.file);
      const list = make("div", "lines", this.body);
      for (const [line, html] of each.lines) {
        const row = make("div", "line", list);
        const ranks = make("span", "ranks", row);
        const code = make("code", "", row);
        code.innerHTML = html || " "; // escaped where it was coloured, in sources.py
        const indent = /^ */.exec(code.textContent)[0].length + 4; // of what does not fit into the line
        code.style.paddingLeft = `${indent}ch`;
        code.style.textIndent = `-${indent}ch`;
        this.rows[number].set(line, { row, ranks });
      }
    });
  }

  show(time) {
    const rounds = this.run.spans.map((_, r) => this.run.round(r, time));
    if (this.rounds && rounds.every((round, r) => round === this.rounds[r])) return;
    this.rounds = rounds;
    const at = new Map(); // "function first last kind" -> ranks
    for (let r = 0; r < this.run.p; r += 1) {
      const round = rounds[r];
      if (round < 0) continue;
      const stack = this.spots[this.run.plan.rounds[r][round]];
      stack.forEach(([number, first, last], depth) => {
        const key = [number, first, last, depth === stack.length - 1 ? "at" : "via"].join(" ");
        if (!at.has(key)) at.set(key, []);
        at.get(key).push(r);
      });
    }
    for (const rows of this.rows) {
      for (const { row, ranks } of rows.values()) {
        row.className = "line";
        ranks.textContent = "";
        ranks.removeAttribute("title");
        row.removeAttribute("aria-current");
      }
    }
    for (const [key, ranks] of at) {
      const [number, first, last, kind] = key.split(" ");
      for (let line = Number(first); line <= Number(last); line += 1) {
        const found = this.rows[number].get(line);
        if (!found) continue;
        found.row.classList.add(kind);
        if (kind === "at") found.row.setAttribute("aria-current", "step");
        if (line > Number(first)) continue;
        const names = spansText(ranks);
        found.ranks.textContent = names.length < 9 ? names : `${ranks.length} ranks`;
        found.ranks.title = `ranks ${names}`;
      }
    }
  }
}

/* The same numbers as a table, for those who read and do not see. */
class Table {
  constructor(parent) {
    this.box = make("details", "table", parent);
    make("summary", "", this.box, "The numbers as a table");
    this.table = make("table", "", make("div", "wide", this.box));
    this.box.addEventListener("toggle", () => this.show(this.time));
  }

  lay(run) {
    this.run = run;
  }

  show(time) {
    this.time = time;
    if (!this.box.open || !this.run) return;
    const { run, table } = this;
    table.replaceChildren();
    const held = run.changes.map((each) => [...each.keys()]);
    const columns = [...new Set(held.flat())].sort((a, b) => a - b);
    const head = make("tr", "", make("thead", "", table));
    make("th", "", head, "rank").scope = "col";
    for (const e of columns) {
      const name = run.length > run.nblocks ? String(e) : blockText(run, run.blockOf(e));
      make("th", "", head, name).scope = "col";
    }
    const body = make("tbody", "", table);
    for (let r = 0; r < run.p; r += 1) {
      const row = make("tr", "", body);
      make("th", "", row, String(r)).scope = "row";
      for (const e of columns) {
        const state = run.held(r, e, time);
        make("td", "", row, state ? String(state.value) : "");
      }
    }
  }
}

class Panel {
  constructor(parent, seek) {
    this.box = make("section", "panel", parent);
    this.title = make("h2", "", this.box);
    this.title.id = `panel-${parent.children.length}`;
    this.box.setAttribute("aria-labelledby", this.title.id);
    this.summary = make("p", "summary", this.box);
    this.counts = make("dl", "counts", this.box);
    this.count = counters(this.counts, {
      step: "step", messages: "messages", sent: "sent", busiest: "through the busiest", time: "time",
    });
    this.play = make("div", "play", this.box);
    const left = this.left = make("div", "show", this.play);
    this.words = make("p", "words", left);
    this.words.setAttribute("aria-live", "polite");
    this.rows = new Stage(left);
    this.scene = new Scene(left);
    this.lanes = new Lanes(left, seek);
    this.lanesWords = make("p", "hint", left,
      "Over time: what each rank sends (upper half), receives (lower half, paler) and folds (narrow, dark). Grey is "
      + "alpha, the cost of each message; the colour is that of its block.");
    this.table = new Table(left);
    this.text = new Text(this.play);
  }

  /* Take an algorithm; what it cannot do on p ranks is said. If it is wrong, it plays up to the error. */
  take(contract, entry, data, settings, length) {
    this.contract = contract;
    this.entry = entry;
    this.title.textContent = `${contract.name}: ${entry.name}`;
    this.box.style.setProperty("--a", `var(--a${entry.colour})`);
    this.summary.textContent = entry.summary;
    this.summary.title = entry.cost ? `time: ${entry.cost}. Source: ${entry.source}` : "";
    const found = data.cases[settings.p];
    this.run = null;
    this.box.classList.toggle("wrong", Boolean(found.error));
    this.play.hidden = this.counts.hidden = !found.roots;
    this.box.querySelectorAll(".error").forEach((each) => each.remove());
    if (found.error) {
      const error = make("p", "error", null, found.error);
      error.setAttribute("role", "alert");
      this.summary.after(error);
    }
    if (!found.roots) return;
    this.run = new Run(contract, found, settings, length);
    this.table.lay(this.run);
    this.text.lay(this.run, data);
  }

  /* `shape` is that of the cards, or "rows"; `runs` are those of all panels, whose rows stand at the same heights. */
  lay(end, showRanks, shape, runs) {
    if (!this.run) return;
    const width = Math.max(280, Math.floor(this.lanes.svg.parentNode.clientWidth));
    this.stage = shape === "rows" ? this.rows : this.scene;
    for (const each of [this.rows, this.scene]) each.box.hidden = each !== this.stage;
    if (shape === "rows") this.rows.lay(this.run, width, showRanks, runs);
    else this.scene.lay(this.run, width, shape, { showRanks, most: runs.length > 1 ? 300 : 410 });
    this.left.classList.toggle("tall", shape === "rows" && this.rows.layout.height > 480);
    this.lanes.lay(this.run, width, end);
  }

  /* The height of the longest caption, in pixels. */
  tallest() {
    if (!this.run) return 0;
    const trial = make("div", "trial", this.words.parentNode);
    for (let step = 0; step <= this.run.depth; step += 1) {
      make("p", "words", trial, this.caption(step, step === this.run.depth));
    }
    const heights = [...trial.children].map((each) => each.getBoundingClientRect().height);
    trial.remove();
    return Math.max(...heights);
  }

  caption(step, over) {
    const words = stepText(this.run, step);
    return over ? outcomeText(this.run, words) : words;
  }

  show(time) {
    const { run } = this;
    if (!run) return;
    const step = run.stepAt(time);
    this.stage.show(time, run.before(time));
    if (this.stage === this.scene) this.scene.fail((time >= run.end && run.error) || "");
    this.lanes.show(time);
    this.text.show(time);
    this.table.show(time);
    const counts = run.counts(time);
    this.set("step", `${step} of ${run.depth}`);
    this.set("messages", `${counts.messages} of ${counts.allMessages}`);
    this.set("sent", `${bytesText(counts.bytes)} of ${bytesText(counts.allBytes)}`);
    this.set("busiest", busiestText(run, time));
    this.set("time", timeText(Math.min(time, run.end)));
    const words = this.caption(step, time >= run.end);
    setText(this.words, words);
    this.stage.svg.setAttribute("aria-label",
      `${run.contract.name} ${this.entry.name} on ${countText(run.p, "rank")}, after `
      + `${timeText(Math.min(time, run.end))}. The table below has the numbers.`);
  }

  set(name, text) {
    setText(this.count[name], text);
  }
}
