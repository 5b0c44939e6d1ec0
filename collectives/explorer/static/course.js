"use strict";

/* The course: chapters, of which one is open; its address, keys and theme. */

const MOST = 16; // ranks of the usual data; a slider goes on with 32 and 64, which have files of their own

const ranksAt = (place) => (place <= MOST ? place : 2 ** (place - MOST + 4));

/* Text in which *words* stand out. */
function rich(tag, className, parent, text) {
  const element = make(tag, className, parent);
  text.split("*").forEach((part, k) => {
    if (k % 2) make("em", "", element, part);
    else element.append(part);
  });
  return element;
}

const STORE = "collectives-course";

/* What this browser has kept of the reader's work. */
function kept() {
  let found = null;
  try {
    found = JSON.parse(window.localStorage.getItem(STORE));
  } catch {
    // There is no storage, or another page's text in it.
  }
  const { done, texts } = found || {};
  return { done: Array.isArray(done) ? done : [], texts: texts instanceof Object ? texts : {} };
}

class Course {
  constructor(data) {
    this.data = data;
    this.numbers = data.numbers;
    this.loaded = new Map(); // "ring" -> its data
    this.kept = kept(); // what the reader has done: chapters, and texts of tasks
    this.theme = "system";
    this.around = ""; // the theme of the page that has this one in a frame
    this.main = document.querySelector("main");
    this.nav();
    this.listen();
  }

  async begin() {
    await Promise.all(Object.keys(NAMES).map((name) => this.loadUsual(name)));
    this.read();
  }

  /* Load the data of an algorithm for up to `MOST` ranks. */
  async loadUsual(name) {
    this.loaded.set(name, await explorer.load(`allreduce/${name}`, this.entry(name).file));
  }

  entry(name) {
    return this.contract("allreduce").algorithms.find((each) => each.name === name);
  }

  /* Load the data of an algorithm for more ranks than `MOST`. */
  async load(name, p) {
    const { large } = this.entry(name);
    this.loaded.set(`${name} ${p}`, await explorer.load(`allreduce/${name} ${p}`, large[p]));
  }

  dataOf(name, p) {
    return this.loaded.get(p > MOST ? `${name} ${p}` : name);
  }

  contract(name) {
    return this.data.collectives.find((each) => each.name === name);
  }

  /* A run of an algorithm on p ranks, which is not shown; made once. */
  made(algorithm, p, more) {
    return runOf(this, this.dataOf(algorithm, p), p, more);
  }

  nav() {
    const list = document.querySelector(".chapters ol");
    this.links = CHAPTERS.map((each, k) => {
      const link = make("a", "", make("li", "", list));
      link.href = `#chapter=${each.id}`;
      link.title = `${k + 1}: ${each.title}`;
      make("span", "number", link, String(k + 1));
      link.append(" ");
      make("span", "name", link, each.title);
      return link;
    });
  }

  read() {
    const words = new URLSearchParams(window.location.hash.slice(1));
    this.keep(words);
    this.hash = window.location.hash;
    if (THEMES.includes(words.get("theme"))) this.theme = words.get("theme");
    this.dress();
    const place = CHAPTERS.findIndex((each) => each.id === words.get("chapter"));
    this.open(Math.max(0, place));
  }

  /* The token of the local process is in the address once, and then in this tab alone. */
  keep(words) {
    try {
      if (words.has("token")) {
        window.sessionStorage.setItem("token", words.get("token"));
        words.delete("token");
        window.history.replaceState(null, "", `#${words}`);
      }
      this.token = window.sessionStorage.getItem("token");
    } catch {
      this.token = null; // a page on a disk has no storage
    }
  }

  dress() {
    showTheme(this.theme, this.around);
    document.querySelector("#theme span").textContent = `: ${this.theme}`;
  }

  /* Go to a chapter, as its link does; the address says so. */
  go(place) {
    const words = new URLSearchParams({ chapter: CHAPTERS[place].id });
    if (this.theme !== "system") words.set("theme", this.theme);
    this.hash = `#${words}`;
    try {
      window.history.pushState(null, "", this.hash);
    } catch {
      window.location.hash = this.hash;
    }
    this.open(place);
    window.scrollTo(0, 0);
    if (this.chapter) this.chapter.title.focus({ preventScroll: true });
  }

  open(place) {
    if (this.chapter) this.chapter.close();
    this.place = place;
    this.links.forEach((link, k) => {
      if (k === place) link.setAttribute("aria-current", "step");
      else link.removeAttribute("aria-current");
      link.classList.toggle("done", this.kept.done.includes(CHAPTERS[k].id));
    });
    const strip = document.querySelector(".chapters");
    const link = this.links[place];
    strip.scrollLeft = link.offsetLeft - strip.clientWidth / 2 + link.clientWidth / 2;
    document.title = `${CHAPTERS[place].title} - collectives: the course`;
    this.main.replaceChildren();
    this.chapter = null;
    const { loads } = CHAPTERS[place];
    if (!loads || this.loaded.has(loads)) this.chapter = new Chapter(this, CHAPTERS[place], place);
    else this.loadUsual(loads).then(() => this.loadedFor(place));
  }

  /* The data of a chapter are there; the reader may be in another one by now. */
  loadedFor(place) {
    if (this.place !== place || this.chapter) return;
    this.open(place);
    this.chapter.title.focus({ preventScroll: true });
  }

  finished(place) {
    this.kept.done = [...new Set([...this.kept.done, CHAPTERS[place].id])];
    this.links[place].classList.add("done");
    this.keepWork();
  }

  keepWork() {
    try {
      window.localStorage.setItem(STORE, JSON.stringify(this.kept));
    } catch {
      // A page on a disk may have no storage: the work is kept until it is closed.
    }
  }

  listen() {
    document.querySelector("#theme").addEventListener("click", () => {
      this.theme = themeAfter(this.theme);
      this.dress();
    });
    window.addEventListener("hashchange", () => {
      if (window.location.hash !== this.hash) this.read();
    });
    document.addEventListener("keydown", (event) => this.key(event));
    followTheme((theme) => {
      this.around = theme;
      this.dress();
    });
    onWidth(() => this.chapter && this.chapter.lay());
  }

  key(event) {
    if (!this.chapter) return;
    const { figure, quiz } = this.chapter;
    const choices = quiz ? quiz.choices : [];
    onKey(event, {
      ArrowRight: () => figure.next.click(),
      ArrowLeft: () => figure.back.click(),
      Home: () => figure.first.click(),
      " ": () => figure.go.click(),
      Enter: () => this.chapter.more && this.chapter.more.click(),
      n: () => this.place + 1 < CHAPTERS.length && this.go(this.place + 1),
      p: () => this.place && this.go(this.place - 1),
      t: () => document.querySelector("#theme").click(),
      ...Object.fromEntries(choices.map((each, k) => [k + 1, () => each.click()])),
    });
  }
}

/* One chapter: words and questions beside the figure. */
class Chapter {
  constructor(course, what, place) {
    this.course = course;
    this.what = what;
    this.place = place;
    this.article = make("article", `chapter chapter-${what.id}`, course.main);
    const head = make("header", "", this.article);
    make("p", "count", head, `Chapter ${place + 1} of ${CHAPTERS.length}`);
    this.title = make("h2", "", head, what.title);
    this.title.tabIndex = -1;
    for (const each of what.lead) rich("p", "lead", head, each);
    const showing = make("div", "showing", this.article);
    this.figure = new (what.run ? Timeline : Figure)(showing, course);
    this.asking = make("div", "asking", this.article);
    this.view = { p: 4, ...(typeof what.view === "function" ? what.view(course) : what.view) };
    this.show({});
    this.figure.gate = what.asks.length ? 0 : Infinity;
    this.figure.show();
    this.asked = 0;
    if (what.begin) what.begin(this);
    this.next();
    this.links();
  }

  close() {
    this.figure.stop();
  }

  get run() {
    return this.figure.run;
  }

  get p() {
    return this.view.p;
  }

  /* The run of the chapter's algorithm, or another, on as many ranks as there are or as is said. */
  made({ algorithm = this.view.algorithm, p = this.view.p, more = {} } = {}) {
    return this.course.made(algorithm, p, { ...this.view.more, ...more });
  }

  /* Show another number of ranks, or another algorithm. */
  show(more) {
    const key = () => JSON.stringify({ ...this.view, data: null });
    const before = key();
    Object.assign(this.view, more);
    if (this.figure.run && key() === before) return;
    if (this.what.run) {
      this.figure.take(this.what.run(this.view, this.course));
      return;
    }
    const data = this.view.data || this.course.dataOf(this.view.algorithm, this.view.p);
    const run = runOf(this.course, data, this.view.p, this.view.more);
    this.figure.take(run, { ...this.view, data: this.what.text ? data : null });
  }

  /* The next question; after the last, what there is to drag. */
  next() {
    const ask = this.what.asks[this.asked];
    if (!ask) {
      this.quiz = null;
      this.free();
      return;
    }
    if (ask.show) {
      ask.show(this);
      this.figure.gate = this.figure.at();
      this.figure.show();
    }
    this.quiz = new Quiz(this.asking, {
      ...ask,
      play: (c) => {
        this.figure.gate = Infinity;
        const { box } = this.curves || this.figure;
        if (window.innerWidth < 1000) box.scrollIntoView({ block: "nearest" });
        return ask.play(c);
      },
    }, this);
    this.quiz.onDone = () => this.answered();
  }

  answered() {
    const before = this.quiz;
    this.asked += 1;
    if (this.asked === this.what.asks.length) {
      this.quiz = null;
      this.free();
      return;
    }
    this.figure.gate = this.figure.at();
    this.figure.show();
    const more = action(this.asking, "more", "Next question", () => {
      more.remove();
      before.box.classList.add("past");
      this.next();
      this.quiz.legend.focus({ preventScroll: true });
      this.quiz.box.scrollIntoView({ block: "nearest" });
    });
    more.scrollIntoView({ block: "nearest" });
    this.more = more;
  }

  /* Everything is open: drag, step, play. */
  free() {
    this.figure.gate = Infinity;
    this.figure.show();
    this.course.finished(this.place);
    if (this.what.part) this.what.part(this);
    if (this.what.drag) this.drag(this.what.drag);
  }

  /* A box below the questions, for what the reader may change. */
  trying(title = "Try it") {
    const box = make("section", "try", this.asking);
    make("h3", "", box, title);
    return box;
  }

  /* The algorithm on another number of ranks. */
  drag(drag) {
    const box = this.trying();
    const said = rich("p", "counted", box, "");
    const tell = () => { said.textContent = drag.words(this); };
    const more = Object.keys(this.course.entry(this.view.algorithm).large).length;
    const slider = new Slider(box, {
      label: "Ranks", min: 2, max: MOST + more, value: this.p, text: (place) => String(ranksAt(place)),
      act: (place) => {
        const p = ranksAt(place);
        const show = () => {
          this.show({ p });
          tell();
          if (this.phases) this.phases.lay(this.run, firstWhole(this.run));
          if (this.bars) this.bars.lay(this.barsWidth(), p);
        };
        if (this.course.dataOf(this.view.algorithm, p)) show();
        else this.course.load(this.view.algorithm, p).then(() => slider.value === place && show());
      },
    });
    tell();
    if (!drag.bars) return;
    const colours = ["var(--s0)", "var(--s1)", "var(--s2)"];
    this.bars = new Bars(box, {
      title: drag.bars.title,
      series: drag.bars.of.map(([name, algorithm, count], k) => ({
        name,
        colour: colours[k],
        points: Array.from({ length: MOST - 1 }, (_, n) => [n + 2, count(this.made({ algorithm, p: n + 2 }))]),
      })),
      pick: (p) => slider.set(p),
    });
    this.bars.lay(this.barsWidth(), this.p);
  }

  barsWidth() {
    return Math.max(260, Math.floor(this.asking.clientWidth) - 2);
  }

  lay() {
    this.figure.lay();
    if (this.bars) this.bars.lay(this.barsWidth(), this.p);
    if (this.curves) this.curves.lay();
  }

  links() {
    const nav = make("nav", "turn", this.article);
    nav.setAttribute("aria-label", "Chapters before and after");
    const link = (place, className, text) => {
      if (!CHAPTERS[place]) return make("span", "", nav);
      return action(nav, className, text, () => this.course.go(place));
    };
    link(this.place - 1, "plain", "← Back");
    const after = CHAPTERS[this.place + 1];
    if (after) link(this.place + 1, "onward", `Next: ${after.title} →`);
  }
}

explorer.course = (data) => {
  explorer.course = new Course(data);
  explorer.course.begin();
};
