"use strict";

/* The one object of the page, through which files of data reach it, and how things are written in
   words. All scripts of the page share their names, for modules cannot be loaded from a disk. */

const explorer = {
  algorithms: new Map(), // "allreduce/ring" -> its data

  add(title, data) {
    this.algorithms.set(title, data);
  },

  /* Get the data of an algorithm: a script of its own, for a page on a disk may fetch nothing. */
  load(title, file) {
    if (this.algorithms.has(title)) return Promise.resolve(this.algorithms.get(title));
    return new Promise((resolve, reject) => {
      const script = document.createElement("script");
      script.src = file;
      script.onload = () => resolve(this.algorithms.get(title));
      script.onerror = () => reject(new Error(`${file} is not there`));
      document.head.append(script);
    });
  },
};

/* Whether a control has a use of its own for a key, so that the page has none. A slider has none for Space. */
function keeps(control, key) {
  if (control.matches("select, textarea")) return true;
  if (control.matches("input")) return /^(Arrow|Page|Home|End|Tab)/.test(key);
  return control.matches("button, summary, a") && (key === " " || key === "Enter");
}

/* A key acts where no control wants it for itself. */
function onKey(event, acts) {
  if (event.ctrlKey || event.metaKey || event.altKey || keeps(event.target, event.key)) return;
  const act = acts[event.key];
  if (!act) return;
  event.preventDefault();
  act();
}

/* A phone changes the height of its window while it scrolls; only the width matters here. */
function onWidth(act) {
  let width = window.innerWidth;
  window.addEventListener("resize", () => {
    if (window.innerWidth !== width) act();
    width = window.innerWidth;
  });
}

const SVG = "http://www.w3.org/2000/svg";

function draw(tag, attributes = {}, parent = null) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  if (parent) parent.append(element);
  return element;
}

function scaled(number, units) {
  let [unit, size] = units[0];
  for (const [name, least] of units) if (number >= least * 0.99995) [unit, size] = [name, least];
  return `${Number((number / size).toPrecision(3))} ${unit}`;
}

function timeText(seconds) {
  if (!seconds) return "0 s";
  return scaled(seconds, explorer.machines.units.time).replace("us", "µs");
}

function bytesText(bytes) {
  return scaled(bytes, [["B", 1], ["KiB", 1024], ["MiB", 2 ** 20], ["GiB", 2 ** 30]]);
}

/* A speed from seconds a byte, in powers of 10 as speeds are. */
function speedText(beta) {
  return scaled(1 / beta, explorer.machines.units.rate);
}

function spansText(numbers) {
  const parts = [];
  for (const n of numbers) {
    const last = parts[parts.length - 1];
    if (last && last[last.length - 1] === n - 1) last[1] = n;
    else parts.push([n]);
  }
  return parts.map((part) => part.join("–")).join(", ");
}

function countText(number, noun) {
  return `${number} ${noun}${number === 1 ? "" : "s"}`;
}

/* The machine in a line: what is said of each option that it has and that is not 0. */
function machineText(settings, empty) {
  const { line, options, kinds, tori } = explorer.machines;
  const part = (value) => (value > 1 ? `1/${value} of` : "all");
  const texts = { time: timeText, rate: speedText, part, shape: (lengths) => lengths.join(" × ") };
  const values = { ...settings, shape: tori[settings.p].shape };
  const said = line.filter((name) => values[name] && kinds[settings.topology].options.includes(name)).map((name) => {
    const [unit, , words] = options[name];
    return words.replace("#", texts[unit] ? texts[unit](values[name]) : countText(values[name], unit));
  });
  return `${empty ? "no data" : bytesText(settings.nbytes)}; ${said.join("")}`;
}

/* Blocks as `collectives explain` writes them: of an alltoall, from whom and for whom. */
function blockText(run, block) {
  if (run.contract.layout !== "pairs") return String(block);
  const cut = run.nblocks / (run.p * run.p);
  const part = Math.floor(block / cut);
  return `${Math.floor(part / run.p)}→${part % run.p}`;
}

function blocksText(run, blocks) {
  const noun = blocks.length === 1 ? "block" : "blocks";
  if (run.contract.layout !== "pairs") return `${noun} ${spansText(blocks)}`;
  if (blocks.length > 4) return countText(blocks.length, "block");
  return `${noun} ${blocks.map((b) => blockText(run, b)).join(", ")}`;
}

/* The arrays before the first step, in words. */
function startText(run) {
  if (run.contract.idempotent) return "No rank has heard of another.";
  const holders = run.plan.held.flatMap((blocks, rank) => (blocks.length ? [rank] : []));
  return holders.length < run.p ? `Rank ${holders.join(", ")} holds the array.` : "Each rank holds its own array.";
}

/* What happens in a step, in words. */
function stepText(run, step) {
  if (!run.depth) return run.p === 1 ? "One rank has nothing to send." : "No message arrives.";
  if (!step) return `Start. ${startText(run)} ${run.contract.meaning}`;
  const found = run.messages.filter((m) => m.step === step);
  const most = 6;
  const each = found.slice(0, most).map((m) => {
    if (run.contract.idempotent) return `${m.source} tells ${m.target} whom it has heard of`;
    const verb = m.fold ? "adds" : "stores";
    const what = m.blocks.length > 1 ? "them" : "it";
    return `${m.source} sends ${blocksText(run, m.blocks)} to ${m.target}, which ${verb} ${what}`;
  });
  const more = found.length > most ? `; and ${found.length - most} more` : "";
  return `Rank ${each.join("; ")}${more}.`;
}

/* The words of the last step, and how it has ended. */
function outcomeText(run, words) {
  if (run.error) return `${words} It stops here.`;
  return `${words} ${run.right() ? "Every rank has its result." : "A result is wrong."}`;
}
