"use strict";

/* The figures of the course: what all of them have, and the scene of one run. */

const FIGURE = { root: 0, ...explorer.machines.slow };
const NUMBER = 8; // bytes of a number
const MESSAGE = FIGURE.alpha + 4 * NUMBER * FIGURE.beta; // seconds of a message of four numbers
const SECONDS = 1.25; // of the reader for such a message

const icon = (d) => `<svg class="icon" viewBox="0 0 16 16" aria-hidden="true"><path d="${d}"/></svg>`;
const ICONS = {
  first: icon("M2 2h2v12H2zM14 2v12L5 8z"), back: icon("M13 2v12L2 8z"), next: icon("M3 2v12l11-6z"),
};

/* A run of the case for p ranks, on arrays of at least four numbers, or `least`, as many for each block. */
function runOf(course, data, p, more = {}) {
  const found = data.cases[p];
  if (!found.roots) return null;
  const { nblocks } = found.roots[0];
  const length = nblocks * Math.ceil((more.least || 4) / nblocks);
  const settings = { ...FIGURE, p, numbers: course.numbers, nbytes: NUMBER * length, ...more };
  const contract = course.contract(data.collective || "allreduce");
  return new Run(contract, found, settings, contract.layout === "whole" ? length : nblocks);
}

/* A number of arrays as a student would write it. */
function arraysText(number) {
  return countText(Number(number.toFixed(2)), "array");
}

/* A player of the course: a picture, its buttons, a slider for the time, words, and what is counted. What it
   plays has an `end`, `steps` with their ends, their number `depth`, and `stepAt`. */
class Board extends Player {
  constructor(parent, course) {
    super();
    this.course = course;
    this.box = make("figure", "figure", parent);
    this.picture = make("div", "picture", this.box);
    this.place();
    this.words = make("figcaption", "words", this.box);
    this.words.setAttribute("aria-live", "polite");
    this.error = make("p", "error", this.box);
    this.buttons();
    this.counts = make("dl", "tally", this.box);
    this.gate = Infinity;
  }

  buttons() {
    this.bar = make("div", "transport", this.box);
    this.bar.setAttribute("role", "group");
    this.bar.setAttribute("aria-label", "Play");
    const button = (name, text, label, act) => {
      this[name] = make("button", name, this.bar);
      this[name].innerHTML = text;
      this[name].type = "button";
      this[name].setAttribute("aria-label", label);
      this[name].addEventListener("click", act);
    };
    button("first", ICONS.first, "To the start", () => this.seek(0));
    button("back", `${ICONS.back} Step`, "One step back", () => this.step(-1));
    button("next", `Step ${ICONS.next}`, "One step forward", () => this.step(1));
    button("go", "Play", "Play to the end", () => this.playTo(this.run.depth));
    this.scrub = make("input", "scrub", this.box);
    Object.assign(this.scrub, { type: "range", min: 0, max: 1000, step: 1 });
    this.scrub.setAttribute("aria-label", "Time");
    this.scrub.addEventListener("input", () => this.seek((this.end * this.scrub.value) / 1000));
  }

  get end() {
    return this.run.end;
  }

  get marks() {
    return marksOf([this.run]);
  }

  /* When the last step ends that may be shown. */
  get limit() {
    return this.gate < this.run.depth ? this.run.steps[this.gate] : this.end;
  }

  at() {
    return this.run.stepAt(this.time);
  }

  /* Show where the time is, and what may be done. */
  mark(step) {
    this.first.disabled = this.back.disabled = this.time <= 0;
    const over = this.time >= this.end || step >= this.gate;
    this.next.disabled = this.go.disabled = over && !this.playing;
    this.scrub.disabled = this.limit <= 0;
    this.scrub.value = this.end ? Math.round((1000 * this.time) / this.end) : 0;
    this.scrub.setAttribute("aria-valuetext", `step ${step} of ${this.run.depth}, ${timeText(this.time)}`);
    setText(this.go, this.playing ? "Pause" : "Play");
    this.box.classList.toggle("is-playing", this.playing);
  }

  /* Play up to the end of a step, or stop. */
  playTo(step) {
    return this.toggle(step < this.run.depth ? this.run.steps[step] : null);
  }

  /* Seconds of the reader from where it began to play up to where it will stop. */
  seconds() {
    const steps = Math.max(1, this.run.stepAt(this.until) - this.run.stepAt(this.from));
    return Math.min(9, Math.max(1.1 * steps, ((this.until - this.from) / MESSAGE) * SECONDS));
  }

  /* Seconds of the model in a second of the reader. */
  pace() {
    return (this.until - this.from) / this.seconds();
  }

  /* Seconds of the reader for a step, where motion is unwelcome. */
  beat() {
    const steps = this.marks.filter((mark) => mark > this.from && mark <= this.until).length;
    return this.seconds() / Math.max(1, steps);
  }
}

class Figure extends Board {
  constructor(parent, course) {
    super(parent, course);
    this.count = counters(this.counts, {
      step: "Step", messages: "Messages", bytes: "Bytes, all ranks", busy: "Through the busiest", time: "Time",
    });
    this.text = new Text(this.box);
    this.text.box.open = false;
  }

  place() {
    this.scene = new Scene(this.picture);
    this.lanesBox = make("div", "over-time", this.box);
    this.lanes = new Lanes(this.lanesBox, (part) => this.seek(part * this.end));
  }

  /* Take a run; `shape` is where the cards stand, `parts` what is shown beside them. */
  take(run, { shape = "ring", data = null, lanes = false, time = false, plain = false, blind = false } = {}) {
    this.stop();
    this.run = run;
    this.shape = shape;
    this.plain = plain;
    this.blind = blind; // errors and times are not shown before the reader has predicted
    this.bar.hidden = this.scrub.hidden = this.counts.hidden = plain;
    this.box.classList.toggle("is-plain", plain);
    this.lanesBox.hidden = !lanes || blind;
    this.showsLanes = lanes;
    this.count.time.parentNode.hidden = !time;
    this.text.box.hidden = !data;
    if (data) this.text.lay(run, data);
    this.showsText = Boolean(data);
    this.time = 0;
    this.lay();
  }

  reveal() {
    this.blind = false;
    this.lanesBox.hidden = !this.showsLanes;
    this.show();
  }

  lay() {
    if (!this.run) return;
    const width = Math.max(270, Math.floor(this.scene.svg.parentNode.clientWidth));
    this.scene.lay(this.run, width, this.shape, { ways: !this.plain });
    if (this.showsLanes) this.lanes.lay(this.run, width, this.end);
    this.show();
  }

  show() {
    const { run } = this;
    const step = run.stepAt(this.time);
    const failed = run.error && !this.blind && this.time >= run.end;
    this.scene.show(this.time, run.before(this.time));
    this.scene.fail(failed ? run.error : "");
    setText(this.error, failed ? run.error : "");
    if (this.showsLanes) this.lanes.show(this.time);
    if (this.showsText) this.text.show(this.time);
    const counts = run.counts(this.time);
    const set = (name, text) => setText(this.count[name], text);
    set("step", `${step} of ${this.gate < run.depth ? "?" : run.depth}`);
    set("messages", String(counts.messages));
    set("bytes", bytesText(counts.bytes));
    set("busy", busiestText(run, this.time));
    set("time", timeText(this.time));
    const words = this.caption(step);
    setText(this.words, words);
    this.mark(step);
    const label = `${countText(run.p, "rank")} as a ${this.shape}, after step ${step} of ${run.depth}. ${words}`;
    if (label !== this.label) this.scene.svg.setAttribute("aria-label", label);
    this.label = label;
  }

  caption(step) {
    const { run } = this;
    const words = !step ? startText(run) : this.plain ? "" : this.said(step);
    const over = this.time >= run.end && (run.error ? !this.blind : step > 0);
    return over ? outcomeText(run, words) : words;
  }

  /* A step in a sentence: its first message, and how many more there are. */
  said(step) {
    const [first, ...more] = this.run.messages.filter((m) => m.step === step);
    const what = this.run.nblocks === 1 ? "its array" : blocksText(this.run, first.blocks);
    const verb = more.length > 1 ? "are" : "is";
    const others = more.length ? `, and there ${verb} ${countText(more.length, "more message")}` : "";
    const next = this.run.messages.some((m) => m.step === step + 1 && m.start < this.time);
    return `Step ${step}: rank ${first.source} sends ${what} to rank ${first.target}, which `
      + `${first.fold ? "adds" : "stores"} ${first.blocks.length > 1 ? "them" : "it"}${others}.`
      + (next ? ` Some ranks have begun step ${step + 1}.` : "");
  }
}
