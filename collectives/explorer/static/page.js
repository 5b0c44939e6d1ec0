"use strict";

/* The page: what was chosen, the clock that all panels share, keys, and the link to a view. */

const byId = (id) => document.getElementById(id);

const COUNTS = []; // the numbers of ranks that the page has, from the catalogue

// Where the sliders of a unit end, and how it is written. Times and rates are on a logarithmic scale, as powers of 10.
const UNITS = { time: { ends: [-9, -2], text: timeText }, rate: { ends: [-12, -6], text: speedText } };
const OPTIONS = Object.entries(explorer.machines.options).filter(([, [, label]]) => label)
  .map(([name, [unit, label]]) => ({ name, label, ...(UNITS[unit] || { ends: [1, 8] }) }));

// The sliders, by their settings: how these follow from where a slider stands; and the limits of what a link says.
const SLIDERS = {
  p: { of: (k) => COUNTS[k - 1], to: (p) => COUNTS.indexOf(p) + 1, text: String },
  nbytes: { of: (x) => 2 ** x, to: (n) => Math.log2(n), text: bytesText },
};
const NUMBERS = { p: [1, 64], root: [0, 63], nbytes: [1, 2 ** 40] };
const WHOLE = ["p", "root", ...OPTIONS.filter(({ text }) => !text).map(({ name }) => name)];
for (const { name, ends: [least], text } of OPTIONS) {
  const none = !explorer.machines.usual[name]; // what is 0 by default may be 0
  NUMBERS[name] = text ? [none ? 0 : 1e-15, 1] : [1, 16];
  SLIDERS[name] = !text ? { of: Number, to: Number, text: String } : {
    of: (x) => (none && x === least ? 0 : Number((10 ** x).toPrecision(3))),
    to: (value) => (value ? Math.log10(value) : least),
    text,
  };
}
const CELLS = ["numbers", "ranks"];
const DRAWN = ["fitting", "rows", ...Object.keys(SHAPES)];
const SPEEDS = ["0.25", "0.5", "1", "2", "4"];

class Page extends Player {
  constructor(catalogue) {
    super();
    this.catalogue = catalogue;
    this.settings = {
      algorithm: catalogue.opening.algorithm, beside: catalogue.opening.beside || "", p: catalogue.opening.p, root: 0,
      nbytes: 2 ** 20, ...explorer.machines.usual, cells: "numbers", shape: "fitting", theme: "system",
      numbers: catalogue.numbers,
    };
    this.defaults = { ...this.settings };
    COUNTS.push(...catalogue.counts);
    byId("p").max = COUNTS.length;
    this.around = ""; // the theme of the page that has this one in a frame
    this.panels = [0, 1].map(() => new Panel(byId("panels"), (part) => this.seek(part * this.end)));
    byId("version").textContent = catalogue.version;
    const framed = window.parent !== window;
    byId("machine").open = !framed && window.innerWidth > 900 && window.innerHeight > 1000;
    byId("choice").open = !framed && window.innerWidth > 600;
    this.controls();
    this.listen();
    this.read();
  }

  // -- what there is to choose

  /* Make the controls of the machine. */
  controls() {
    const { kinds } = explorer.machines;
    byId("topology").append(...Object.keys(kinds).map((name) => new Option(kinds[name].words, name)));
    for (const { name, label, ends: [min, max], text } of OPTIONS) {
      const box = make("label", "slide", byId("topology").parentNode.parentNode, `${label} `);
      box.htmlFor = make("output", "", box).htmlFor = name;
      Object.assign(make("input", "", box), { type: "range", id: name, min, max, step: text ? 0.1 : 1 });
    }
  }

  contractOf(title) {
    return this.catalogue.collectives.find((each) => title.startsWith(`${each.name}/`));
  }

  entryOf(title) {
    const contract = this.contractOf(title);
    return contract && contract.algorithms.find((each) => `${contract.name}/${each.name}` === title);
  }

  /* The data of an algorithm for so many ranks; more than `ranks` have a file of their own, where there is one. */
  load(title, p) {
    const entry = this.entryOf(title);
    if (p <= this.catalogue.ranks) return explorer.load(title, entry.file);
    if (entry.large[p]) return explorer.load(`${title} ${p}`, entry.large[p]);
    return Promise.resolve({ cases: { [p]: {
      error: `This page does not have ${title} on ${p} ranks. Write one that has: collectives explore ${title} -n ${p}`,
    } } });
  }

  /* Load what is chosen, and lay it out. */
  async apply(time = 0) {
    const { settings } = this;
    const contract = this.contractOf(settings.algorithm);
    if (!contract.rooted) settings.root = 0;
    settings.root = Math.min(settings.root, settings.p - 1);
    const other = settings.beside && this.contractOf(settings.beside) === contract;
    if (!other || settings.beside === settings.algorithm) settings.beside = "";
    this.fill(contract);
    const titles = [settings.algorithm, settings.beside].filter(Boolean);
    const order = (this.order = (this.order || 0) + 1);
    let loaded;
    try {
      loaded = await Promise.all(titles.map((t) => this.load(t, settings.p)));
    } catch (error) {
      this.say(`The data cannot be read: ${error.message}.`);
      return;
    }
    if (order !== this.order) return; // something else was chosen meanwhile
    const sizes = loaded.map(({ cases }) => (cases[settings.p].roots || [{ nblocks: 1 }])[0].nblocks);
    const length = lengthOf(contract.layout, Math.max(...sizes), settings.p);
    this.shown = this.panels.slice(0, titles.length);
    this.panels.forEach((panel, k) => {
      panel.box.hidden = k >= titles.length;
      panel.run = null;
    });
    this.shown.forEach((panel, k) =>
      panel.take(contract, this.entryOf(titles[k]), loaded[k], settings, length));
    byId("panels").classList.toggle("two", titles.length > 1);
    this.runs = this.shown.map((panel) => panel.run).filter(Boolean);
    this.end = Math.max(0, ...this.runs.map((run) => run.end));
    this.marks = marksOf(this.runs);
    this.time = Math.min(typeof time === "function" ? time() : time, this.end);
    this.lay();
    this.note();
  }

  lay() {
    if (!this.shown) return;
    // Captions have the room of the longest one, so that nothing below moves when they change.
    const most = Math.max(...this.shown.map((panel) => panel.tallest()));
    byId("panels").style.setProperty("--words", `${Math.ceil(most)}px`);
    const { shape, cells } = this.settings;
    const shapes = this.runs.map((run) => (shape === "fitting" ? shapeOf(run) : shape));
    const rows = shapes.includes("rows"); // of both, so that they can be compared
    for (const panel of this.shown) {
      panel.lay(this.end, cells === "ranks", rows ? "rows" : shapes[this.runs.indexOf(panel.run)], this.runs);
    }
    this.show();
  }

  /* Make the controls say what is chosen. */
  fill(contract) {
    const { settings } = this;
    const option = (value, text) => new Option(text, value);
    byId("collective").replaceChildren(
      ...this.catalogue.collectives.filter((c) => c.algorithms.length).map((c) => option(c.name, c.name)));
    byId("collective").value = contract.name;
    byId("algorithm").replaceChildren(...this.options(contract));
    byId("algorithm").value = settings.algorithm;
    byId("beside").replaceChildren(option("", "nothing"), ...this.options(contract, settings.algorithm));
    byId("beside").value = settings.beside;
    byId("rooted").hidden = !contract.rooted;
    byId("root").replaceChildren(...Array.from({ length: settings.p }, (_, r) => option(r, r)));
    byId("root").value = settings.root;
    byId("meaning").textContent = `${contract.name}: ${contract.meaning}`;
    const [name, beside] = [settings.algorithm, settings.beside].map((each) => each.slice(contract.name.length + 1));
    byId("choice-words").textContent = `${contract.name} by ${name}${beside && ` and ${beside}`} on `
      + countText(settings.p, "rank");
    byId("cells").value = settings.cells;
    byId("shape").value = settings.shape;
    byId("topology").value = settings.topology;
    const { options } = explorer.machines.kinds[settings.topology];
    for (const { name } of OPTIONS) byId(name).parentNode.hidden = !options.includes(name);
    for (const [id, slider] of Object.entries(SLIDERS)) {
      const value = settings[id];
      const text = slider.text(value);
      byId(id).value = slider.to(value);
      byId(id).setAttribute("aria-valuetext", text);
      document.querySelector(`output[for=${id}]`).textContent = text;
    }
    byId("nbytes").disabled = contract.idempotent;
    byId("machine-words").textContent = machineText(settings, contract.idempotent);
    showTheme(settings.theme, this.around);
    byId("theme").querySelector("span").textContent = `: ${settings.theme}`;
  }

  /* The options for algorithms, but for one of them; those of the literature are a group of their own. */
  options(contract, without) {
    const listed = contract.algorithms.map((each) => ({ ...each, title: `${contract.name}/${each.name}` }))
      .filter((each) => each.title !== without);
    const of = (literature) => listed.filter((each) => each.literature === literature)
      .map((each) => new Option(each.name, each.title));
    const group = document.createElement("optgroup");
    group.label = "Literature";
    group.append(...of(true));
    return [...of(false), ...(group.children.length ? [group] : [])];
  }

  change(values) {
    byId("notice").hidden = true;
    const step = this.runs && this.runs.length ? this.runs[0].stepAt(this.time) : 0;
    const over = this.time >= this.end;
    const other = "algorithm" in values || "p" in values || "root" in values || "beside" in values;
    Object.assign(this.settings, values);
    if (other) this.stop();
    // Another machine runs the same steps at other times: stay in the step.
    return this.apply(() => {
      if (other || !this.runs.length) return 0;
      return over ? this.end : this.runs[0].steps[step];
    });
  }

  // -- the clock

  show() {
    for (const panel of this.shown) panel.show(this.time);
    const part = this.end ? this.time / this.end : 0;
    byId("time").value = Math.round(1000 * part);
    byId("time").setAttribute("aria-valuetext", `${timeText(this.time)} of ${timeText(this.end)}`);
    byId("clock").textContent = timeText(this.time);
    byId("back").disabled = byId("first").disabled = this.time <= 0;
    byId("next").disabled = byId("last").disabled = this.time >= this.end;
    this.mark();
  }

  /* Say whether it plays; the button's icon follows. */
  mark() {
    byId("play").querySelector("span").textContent = this.playing ? "Pause" : "Play";
    const root = document.documentElement;
    root.dataset.state = this.playing ? "playing" : this.time >= this.end ? "end" : "paused";
  }

  stop() {
    super.stop();
    if (this.shown) this.mark();
  }

  rested() {
    this.note();
  }

  /* Seconds of the model in a second of the reader. */
  pace() {
    const steps = Math.max(1, this.marks.length - 1);
    return (this.end / Math.min(40, Math.max(3, 1.6 * steps))) * Number(byId("speed").value);
  }

  /* Seconds of the reader for a step, where motion is unwelcome. */
  beat() {
    return 1.5 / Number(byId("speed").value);
  }

  // -- the link to a view

  note() {
    const words = new URLSearchParams();
    const { settings, defaults } = this;
    for (const name of ["algorithm", "beside", ...Object.keys(NUMBERS), "topology", "cells", "shape", "theme"]) {
      const always = name === "algorithm" || name === "p";
      if (always || settings[name] !== defaults[name]) words.set(name, settings[name]);
    }
    if (this.time > 0) {
      const step = this.marks.indexOf(this.time);
      if (step > 0) words.set("step", step);
      else words.set("time", this.time.toPrecision(6));
    }
    this.hash = `#${words.toString().replace(/%2F/g, "/")}`;
    try {
      window.history.replaceState(null, "", this.hash);
    } catch {
      window.location.replace(this.hash);
    }
  }

  /* Take from the link what is right, and say what is not. */
  read() {
    const words = new URLSearchParams(window.location.hash.slice(1));
    const settings = { ...this.defaults };
    const wrong = [];
    for (const name of ["algorithm", "beside"]) {
      if (this.entryOf(words.get(name) || "")) settings[name] = words.get(name);
      else if (words.get(name)) wrong.push(name);
    }
    for (const [name, [least, most]] of Object.entries(NUMBERS)) {
      const value = Number(words.get(name));
      const good = words.get(name) && value >= least && value <= most;
      const known = name === "p" ? COUNTS.includes(value) : !WHOLE.includes(name) || Number.isInteger(value);
      if (good && known) settings[name] = value;
      else if (words.has(name)) wrong.push(name);
    }
    const topology = Object.keys(explorer.machines.kinds);
    for (const [name, known] of Object.entries({ topology, cells: CELLS, shape: DRAWN, theme: THEMES })) {
      if (known.includes(words.get(name))) settings[name] = words.get(name);
      else if (words.has(name)) wrong.push(name);
    }
    this.settings = settings;
    const left = wrong.map((name) => `${name}=${words.get(name)}`).join(", ");
    byId("notice").textContent = `The link names what this page does not have: ${left}. `
      + `It shows ${settings.algorithm} on ${countText(settings.p, "rank")} instead.`;
    byId("notice").hidden = !wrong.length;
    this.stop();
    return this.apply(() => {
      if (words.get("step") === "end") return this.end;
      const step = Number(words.get("step"));
      if (step > 0) return this.marks[Math.min(step, this.marks.length - 1)] || 0;
      return Math.max(0, Number(words.get("time")) || 0);
    }).then(() => {
      if (words.get("play") === "1") this.play();
    });
  }

  say(text) {
    byId("said").textContent = text;
  }

  async copy() {
    this.note();
    try {
      await navigator.clipboard.writeText(window.location.href);
      byId("link").textContent = "Copied";
      this.say("The link is copied.");
      setTimeout(() => { byId("link").textContent = "Copy link"; }, 2000);
    } catch {
      window.prompt("The link to this view:", window.location.href);
    }
  }

  // -- what the reader does

  listen() {
    const on = (id, kind, act) => byId(id).addEventListener(kind, act);
    on("settings", "submit", (event) => event.preventDefault());
    on("collective", "change", (event) => {
      const contract = this.catalogue.collectives.find((each) => each.name === event.target.value);
      this.change({ algorithm: `${contract.name}/${contract.algorithms[0].name}`, beside: "" });
    });
    for (const name of ["algorithm", "beside", "topology", "cells", "shape"]) {
      on(name, "change", (event) => this.change({ [name]: event.target.value }));
    }
    on("root", "change", (event) => this.change({ root: Number(event.target.value) }));
    for (const [id, slider] of Object.entries(SLIDERS)) {
      on(id, "input", (event) => this.change({ [id]: slider.of(Number(event.target.value)) }));
    }
    on("first", "click", () => this.seek(0));
    on("last", "click", () => this.seek(this.end));
    on("back", "click", () => this.step(-1));
    on("next", "click", () => this.step(1));
    on("play", "click", () => this.toggle());
    on("time", "input", (event) => this.seek((this.end * event.target.value) / 1000));
    on("theme", "click", () => this.theme());
    on("link", "click", () => this.copy());
    window.addEventListener("hashchange", () => {
      if (window.location.hash !== this.hash) this.read();
    });
    document.addEventListener("keydown", (event) => this.key(event));
    followTheme((theme) => {
      this.around = theme;
      this.fill(this.contractOf(this.settings.algorithm));
    });
    onWidth(() => this.lay());
  }

  theme() {
    this.change({ theme: themeAfter(this.settings.theme) });
  }

  speed(by) {
    const place = SPEEDS.indexOf(byId("speed").value) + by;
    byId("speed").value = SPEEDS[Math.max(0, Math.min(SPEEDS.length - 1, place))];
  }

  key(event) {
    const { settings } = this;
    const ranks = (by) => this.change({ p: COUNTS[COUNTS.indexOf(settings.p) + by] || settings.p });
    onKey(event, {
      " ": () => this.toggle(),
      ArrowRight: () => this.step(1),
      ArrowLeft: () => this.step(-1),
      Home: () => this.seek(0),
      End: () => this.seek(this.end),
      "+": () => this.speed(1),
      "-": () => this.speed(-1),
      n: () => ranks(1),
      N: () => ranks(-1),
      c: () => this.change({ cells: settings.cells === "ranks" ? "numbers" : "ranks" }),
      t: () => this.theme(),
      l: () => this.copy(),
    });
  }
}

explorer.open = (catalogue) => {
  explorer.page = new Page(catalogue);
};
