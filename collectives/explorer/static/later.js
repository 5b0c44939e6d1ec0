"use strict";

/* The later chapters: who wins when, a straggler, and what is wrong. */

const LATE = 20e-6; // seconds

/* Curves instead of the scene; made once for a chapter. */
function curvesOf(chapter) {
  if (!chapter.curves) {
    chapter.figure.box.hidden = true;
    chapter.curves = new Curves(chapter.figure.box.parentNode, chapter, (k) => chapter.sizes.set(k));
  }
  return chapter.curves;
}

const fastest = (c, p, nbytes) => NAMES[ranking(c.course, p, nbytes)[0][0]];
const lastCrossing = (c, p) => crossings(c.course, p).pop();
const lateOf = (p, rank, seconds) => ({ late: Array.from({ length: p }, (_, r) => (r === rank ? seconds : 0)) });
const delayed = (c, algorithm, rank) =>
  c.made({ algorithm, more: lateOf(c.p, rank, LATE) }).end - c.made({ algorithm, more: lateOf(c.p, 0, 0) }).end;

const losses = (c) => ["ring", "tree", "butterfly"].map((name) => `${name} ${timeText(delayed(c, name, 2))}`)
  .join(", ");

/* Seconds in which a rank neither sends nor receives, up to the end. */
function idle(run, rank) {
  const spans = run.messages.filter((m) => m.source === rank || m.target === rank)
    .map((m) => [m.start, m.leave]).sort((a, b) => a[0] - b[0]);
  let busy = 0;
  let until = 0;
  for (const [start, leave] of spans) {
    busy += Math.max(0, leave - Math.max(start, until));
    until = Math.max(until, leave);
  }
  return run.end - busy;
}

CHAPTERS.push(
  {
    id: "race",
    title: "Who wins when",
    lead: [
      "A message costs *alpha* seconds, however short it is, and *beta* seconds for each byte. Adding up costs "
        + "*gamma* seconds a byte. The time of an algorithm is: messages one after another × alpha + bytes × beta + "
        + "bytes added × gamma.",
      "Here alpha is 2 µs, and a second moves or adds 10 GB.",
    ],
    view: { algorithm: "ring", shape: "ring", p: 16 },
    begin: (c) => curvesOf(c).show({ p: 16, open: false }),
    asks: [
      {
        text: () => "16 ranks add up very short arrays, of 8 bytes. Which algorithm is the fastest?",
        truth: (c) => fastest(c, 16, 8),
        others: () => ["ring", "tree", "all to all", "butterfly"],
        play: async (c) => curvesOf(c).show({ nbytes: 8, open: true }),
        why: (c) => {
          const empty = (name) => Math.round(timeOf(c.course, name, 16, 0) / MACHINE.alpha);
          return `Bytes cost next to nothing here, so the algorithm with the fewest messages in a row wins: `
            + `${empty("butterfly")} for the butterfly, ${empty("tree")} for the tree, ${empty("ring")} for the ring.`;
        },
      },
      {
        text: () => "Now the arrays have 32 MiB. Which is the fastest?",
        truth: (c) => fastest(c, 16, 2 ** 25),
        others: () => ["butterfly", "tree", "all to all", "ring"],
        play: async (c) => curvesOf(c).show({ nbytes: 2 ** 25 }),
        why: (c) => `Now the bytes decide. Through a rank of the ring go `
          + `${arraysText(arrays(c.made({ algorithm: "ring", p: 16 })))}, through one of the butterfly `
          + `${arraysText(arrays(c.made({ algorithm: "butterfly", p: 16 })))}. The curves cross at `
          + `${bytesText(lastCrossing(c, 16).nbytes)}.`,
      },
      {
        text: (c) => `With 16 ranks, the ring wins from ${bytesText(lastCrossing(c, 16).nbytes)} on. And with 4 `
          + `ranks?`,
        truth: (c) => (lastCrossing(c, 4).nbytes < lastCrossing(c, 16).nbytes ? "from a smaller size on"
          : "from a larger size on"),
        others: () => ["from a smaller size on", "from the same size on", "from a larger size on"],
        play: async (c) => curvesOf(c).show({ p: 4, nbytes: 2 ** 16 }),
        why: (c) => `From ${bytesText(lastCrossing(c, 4).nbytes)} on. The ring of 4 has only `
          + `${Math.round(timeOf(c.course, "ring", 4, 0) / MACHINE.alpha)} messages in a row. This is why the `
          + `library looks at `
          + "the size of the array and at the number of ranks before it chooses.",
      },
    ],
    part(c) {
      const box = make("section", "try", c.asking);
      make("h3", "", box, "Try it");
      rich("p", "", box, "Drag both. A ring on a curve marks where another algorithm becomes the fastest.");
      new Slider(box, { label: "Ranks", min: 2, max: MOST, value: c.curves.p, act: (p) => c.curves.show({ p }) });
      c.sizes = new Slider(box, {
        label: "Size of an array", min: 3, max: 25, value: Math.log2(c.curves.nbytes), text: (k) => bytesText(2 ** k),
        act: (k) => c.curves.show({ nbytes: 2 ** k }),
      });
    },
  },
  {
    id: "straggler",
    title: "A straggler",
    lead: [
      "So far, all ranks began at the same time. Now the batch of rank 2 takes longer, and it begins late. Below the "
        + "picture, each rank has a line of time, with its sent messages above and its received ones below.",
    ],
    view: { algorithm: "ring", shape: "ring", lanes: true, time: true, more: { late: [0, 0, LATE, 0] } },
    asks: [
      {
        text: (c) => `Without a straggler, this ring takes ${timeText(c.made({ more: lateOf(4, 0, 0) }).end)}. `
          + `Rank 2 begins ${timeText(LATE)} late. When is the last rank done?`,
        truth: ({ run }) => timeText(run.end),
        others: (c) => {
          const alone = c.made({ more: lateOf(4, 0, 0) }).end;
          return [timeText(alone), timeText(alone + LATE / 4), timeText(alone + 4 * LATE)];
        },
        play: played("end"),
        why: ({ run }) => `All wait for rank 2, and then the ring takes as long as ever. Rank 0 has done nothing for `
          + `${timeText(idle(run, 0))} of the ${timeText(run.end)}.`,
      },
      {
        text: () => "Which algorithm loses less by it?",
        truth: (c) => {
          const found = ["ring", "tree", "butterfly"].map((name) => [name, delayed(c, name, 2)]);
          const least = Math.min(...found.map(([, each]) => each));
          const winners = found.filter(([, each]) => each < least * 1.001);
          return winners.length === 3 ? "all lose the same" : winners.map(([name]) => name).join(", ");
        },
        others: () => ["ring", "tree", "butterfly", "all lose the same"],
        play: played("end", { algorithm: "butterfly", shape: "cube" }),
        why: (c) => `They lose: ${losses(c)}. Every result `
          + "needs the numbers of every rank, so no allreduce can end before the last one has come. Only a "
          + "method that does not wait helps: a *parameter server* that continues without the slowest rank, or arrays "
          + "that are sent in the background.",
      },
    ],
    part(c) {
      const box = make("section", "try", c.asking);
      make("h3", "", box, "Try it");
      const said = make("p", "counted", box);
      let [rank, micros] = [2, 20];
      const show = () => {
        c.show({ algorithm: "ring", shape: "ring", more: lateOf(4, rank, micros * 1e-6) });
        c.figure.seek(c.run.end);
        const waits = [0, 1, 2, 3].map((r) => timeText(idle(c.run, r)));
        said.textContent = `All are done after ${timeText(c.run.end)}. Ranks 0 to 3 do nothing for `
          + `${waits.join(", ")}.`;
      };
      new Slider(box, { label: "Who is late: rank", min: 0, max: 3, value: rank, act: (r) => { rank = r; show(); } });
      new Slider(box, {
        label: "How late", min: 0, max: 60, value: micros, text: (each) => timeText(each * 1e-6),
        act: (each) => { micros = each; show(); },
      });
      show();
    },
  },
  {
    id: "broken",
    title: "What is wrong here?",
    lead: [
      "An algorithm is a short generator: each *yield* is a round, with the blocks that rank r sends and receives. "
        + "These two look right. The library *proves* an algorithm before it runs it, by playing it with sets of ranks "
        + "instead of numbers.",
    ],
    view: (course) => ({ algorithm: "waits", shape: "ring", data: course.data.broken.waits, blind: true }),
    text: true,
    begin: (c) => { c.figure.text.box.open = true; },
    asks: [
      {
        text: () => "Each rank first receives from its left, and then sends to its right. What happens?",
        truth: ({ run }) => (run.messages.length || !/deadlock/.test(run.error) ? "all get the sum"
          : "nothing is ever sent"),
        others: () => ["all get the sum", "only the last rank gets the sum", "nothing is ever sent"],
        play: async (c) => {
          c.figure.reveal();
          await c.figure.playTo(c.run.depth);
        },
        why: ({ run }) => `Each waits for its left neighbour, which waits as well, all round the ring: a *deadlock*. `
          + `${countText(run.messages.length, "message")} moved. One rank that sends first would break the circle.`,
      },
      {
        text: () => "This ring adds in the second phase, too. In which step is something wrong for the first time?",
        show: (c) => c.show({ data: c.course.data.broken.twice, algorithm: "twice" }),
        truth: ({ run }) => run.depth,
        others: () => [1, 3, 6],
        say: (text) => `in step ${text}`,
        play: async (c) => {
          c.figure.reveal();
          await c.figure.playTo(c.run.depth);
        },
        why: ({ run }) => `After step ${run.depth - 1} the sums are complete. Step ${run.depth} adds a complete `
          + `sum to a part of it, so that a `
          + "contribution counts twice. The proof names the rank, the round and the contribution.",
      },
    ],
  },
);
