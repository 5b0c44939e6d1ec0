"use strict";

/* The last chapter: the reader changes a generator, the proof runs, and the picture shows where it ends. Python in
   the page checks the text, if the page has one, else a local process. Without either, only the texts that the page
   knows have a verdict. */

/* Hints for verdicts of the prover. */
const HINTS = [
  [/contribution of rank \d+ twice/, "A sum that is complete must be stored, and not added: look at fold=True in "
    + "that round."],
  [/deadlock/, "Follow who waits for whom. Somebody must send what the other one waits for, in the same round or "
    + "an earlier one."],
  [/wanted rank/, "A part of the sum is missing. Which ranks has this one not heard of yet? Another yield can "
    + "bring them."],
  [/must yield|returns/, "A generator yields its rounds: write yield Exchange(...), and not return."],
  [/before it has a value/, "It is sent before anything has come: receive in an earlier yield."],
  [/sends to rank|receives from rank/, "Ranks are 0 to p - 1: take numbers modulo p. If the algorithm needs "
    + "certain numbers of ranks, say so: @algorithm(..., requires=(\"power_of_two\",))."],
  [/no algorithm is registered/, "The line @algorithm(\"allreduce\") above the function makes it one."],
  [/SyntaxError|IndentationError/, "Python cannot read the text: look at that line, and at brackets and colons "
    + "before it."],
];

const andText = (list) => list.join(", ").replace(/, (\d+)$/, " and $1");
const hintOf = (text) => (HINTS.find(([pattern]) => pattern.test(text)) || [])[1];

/* Python in a worker of this page. A text that takes too long, or is replaced by another, ends with its worker. */
class Prover {
  verdict(text, ranks) {
    if (this.isAsked) this.stop();
    this.worker ??= new Worker("prover.js", { type: "module" });
    const { worker } = this;
    return new Promise((resolve, reject) => {
      const fail = (reason) => {
        this.stop();
        reject(new Error(reason));
      };
      const late = () => {
        this.stop();
        resolve({ error: `there is no verdict after ${PATIENCE} s: does the generator end?` });
      };
      const ask = () => {
        this.ready = worker;
        this.isAsked = true;
        worker.postMessage({ text, ranks });
        this.timer = setTimeout(late, 1000 * PATIENCE);
        worker.onmessage = ({ data }) => {
          if (data.failed) {
            fail(data.failed);
            return;
          }
          clearTimeout(this.timer);
          this.isAsked = false;
          resolve(data);
        };
      };
      worker.onerror = (event) => fail(event.message);
      worker.onmessage = ({ data }) => (data === "ready" ? ask() : fail(data.failed));
      if (this.ready === worker) ask();
    });
  }

  stop() {
    clearTimeout(this.timer);
    this.worker.terminate();
    this.worker = null;
    this.isAsked = false;
  }
}

const PATIENCE = 20; // seconds

class Editor {
  constructor(chapter) {
    this.chapter = chapter;
    this.course = chapter.course;
    this.box = make("section", "editor", chapter.asking);
    const tabs = make("div", "choices", this.box);
    tabs.setAttribute("role", "group");
    tabs.setAttribute("aria-label", "Tasks");
    this.tabs = this.course.data.tasks.map((task) =>
      action(tabs, "choice", task.title, () => this.take(task)));
    this.words = make("p", "task", this.box);
    const label = make("label", "", this.box, "The generator of rank r of p");
    this.area = make("textarea", "", label);
    Object.assign(this.area, { spellcheck: false, rows: 16, autocomplete: "off", wrap: "soft" });
    this.area.setAttribute("autocapitalize", "off");
    this.area.addEventListener("input", () => this.keep());
    this.area.addEventListener("keydown", (event) => this.key(event));
    const bar = make("div", "transport", this.box);
    this.check = action(bar, "next", "Prove it", () => this.prove());
    action(bar, "", "Start again", () => this.write(this.task.texts[0]));
    this.solution = action(bar, "", "Solution", () => this.solve());
    this.told = make("div", "told", this.box);
    this.told.setAttribute("role", "status");
    this.take(this.course.data.tasks[0]);
  }

  take(task) {
    this.task = task;
    this.turn = (this.turn || 0) + 1; // a proof that runs is of another text
    this.check.disabled = false;
    this.course.data.tasks.forEach((each, k) => {
      this.tabs[k].classList.toggle("said", each === task);
      this.tabs[k].setAttribute("aria-pressed", String(each === task));
    });
    this.words.textContent = `${task.words} It is proven on ${andText(task.ranks)} ranks.`;
    this.area.value = this.own();
    this.solution.textContent = "Solution";
    this.told.replaceChildren();
    this.show(task.verdicts[0]);
  }

  /* The reader's text of the task. */
  own() {
    return this.course.kept.texts[this.task.id] ?? this.task.texts[0];
  }

  /* Keep the reader's text, in other tasks and chapters and when the page is loaded again. */
  keep() {
    this.course.kept.texts[this.task.id] = this.area.value;
    this.course.keepWork();
    this.solution.textContent = "Solution";
  }

  /* Replace the text as typing does, so that it can be undone. */
  write(text, first = 0, last = this.area.value.length) {
    this.area.focus({ preventScroll: true });
    this.area.setSelectionRange(first, last);
    if (document.execCommand("insertText", false, text)) return; // the only way that can be undone
    this.area.setRangeText(text, first, last, "end");
    this.keep();
  }

  /* Show the solution and its proof, or the reader's text again. */
  solve() {
    const back = this.solution.textContent !== "Solution";
    this.area.value = back ? this.own() : this.task.texts[1];
    this.solution.textContent = back ? "Solution" : "My text";
    this.prove();
  }

  /* Enter keeps the indentation, and Ctrl-Enter proves. */
  key(event) {
    if (event.key !== "Enter" || event.isComposing) return;
    event.preventDefault();
    if (event.ctrlKey || event.metaKey) {
      this.prove();
      return;
    }
    const { value, selectionStart, selectionEnd } = this.area;
    const line = value.slice(0, selectionStart).split("\n").pop();
    const deeper = /:\s*(#.*)?$/.test(line) ? "    " : "";
    this.write(`\n${/^ */.exec(line)[0]}${deeper}`, selectionStart, selectionEnd);
  }

  /* The verdict on a text: from the page if it knows it, else from its Python, or from the process that serves it. */
  async verdict(text) {
    const known = this.task.texts.findIndex((each) => each.trim() === text.trim());
    if (known >= 0) return this.task.verdicts[known];
    if (this.course.data.pyodide && /^http/.test(window.location.protocol)) {
      this.prover ??= new Prover();
      return this.prover.verdict(text, this.task.ranks).catch((error) => (
        { error: `Python failed in this browser (${error.message})` }));
    }
    if (!this.course.token) return null;
    const answer = await window.fetch("check", {
      method: "POST",
      headers: { "Content-Type": "application/json", "X-Token": this.course.token },
      body: JSON.stringify({ text, ranks: this.task.ranks }),
    });
    if (!answer.ok) return { error: `the local process answers ${answer.status}: start the course again` };
    return answer.json();
  }

  async prove() {
    this.check.disabled = true;
    this.told.replaceChildren();
    make("p", "watch", this.told, "The proof is running.");
    const turn = (this.turn = (this.turn || 0) + 1);
    let found;
    try {
      found = await this.verdict(this.area.value);
    } catch {
      found = { error: "the local process does not answer: is it still running?" };
    }
    if (turn !== this.turn) return;
    this.check.disabled = false;
    this.told.replaceChildren();
    if (!found) {
      rich("p", "verdict", this.told, "A page alone can only judge its own texts. To prove yours, start the course "
        + "on your machine: *collectives explore --course*.");
      return;
    }
    this.say(found);
  }

  /* The largest number of ranks for which the proof fails, or the largest of all. */
  ranksOf(found) {
    const ranks = [...this.task.ranks].reverse();
    return ranks.find((p) => found.cases[p].error) || ranks[0];
  }

  show(found) {
    if (!found.cases) return;
    const p = this.ranksOf(found);
    if (!found.cases[p].roots) return;
    this.shown = (this.shown || 0) + 1;
    const more = p > 9 ? { least: 1 } : {}; // cards with more numbers would be too small to read
    this.chapter.show({ data: found, p, shape: this.task.shape, algorithm: `${this.task.id} ${this.shown}`, more });
  }

  say(found) {
    this.show(found);
    const p = found.cases && this.ranksOf(found);
    const { collective } = this.task.verdicts[0];
    const strayed = found.cases && found.collective !== collective
      && `It registers an algorithm of ${found.collective}, and one of ${collective} is wanted`;
    const error = found.error || strayed || found.cases[p].error;
    const { figure } = this.chapter;
    const depth = found.cases && figure.run && figure.run.depth;
    const slow = !error && this.task.steps && depth > this.task.steps;
    const box = make("p", error || slow ? "verdict" : "verdict right", this.told);
    if (error) {
      make("strong", "", box, found.line ? `Line ${found.line}. ` : strayed ? "Not the task. " : "Not proven. ");
      box.append(/[.?]$/.test(error) ? error : `${error}.`);
      const hint = hintOf(error);
      if (hint) make("p", "hint", this.told, `Hint: ${hint}`);
    } else if (slow) {
      make("strong", "", box, "Proven, and too slow. ");
      box.append(`On ${countText(p, "rank")} it takes ${countText(depth, "step")}, and should take `
        + `${this.task.steps}.`);
    } else {
      make("strong", "", box, "Proven. ");
      box.append(`It is right on ${andText(this.task.ranks)} ranks, and takes ${countText(depth, "step")} on ${p}.`);
    }
    if (found.printed) {
      make("p", "hint", this.told, "It printed:");
      make("pre", "printed", this.told, found.printed);
    }
    if (found.cases && found.cases[p].roots) figure.playTo(figure.run.depth);
    if (found.line) this.point(found.line);
    box.scrollIntoView({ block: "nearest" });
  }

  /* Select a line of the text. */
  point(line) {
    const lines = this.area.value.split("\n");
    const start = lines.slice(0, line - 1).reduce((sum, each) => sum + each.length + 1, 0);
    this.area.focus({ preventScroll: true });
    this.area.setSelectionRange(start, start + (lines[line - 1] || "").length);
  }
}

CHAPTERS.push({
  id: "own",
  title: "Your own",
  lead: [
    "Now you write. Change the generator, and let the library prove it. The picture plays up to the step that fails.",
    "*Exchange(send=(to, block), recv=(from, block), fold=True)* is one round. With fold=True, the received "
      + "block is added; otherwise it is stored. Ctrl and Enter prove the text, and Tab leaves it.",
  ],
  view: (course) => ({ algorithm: "own", shape: "ring", data: course.data.tasks[0].verdicts[0] }),
  text: true,
  begin: (c) => {
    c.editor = new Editor(c);
  },
  asks: [],
});
