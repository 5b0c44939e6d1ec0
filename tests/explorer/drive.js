"use strict";

/* Drives the page of the explorer in the tests: plays what `window.jobs` says, and writes what the
   page showed then into itself, where the test reads it. Loaded after the page's own scripts. */

const found = { errors: window.errors, results: [], keys: {}, width: 0, scroll: 0 };

// Time is virtual here, and nothing is painted: frames come by the clock.
window.requestAnimationFrame = (act) => setTimeout(() => act(performance.now()), 16);

const wait = (milliseconds) => new Promise((done) => { setTimeout(done, milliseconds); });

async function until(what) {
  for (let n = 0; n < 4000 && !what(); n += 1) await wait(20);
  if (!what()) throw new Error(`never: ${what}`);
}

/* What a panel shows, read from the document, and the times of its messages. */
function shown(panel) {
  const { run, stage } = panel;
  const error = panel.box.querySelector(".error");
  if (!run) return { error: error.textContent };
  return {
    error: error && error.textContent,
    at: [...panel.box.querySelectorAll(".line.at code")].map((each) => each.textContent.trim()),
    title: panel.title.textContent,
    shape: stage === panel.rows ? "rows" : stage.shape,
    words: panel.words.textContent,
    start: stepText(run, 0),
    counts: Object.fromEntries(Object.entries(panel.count).map(([k, dd]) => [k, dd.textContent])),
    cells: stage.cells.map((cell) => [
      cell.rank, cell.element, cell.text ? cell.text.textContent : "", cell.group.classList.contains("whole"),
    ]),
    end: run.end,
    steps: run.steps,
    blocks: run.nblocks,
    length: run.length,
    messages: run.messages.map((m) =>
      [m.source, m.target, m.takenIn, m.bytes, m.start, m.arrive, m.done, m.step]),
    leftover: stage.chips.childNodes.length,
    alpha: panel.lanes.svg.querySelectorAll(".bar.alpha").length,
    busiest: (stage.cards || []).flatMap(({ group }, rank) => (group.classList.contains("busiest") ? [rank] : [])),
  };
}

/* Where everything is in each step, and between: rows, captions, and messages under way. */
function looked(page, [panel, ...others]) {
  const tops = [panel, ...others].map(({ stage }) => stage.cells.filter((cell) => !cell.element && cell.group)
    .map((cell) => Math.round(cell.group.getBoundingClientRect().top + window.scrollY)));
  const { layout, flying } = panel.stage;
  const chips = [...flying].flatMap(([{ source, target }, { parts }]) => parts.flatMap(({ at: [x, y], group }) => {
    if (!group) return [{ source, target }]; // a part of a path
    const opacity = Number(getComputedStyle(group).opacity);
    return [...group.querySelectorAll(".chip")].map((chip) => {
      const body = chip.querySelector("rect");
      const [left, top, width, high] = ["x", "y", "width", "height"].map((name) => Number(body.getAttribute(name)));
      const [ahead] = chip.getAttribute("transform").match(/[-\d.]+/);
      const begin = Number(x) + Number(ahead) + left;
      return { source, target, opacity, box: [begin, Number(y) + top, begin + width, Number(y) + top + high] };
    });
  }));
  const drawn = [panel.stage.squares, panel.stage.chips].map((group) =>
    [...group.querySelectorAll("path")].flatMap((path) => path.getAttribute("d").match(/M/g)).length);
  const texts = panel.stage.layout.small ? [] : panel.stage.cells.map((cell) => {
    const [x, y] = [Number(cell.text.getAttribute("x")), Number(cell.text.getAttribute("y"))];
    return { rank: cell.rank, box: [x - 2, y - layout.font / 3, x + 2, y + layout.font / 3] };
  });
  return { tops, chips, texts, drawn, right: panel.run.right() };
}

async function play(page, job) {
  await page.change({ beside: "", root: 0, ...page.defaults, ...job.settings });
  if (job.look) {
    return job.look.map((part) => {
      page.seek(part * page.end);
      return looked(page, page.shown);
    });
  }
  if (job.play) {
    page.pace = () => page.end / 0.2;
    let lines = 0;
    let chips = 0;
    const { show } = page;
    page.show = function looked() {
      show.call(page);
      lines += document.querySelectorAll(".panel:not([hidden]) .line.at").length;
      chips += document.querySelectorAll(".panel:not([hidden]) .chip").length;
    };
    byId("play").click();
    await until(() => !page.playing);
    delete page.show;
    delete page.pace;
    return { lines, chips, panels: page.shown.map(shown), state: document.documentElement.dataset.state };
  }
  page.seek(page.end);
  return { panels: page.shown.map(shown) };
}

function press(key) {
  document.body.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true, cancelable: true }));
}

function choose(id, value, kind = "change") {
  byId(id).value = value;
  byId(id).dispatchEvent(new Event(kind, { bubbles: true }));
}

/* The controls and keys, one after the other; what each led to. */
async function keys(page) {
  const result = {}, settled = async () => { await wait(100); };
  await page.change({ ...page.defaults });
  press("ArrowRight");
  result.moving = page.playing;
  await until(() => !page.playing);
  result.right = page.panels[0].count.step.textContent;
  result.words = page.panels[0].words.textContent;
  result.hash = window.location.hash;
  press("ArrowRight");
  press("ArrowRight"); // the second ends what the first began
  await until(() => !page.playing);
  result.three = page.panels[0].count.step.textContent;
  press("ArrowLeft");
  result.left = page.panels[0].count.step.textContent;
  press("End");
  result.end = page.panels[0].count.messages.textContent;
  press("Home");
  result.home = page.time;
  press(" ");
  result.space = [page.playing, byId("play").textContent.trim()];
  press(" ");
  result.again = [page.playing, byId("play").textContent.trim()];
  press("n");
  await settled();
  result.ranks = page.runs[0].p;
  press("c");
  await settled();
  result.cells = page.settings.cells;
  press("t");
  await settled();
  result.theme = document.documentElement.dataset.theme;
  press("+");
  result.speed = byId("speed").value;
  return { ...result, ...await choices(page, settled), ...access() };
}

/* The lists and the sliders of the page, after one another. */
async function choices(page, settled) {
  const result = {};
  choose("collective", "broadcast");
  await settled();
  const texts = (which) => [...byId("algorithm").querySelectorAll(which)].map((each) => each.text);
  result.textbook = texts(":scope > option");
  result.literature = texts("optgroup[label=Literature] > option");
  choose("root", "2");
  await settled();
  choose("nbytes", "10", "input");
  await settled();
  choose("topology", "fattree");
  await settled();
  choose("beside", "broadcast/chain");
  await settled();
  result.chosen = window.location.hash;
  result.titles = page.shown.map((panel) => panel.title.textContent);
  byId("time").focus();
  byId("time").dispatchEvent(new KeyboardEvent("keydown", { key: "Home", bubbles: true }));
  choose("time", "500", "input");
  result.half = page.time / page.end;
  const space = () => {
    byId("p").dispatchEvent(new KeyboardEvent("keydown", { key: " ", bubbles: true, cancelable: true }));
    return page.playing;
  };
  result.slider = [space(), space()];
  const table = page.panels[0].table;
  table.box.open = true;
  await settled();
  result.table = table.table.rows.length;
  return result;
}

/* What somebody finds who does not see the page. */
function access() {
  const named = (each) => (each.labels && each.labels.length && each.labels[0].textContent.trim())
    || each.getAttribute("aria-label") || (each.tagName === "BUTTON" && each.textContent.trim());
  const controls = [...document.querySelectorAll("input, select, button")];
  return {
    nameless: controls.filter((each) => !named(each)).map((each) => each.id),
    low: controls.filter((each) => each.type === "range" && each.getBoundingClientRect().height < 44
      && each.checkVisibility()).map((each) => each.id),
    unreachable: controls.filter((each) => each.tabIndex < 0).map((each) => each.id),
    live: document.querySelectorAll(".panel .words[aria-live=polite]").length,
  };
}

/* What axe-core finds, if the test has loaded it. */
async function judged() {
  if (!window.axe) return [];
  found.axe = window.axe.version;
  const { violations } = await window.axe.run(document);
  return violations.flatMap(({ id, nodes }) => nodes.map((node) => `${id}: ${node.html} ${node.failureSummary}`));
}

async function drive() {
  try {
    await until(() => explorer.page && explorer.page.shown);
    await until(() => document.readyState === "complete");
    await wait(100); // for what the page around it says
    const { page } = explorer;
    found.notice = byId("notice").hidden ? "" : byId("notice").textContent;
    found.opened = { hash: window.location.hash, panels: page.shown.map(shown), time: page.time };
    for (const job of window.jobs) found.results.push(await play(page, job));
    if (window.pressKeys) found.keys = await keys(page);
    found.wide = [...document.querySelectorAll(".lines")].map((each) => each.scrollWidth - each.clientWidth);
    for (const box of document.querySelectorAll("details")) box.open = true;
    await wait(100);
    found.findings = await judged();
    found.theme = document.documentElement.dataset.theme || "";
    found.width = window.innerWidth;
    found.scroll = document.documentElement.scrollWidth;
  } catch (error) {
    window.errors.push(`drive: ${error.stack}`);
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

drive();
