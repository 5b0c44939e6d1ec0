"use strict";

/* Studies the course in the tests: opens each chapter, predicts, plays, drags, and writes what it saw
   into the page, where the test reads it. Loaded after the page's own scripts. */

const found = { errors: window.errors, chapters: {}, width: 0, scroll: 0 };

// Time is virtual here, and nothing is painted: a few frames come by the clock.
window.requestAnimationFrame = (act) => setTimeout(() => act(performance.now()), 120);

// It stands still while a file is fetched. A worker takes real time, so `real` jobs fetch instead of waiting.
const { real } = window.jobs[0];
const wait = (milliseconds) => (real ? window.fetch("jobs.js", { cache: "no-store" })
  : new Promise((done) => { setTimeout(done, milliseconds); }));
const all = (selector) => [...document.querySelectorAll(selector)];

async function until(what) {
  for (let n = 0; n < (real ? 100000 : 4000) && !what(); n += 1) await wait(20);
  if (!what()) throw new Error(`never: ${what}`);
}

function press(key) {
  document.body.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true, cancelable: true }));
}

/* What the figure shows now. */
function shown({ figure }) {
  return {
    words: figure.words.textContent,
    tally: Object.fromEntries(Object.entries(figure.count).map(([name, dd]) => [name, dd.textContent])),
    p: figure.run.p,
    ...(figure.scene ? cardsOf(figure) : { cells: [], cards: [], room: [0, 0], leftover: 0 }),
  };
}

function cardsOf(figure) {
  return {
    cells: figure.scene.cells.map((cell) => [cell.rank, cell.element, cell.text ? cell.text.textContent : ""]),
    cards: figure.scene.layout.centres.map(([x, y]) => [x, y, ...figure.scene.layout.card]),
    room: [figure.scene.svg.viewBox.baseVal.width, figure.scene.svg.viewBox.baseVal.height],
    leftover: figure.scene.chips.childNodes.length,
  };
}

/* Controls without a name, and those too small for a finger. */
function access() {
  const named = (each) => (each.labels && each.labels.length && each.labels[0].textContent.trim())
    || each.getAttribute("aria-label") || each.textContent.trim();
  const seen = (each) => each.getBoundingClientRect().height > 0;
  const controls = all("input, select, button, textarea").filter(seen);
  const small = (each) => {
    const { width, height } = each.getBoundingClientRect();
    return Math.min(width, height) < 43.5;
  };
  return {
    nameless: controls.filter((each) => !named(each)).map((each) => each.outerHTML),
    small: controls.filter(small).map((each) => each.outerHTML),
    headings: all("h1, h2, h3").map((each) => Number(each.tagName[1])),
  };
}

/* What axe-core finds, if the test has loaded it. */
async function judged() {
  if (!window.axe) return [];
  found.axe = window.axe.version;
  const { violations } = await window.axe.run(document);
  return violations.flatMap(({ id, nodes }) => nodes.map((node) => `${id}: ${node.html} ${node.failureSummary}`));
}

/* Answer what is asked: right, wrong, or not at all, in turns. */
async function ask(chapter, number, way) {
  const { quiz, figure } = chapter;
  const before = { step: figure.at(), gate: figure.gate, next: figure.next.disabled, error: figure.error.textContent };
  const choices = quiz.choices.map((each) => each.dataset.value);
  const wrong = quiz.choices.findIndex((each) => each.dataset.value !== quiz.truth);
  const right = choices.indexOf(quiz.truth);
  const kind = ["right", "wrong", "skip"][(number + way) % 3];
  if (kind === "skip") quiz.skip.click();
  else if (number % 2) press(String((kind === "right" ? right : wrong) + 1));
  else quiz.choices[kind === "right" ? right : wrong].click();
  const early = quiz.told.textContent;
  await until(() => quiz.box.querySelector(".verdict"));
  const answer = {
    text: quiz.legend.textContent, choices, truth: quiz.truth, kind, early, before,
    verdict: quiz.box.querySelector(".verdict").textContent,
    marks: quiz.choices.map((each) => each.className),
    after: shown(chapter),
    ...access(),
  };
  const more = document.querySelector(".more");
  if (more) more.click();
  if (chapter.quiz === quiz || window.errors.length) throw new Error(`${quiz.legend.textContent} stays`);
  return answer;
}

/* Prove the tasks of the editor as they begin, as they are solved, and as `texts` say. */
async function write(chapter, texts) {
  const { editor } = chapter;
  const results = [];
  const prove = async (task, text) => {
    editor.take(task);
    if (text === "solution") editor.solve();
    else {
      if (text) editor.area.value = text;
      editor.check.click();
    }
    await until(() => editor.told.querySelector(".verdict"));
    await until(() => !chapter.figure.playing);
    results.push({
      task: task.id, said: editor.told.querySelector(".verdict").textContent,
      hint: editor.told.textContent.includes("Hint: "), error: chapter.figure.error.textContent,
      words: chapter.figure.words.textContent, selected: window.getSelection().toString(),
      stuck: all(".card.stuck").length, ...access(),
    });
  };
  for (const task of editor.course.data.tasks) {
    if (!texts) {
      await prove(task, "");
      await prove(task, "solution");
    }
  }
  for (const [number, text] of texts || [[0, "x = 1"]]) await prove(editor.course.data.tasks[number], text);
  return results;
}

/* Take another task while the proof of the first one runs. */
async function leave({ editor }) {
  const [one, other] = editor.course.data.tasks;
  let tell;
  editor.verdict = () => new Promise((resolve) => { tell = resolve; });
  editor.take(one);
  editor.check.click();
  editor.take(other);
  tell({ error: "of the first" });
  await wait(50);
  delete editor.verdict;
  return { told: editor.told.textContent, waits: editor.check.disabled };
}

/* Draw a butterfly with the pointer, and before it a message that counts a number twice. */
async function sketch({ drawing, figure }) {
  const { box, svg } = figure.scene;
  const at = (kind, rank) => {
    const [x, y] = figure.scene.layout.centres[rank];
    const corner = svg.getBoundingClientRect();
    const scale = corner.width / svg.viewBox.baseVal.width;
    const place = { clientX: corner.left + x * scale, clientY: corner.top + y * scale };
    box.dispatchEvent(new PointerEvent(kind, place));
  };
  box.setPointerCapture = () => {}; // which needs a pointer that exists
  const step = async (...arrows) => {
    for (const [from, to] of arrows) {
      at("pointerdown", from);
      at("pointerup", to);
    }
    const told = drawing.told.textContent;
    drawing.more.click();
    await until(() => !figure.playing);
    await wait(50);
    return told;
  };
  const texts = [await step([0, 1], [2, 1]), await step([1, 3], [0, 3])];
  const { error } = figure;
  const failed = [error.textContent, figure.words.textContent];
  drawing.undo.click();
  const mended = [drawing.told.textContent, error.textContent];
  drawing.clear();
  texts.push(await step([0, 1], [1, 0], [2, 3], [3, 2]));
  drawing.from.value = 0;
  drawing.to.value = 2;
  all(".drawing button").find((each) => each.textContent === "Draw").click();
  texts.push(await step([2, 0], [1, 3], [3, 1]));
  return {
    texts, failed, mended, steps: [...drawing.list.children].map((each) => each.textContent),
    words: figure.words.textContent,
  };
}

/* Type a line below the first one that ends with a colon; go away and come back; undo what replaced it. */
async function type({ editor }) {
  const [one, other] = editor.course.data.tasks;
  const { area } = editor;
  editor.take(one);
  const [begin] = one.texts;
  const colon = begin.indexOf(":\n") + 1;
  area.setSelectionRange(colon, colon);
  const enter = (more) => area.dispatchEvent(
    new KeyboardEvent("keydown", { key: "Enter", bubbles: true, cancelable: true, ...more }));
  enter({});
  const typed = area.value;
  editor.take(other);
  editor.take(one);
  const kept = area.value === typed && JSON.parse(window.localStorage.getItem(STORE)).texts[one.id] === typed;
  editor.solution.click();
  const solved = area.value === one.texts[1];
  editor.solution.click();
  const back = area.value === typed;
  all(".editor button").find((each) => each.textContent === "Start again").click();
  const again = area.value === begin;
  document.execCommand("undo");
  const undone = area.value === typed;
  area.value = one.texts[1];
  enter({ ctrlKey: true });
  await until(() => editor.told.querySelector(".verdict"));
  const proven = editor.told.textContent;
  await until(() => !explorer.course.chapter.figure.playing);
  return { line: typed.slice(colon).split("\n")[1], kept, solved, back, again, undone, proven };
}

function set(input, value) {
  input.value = value;
  input.dispatchEvent(new Event("input", { bubbles: true }));
}

/* Move each slider of a chapter to its ends and back; what is said or shown must change. */
function slide() {
  return all(".try input").map((input) => {
    const { value } = input;
    const texts = [input.min, input.max, value].map((place) => {
      set(input, place);
      return document.querySelector(".counted, .curves").textContent;
    });
    return { name: input.labels[0].textContent, texts };
  });
}

/* Move the slider of the time. */
function scrub(figure) {
  if (figure.scrub.hidden) return null;
  return [0, 500, 1000].map((place) => {
    set(figure.scrub, place);
    return [figure.time / figure.end, figure.scrub.getAttribute("aria-valuetext")];
  });
}

/* Complete cells of the picture of two phases, on four ranks. */
function phases() {
  const { chapter: open } = explorer.course;
  if (!open.phases) return null;
  open.show({ p: 4 });
  open.phases.lay(open.run, firstWhole(open.run));
  return all(".phases .moment").map((button) => {
    button.click();
    return [button.querySelectorAll(".whole").length, open.figure.at()];
  });
}

/* What a training with each policy has done, and how long backward passes take. */
function worked() {
  return {
    trainings: POLICIES.flatMap(({ name }) => [10, 30, 47].map((slow) => {
      const run = new Training(name, slow);
      return { name, slow, updates: updatesOf(run), counted: run.counted(run.end),
        pushes: run.pushes.map(({ time, worker, base, dropped, stale }) => [time, worker, base, dropped, stale]) };
    })),
  };
}

async function chapter(what, { way = 0, drag = true, texts = null }) {
  window.location.hash = `#chapter=${what.id}`;
  await wait(50); // for the event
  await until(() => explorer.course.chapter && explorer.course.chapter.what === what);
  const { chapter: open } = explorer.course;
  const start = { ...shown(open), heading: open.title.textContent, title: document.title };
  const findings = await judged();
  const answers = [];
  while (open.quiz) answers.push(await ask(open, answers.length, way));
  const drags = [];
  const slider = document.querySelector(".try input");
  if (slider && what.drag && drag) {
    for (const [place, p] of [[2, 2], [3, 3], [7, 7], [16, 16], [18, 64]]) { // the last places are 32 and 64
      if (place > slider.max) continue;
      slider.value = place;
      slider.dispatchEvent(new Event("input", { bubbles: true }));
      await until(() => open.run.p === p);
      open.figure.seek(open.run.end);
      drags.push({ ...shown(open), said: document.querySelector(".counted").textContent, bars: all(".bars rect").length });
    }
  }
  const tried = !what.drag && drag ? slide() : [];
  const scrubbed = scrub(open.figure);
  const written = open.editor ? await write(open, texts) : [];
  const sketched = open.drawing && await sketch(open);
  const typed = open.editor && !texts && await type(open);
  findings.push(...await judged());
  const waits = all(".waits path").length;
  const left = open.editor && await leave(open);
  open.figure.seek(0);
  press("ArrowRight");
  await until(() => !open.figure.playing);
  const key = open.figure.at();
  const width = document.documentElement.scrollWidth;
  return {
    start, findings, answers, drags, tried, scrubbed, phases: phases(), written, typed, sketched, left, waits, key, depth: open.run.depth, done: open.course.links[open.place].className, width, ...access(),
  };
}

async function study() {
  try {
    await until(() => explorer.course.chapter);
    await until(() => document.readyState === "complete");
    await wait(100); // for what the page around it says
    found.opened = document.querySelector("h2").textContent;
    const [job] = window.jobs;
    for (const what of CHAPTERS.filter((each) => !job.chapters || job.chapters.includes(each.id))) {
      found.chapters[what.id] = await chapter(what, job);
    }
    found.worked = worked();
    found.every = CHAPTERS.map((each) => each.id);
    found.crossings = Object.fromEntries([4, 16].map((p) => [p, crossings(explorer.course, p)]));
    explorer.course.go(0);
    press("n");
    found.turned = [window.location.hash, document.querySelector("h2").textContent];
    found.theme = document.documentElement.dataset.theme || "";
    found.width = window.innerWidth;
  } catch (error) {
    window.errors.push(`study: ${error.stack}`);
  }
  if (window.parent !== window) {
    window.parent.postMessage(JSON.stringify(found), "*"); // to the page of the test that framed it
    return;
  }
  const report = document.createElement("pre");
  report.id = "report";
  report.textContent = JSON.stringify(found);
  document.body.append(report);
}

study();
