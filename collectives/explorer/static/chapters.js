"use strict";

/* The chapters: what an allreduce is, six ways to do it, who wins when, a straggler, and what is wrong.
   Each is data: words, questions, and something to drag. Every number in an answer is counted in the run
   that the figure plays. */

const steps = (run) => run.depth;
const foldSteps = (run) => Math.max(...run.messages.filter((m) => m.fold).map((m) => m.step));
const arrays = (run) => busiest(run).most / (NUMBER * run.length);
const through = (run, rank) => run.counts(Infinity).through[rank];
const played = (to, more) => async (c) => {
  await c.show(more || {});
  await c.figure.playTo(to === "end" ? c.run.depth : to);
};
const value = (run, rank, element, step) => run.held(rank, element, run.steps[step]).value;

/* How many pairs of ranks exchange messages. */
const paired = (run) => pairsOf(run).length;

/* The first step after which every rank has the complete sum of some number. */
function firstWhole(run) {
  const ranks = [...Array(run.p).keys()];
  const whole = (r, time) => [...run.changes[r].keys()].some((e) => {
    const held = run.held(r, e, time);
    return held && held.mask === run.due(r, e);
  });
  return run.steps.findIndex((time) => ranks.every((r) => whole(r, time)));
}

/* The message that a rank receives in a step. */
const incoming = (run, rank, step) => run.messages.find((m) => m.target === rank && m.step === step);

const LATE = 20e-6; // seconds
const NEVER = 1e-3; // seconds, in which all the others have long come to wait

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

/* Seconds in which a rank that has begun neither sends nor receives, up to the end. */
function idle(run, rank) {
  const spans = run.messages.filter((m) => m.source === rank || m.target === rank)
    .map((m) => [m.start, m.leave]).sort((a, b) => a[0] - b[0]);
  let busy = run.late[rank] || 0;
  let until = busy;
  for (const [start, leave] of spans) {
    busy += Math.max(0, leave - Math.max(start, until));
    until = Math.max(until, leave);
  }
  return run.end - busy;
}

/* Play a ring as far as it comes without a rank. */
const heldUp = (rank) => async (c) => {
  c.show({ more: lateOf(4, rank, NEVER) });
  await c.figure.play(4 * (FIGURE.alpha + NUMBER * FIGURE.beta));
};

const CHAPTERS = [
  {
    id: "workers",
    title: "Four workers, four numbers",
    lead: [
      "Four workers train one model together. Each has seen other data, and each has an array of four numbers: how "
        + "it would change the model.",
      "All of them need the sum of all four arrays, element by element. This is an *allreduce*. A worker is called a "
        + "*rank*, and ranks are numbered from 0.",
    ],
    view: { algorithm: "all_to_all", shape: "ring", plain: true },
    asks: [
      {
        text: () => "Which number must every rank hold first at the end?",
        truth: ({ run }) => run.held(0, 0, Infinity).value,
        others: ({ run }) => [
          Math.max(...run.changes.map((each) => each.get(0)[0].value)),
          [0, 1, 2, 3].reduce((sum, e) => sum + run.changes[0].get(e)[0].value, 0),
          run.changes[0].get(0)[0].value + run.changes[1].get(0)[0].value,
        ],
        play: async (c) => { c.figure.seek(c.run.end); },
        why: ({ run }) => {
          const each = run.changes.map((row) => row.get(0)[0].value);
          return `${each.join(" + ")} = ${run.held(0, 0, Infinity).value}: the first numbers of all ranks. `
            + "The picture shows only the end. How the numbers travel is the subject of this course.";
        },
      },
      {
        text: () => "Rank 0 has its own four numbers. How many numbers of others go into its four sums?",
        truth: ({ run }) => [0, 1, 2, 3].reduce((sum, e) => sum + bits(run.due(0, e)).length - 1, 0),
        others: () => [3, 4, 16],
        play: async (c) => { c.figure.seek(c.run.end); },
        why: ({ run }) => `Each of its ${run.length} sums needs one number of each of the ${run.p - 1} others. `
          + "They need not arrive one by one, though: a sum of several is one number, too.",
      },
    ],
    drag: {
      words: ({ p, run }) => `With ${countText(p, "rank")}, each sum has ${countText(p, "term")}, and ${p} ranks `
        + `must learn ${countText(run.length, "sum")}.`,
    },
  },
  {
    id: "all-to-all",
    title: "Everyone tells everyone",
    lead: [
      "The first idea: each rank sends its whole array to all the others, and adds up all that it gets. One step, "
        + "and all are done.",
    ],
    view: { algorithm: "all_to_all", shape: "ring" },
    asks: [
      {
        text: () => "Four ranks, each tells the others. How many messages is that?",
        truth: ({ run }) => run.messages.length,
        others: () => [4, 6, 16],
        play: played("end"),
        why: ({ run }) => `Each of the ${run.p} ranks sends ${run.p - 1}. They are sent at once, in one step, but a `
          + "rank has only one cable: its messages go through it one after the other.",
      },
      {
        text: () => "Twice as many ranks: 8. How many messages now?",
        truth: (c) => c.made({ p: 8 }).messages.length,
        others: () => [16, 24, 64],
        play: played("end", { p: 8 }),
        why: ({ run }) => `${run.p} × ${run.p - 1} = ${run.messages.length}. Twice as many ranks, more than four `
          + `times as many messages. Traffic through ${busiestText(run)}.`,
      },
    ],
    drag: {
      words: ({ p, run }) => `${countText(p, "rank")}: ${countText(run.messages.length, "message")}, and `
        + `${arraysText(arrays(run))} through each rank.`,
      bars: {
        title: "Messages, by the number of ranks",
        of: [["all to all", "all_to_all", (run) => run.messages.length]],
      },
    },
  },
  {
    id: "master",
    title: "A master, and its bottleneck",
    lead: [
      "The second idea: all workers send their arrays to rank 0, the master. It adds them up, and sends the sum "
        + "back. That takes far fewer messages.",
      "The bar in each card shows how many bytes have gone through the rank, in and out.",
    ],
    view: { algorithm: "master_worker", shape: "star" },
    asks: [
      {
        text: () => "Which rank is the busiest?",
        truth: ({ run }) => spansText(busiest(run).ranks),
        others: () => ["3", "all alike"],
        say: (text) => (text === "all alike" ? "all are equally busy" : `rank ${text}`),
        play: played("end"),
        why: ({ run }) => {
          const [master, worker] = [0, 1].map((rank) => bytesText(through(run, rank)));
          return `${master} go through the master, ${worker} through each worker. `
            + "In the picture, messages wait in line for the master's cable.";
        },
      },
      {
        text: ({ run }) => `With ${run.p} ranks, ${arraysText(arrays(run))} went through the master. How many with `
          + `8 ranks?`,
        truth: (c) => arrays(c.made({ p: 8 })),
        others: () => [6, 8, 12],
        play: played("end", { p: 8 }),
        why: ({ run }) => `${run.p - 1} arrays come in, and ${run.p - 1} go out. A worker still has `
          + `${arraysText(through(run, 1) / (NUMBER * run.length))}. When the master's cable is full, more workers `
          + `only `
          + "wait longer: the server is *saturated*.",
      },
    ],
    drag: {
      words: ({ p, run }) => `${countText(p, "rank")}: ${arraysText(arrays(run))} through the master, `
        + `${arraysText(through(run, p - 1) / (NUMBER * run.length))} through a worker; `
        + `${countText(run.messages.length, "message")}.`,
      bars: {
        title: "Arrays through one rank, by the number of ranks",
        of: [["the master", "master_worker", arrays],
          ["a worker", "master_worker", (run) => through(run, run.p - 1) / (NUMBER * run.length)]],
      },
    },
  },
  {
    id: "tree",
    title: "A tree shares the work",
    lead: [
      "The master need not add up everything alone. In a tree, a rank adds up the arrays of the ranks below, and "
        + "sends one array to the rank above. The sum returns in the same way.",
    ],
    view: { algorithm: "tree", shape: "tree" },
    asks: [
      {
        text: () => "After how many steps does rank 0 have the sum of all four?",
        truth: ({ run }) => foldSteps(run),
        others: () => [1, 3, 4],
        play: (c) => c.figure.playTo(foldSteps(c.run)),
        why: ({ run }) => `In step 1, two pairs add at the same time. In step ${foldSteps(run)}, the two sums meet.`,
      },
      {
        text: () => "How many steps for 16 ranks, up and down again?",
        truth: (c) => steps(c.made({ p: 16 })),
        others: () => [4, 16, 30],
        play: played("end", { p: 16 }),
        why: ({ run }) => `${foldSteps(run)} up and ${run.depth - foldSteps(run)} down. In each step, half of the `
          + `ranks that `
          + "still have something hand it on. So twice as many ranks need only two steps more.",
      },
    ],
    drag: {
      words: ({ p, run }) => `${countText(p, "rank")}: ${countText(run.depth, "step")}. Through the busiest go `
        + `${arraysText(arrays(run))}, through the last ${arraysText(through(run, p - 1) / (NUMBER * run.length))}.`,
      bars: {
        title: "Arrays through the busiest rank, by the number of ranks",
        of: [["master", "master_worker", arrays], ["tree", "tree", arrays]],
      },
    },
  },
  {
    id: "butterfly",
    title: "A butterfly: nobody waits",
    lead: [
      "In a tree, half of the ranks send once and then wait. In a butterfly, ranks *exchange* in pairs: both send, "
        + "and both add. In the next step, each has another partner.",
    ],
    view: { algorithm: "butterfly", shape: "cube" },
    asks: [
      {
        text: ({ run }) => `Ranks 0 and 1 exchange first. They hold ${value(run, 0, 0, 0)} and `
          + `${value(run, 1, 0, 0)} as their first numbers. `
          + "Which number does rank 1 hold there after step 1?",
        truth: ({ run }) => value(run, 1, 0, 1),
        others: ({ run }) => [value(run, 0, 0, 0), value(run, 1, 0, 0), value(run, 0, 0, run.depth)],
        play: played(1),
        why: ({ run }) => `${value(run, 0, 0, 0)} + ${value(run, 1, 0, 0)} = ${value(run, 1, 0, 1)}, and rank 0 `
          + `holds the same. Both did `
          + "the same work, so nobody has to be told.",
      },
      {
        text: () => "How many steps until all four have the complete sum?",
        truth: ({ run }) => steps(run),
        others: () => [3, 4, 6],
        play: played("end"),
        why: (c) => `After step 1, two ranks know the sum of two, after step ${c.run.depth} all know the sum of `
          + `${c.run.p}. The tree took ${steps(c.made({ algorithm: "tree" }))}.`,
      },
      {
        text: () => "How many for 16 ranks?",
        truth: (c) => steps(c.made({ p: 16 })),
        others: () => [8, 15, 16],
        play: played("end", { p: 16 }),
        why: (c) => `After each step, a rank has the sum of twice as many arrays: 2, 4, 8, 16. But each step sends the `
          + `*whole* array: ${arraysText(arrays(c.run))} go through every rank. For short arrays that costs nothing, `
          + "and few steps win. For long ones it is a lot.",
      },
    ],
    drag: {
      words: ({ p, run }) => `${countText(p, "rank")}: ${countText(run.depth, "step")}, ${arraysText(arrays(run))} `
        + `through the busiest.${p & (p - 1) ? " Not a power of two: ranks left over wait for a partner." : ""}`,
      bars: {
        title: "Steps, by the number of ranks",
        of: [["tree", "tree", steps], ["butterfly", "butterfly", steps]],
      },
    },
  },
  {
    id: "ring",
    title: "The ring, in two phases",
    lead: [
      "Cut each array into as many blocks as there are ranks. Now every rank sends one *block* to its right and "
        + "gets one from its left, all at the same time.",
      "In the first phase, partial sums travel once around the ring (*reduce-scatter*). In the second phase, "
        + "complete sums travel around it again (*allgather*).",
    ],
    view: { algorithm: "ring", shape: "ring" },
    text: true,
    asks: [
      {
        text: () => "In step 1, rank 0 sends its block 0 to the right. What arrives at rank 0?",
        truth: ({ run }) => incoming(run, 0, 1).blocks[0],
        others: () => [0, 1, 2],
        say: (text, { run }) => `block ${text} of rank ${run.p - 1}`,
        play: played(1),
        why: ({ run }) => {
          const m = incoming(run, 0, 1);
          const [before, after] = [0, 1].map((step) => value(run, 0, m.blocks[0], step));
          return `Every rank sends the block with its own number. So rank 0 gets block ${m.blocks[0]} from rank `
            + `${m.source}, and its ${before} becomes ${after}.`;
        },
      },
      {
        text: () => "After how many steps does every rank have one complete sum?",
        truth: ({ run }) => firstWhole(run),
        others: () => [1, 2, 4],
        play: (c) => c.figure.playTo(firstWhole(c.run)),
        why: ({ run }) => `A sum has to visit all ${run.p} ranks, and that takes ${firstWhole(run)} steps. Each `
          + `rank now has the complete `
          + "sum of another block: it is in full colour. This is the end of the first phase.",
      },
      {
        text: (c) => `With 8 ranks, ${arraysText(arrays(c.made({ algorithm: "master_worker", p: 8 })))} go through `
          + `a master. `
          + "How many through the busiest rank of a ring?",
        truth: (c) => arrays(c.made({ p: 8 })),
        others: () => [1.75, 7, 14],
        say: (text) => arraysText(Number(text)),
        play: played("end", { p: 8 }),
        why: (c) => {
          const master = c.made({ algorithm: "master_worker", p: 8 });
          const blocks = through(c.run, 0) / (NUMBER * c.run.length / 8);
          const all = (run) => arraysText(run.counts(Infinity).allBytes / (NUMBER * run.length));
          return `In its ${c.run.depth} steps, a rank sends and receives ${blocks} blocks, each an eighth of an `
            + `array. All ranks together send ${all(c.run)}, and with the master it is ${all(master)}. But in the ring `
            + "no rank is busier than another. The price: more steps.";
        },
      },
    ],
    part(c) {
      const box = c.trying("Ring = reduce-scatter + allgather");
      rich("p", "", box, "A row is a rank, a column a block; in full colour, its sum is complete.");
      c.phases = new Phases(box, ["reduce-scatter", "allgather"], (step) => c.figure.seek(c.run.steps[step]));
      c.phases.lay(c.run, firstWhole(c.run));
    },
    drag: {
      words: ({ p, run }) => `${countText(p, "rank")}: ${arraysText(arrays(run))} through each rank, in `
        + `${countText(run.depth, "step")}. It is never more than 4 arrays.`,
      bars: {
        title: "Arrays through the busiest rank, by the number of ranks",
        of: [["master", "master_worker", arrays], ["butterfly", "butterfly", arrays], ["ring", "ring", arrays]],
      },
    },
  },
  {
    id: "round-robin",
    title: "Round robin: everyone a master",
    loads: "round_robin",
    lead: [
      "The master adds up everything, and is the bottleneck. In a *round robin*, every rank is the master of one "
        + "block: it adds up this block of all ranks, and sends the sum back to them.",
      "In step 1, each rank sends its right neighbour the block that this neighbour owns. In step 2, it does the same "
        + "for the rank after that, and so on.",
    ],
    view: { algorithm: "round_robin", shape: "ring" },
    asks: [
      {
        text: (c) => `With 8 ranks, ${arraysText(arrays(c.made({ algorithm: "master_worker", p: 8 })))} go through one `
          + "master. How many through the busiest rank of a round robin?",
        truth: (c) => arrays(c.made({ p: 8 })),
        others: () => [1.75, 7, 14],
        say: (text) => arraysText(Number(text)),
        play: played("end", { p: 8 }),
        why: ({ run }) => `A block is an eighth of an array. A rank sends and receives 7 of them in each half of the `
          + `${run.depth} steps, as in the ring, and no rank is busier than another.`,
      },
      {
        text: (c) => `On 4 ranks, this takes ${timeText(c.made({ algorithm: "round_robin", p: 4 }).end)}. How long if `
          + "all ranks send to rank 0 first, then all to rank 1, and so on?",
        show: (c) => c.show({ data: c.course.data.crowd, algorithm: "crowd", p: 4 }),
        truth: ({ run }) => timeText(run.end),
        others: (c) => [1, 2, 4].map((times) => timeText(times * c.made({ algorithm: "round_robin", p: 4 }).end)),
        play: played("end", {}),
        why: () => "The messages are the same, but they wait in line for one rank, while the cables of others are "
          + "free. In a round robin, no two ranks send to the same one in a step.",
      },
      {
        text: (c) => `In a ring of 8, ${paired(c.made({ algorithm: "ring", p: 8 }))} pairs of neighbours `
          + "exchange messages. How many pairs of ranks do in a round robin?",
        show: (c) => c.show({ data: null, algorithm: "round_robin", p: 8 }),
        truth: ({ run }) => paired(run),
        others: () => [8, 14, 56],
        play: played("end"),
        why: ({ run }) => `Every rank with every other: 8 × 7 / 2 = ${paired(run)}. The steps and bytes are `
          + "those of the ring. Where a switch or a shared memory connects all ranks, that is as good. Where messages "
          + "pass through other ranks' cables, as in a grid of ranks (a *torus*), the ring wins: it needs "
          + "neighbours only.",
      },
    ],
    drag: {
      words: ({ p, run }) => `${countText(p, "rank")}: ${arraysText(arrays(run))} through each rank, in `
        + `${countText(run.depth, "step")}, between ${countText(paired(run), "pair")} of ranks.`,
      bars: {
        title: "Pairs of ranks that exchange messages, by the number of ranks",
        of: [["round robin", "round_robin", paired], ["ring", "ring", paired]],
      },
    },
  },
  {
    id: "race",
    title: "Who wins when",
    lead: [
      "A message costs *alpha* seconds, however short it is, and *beta* seconds for each byte. Adding up costs "
        + "*gamma* seconds a byte. The time of an algorithm is: messages one after another × alpha + bytes × beta + "
        + "bytes added × gamma.",
      `Here alpha is ${timeText(MACHINE.alpha)}, and ${speedText(MACHINE.beta).slice(0, -2)} are sent or added in a `
        + "second.",
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
      const box = c.trying();
      rich("p", "", box, "Drag all four. A ring on a curve marks where another algorithm becomes the fastest. "
        + "Which way does it move if messages cost less, and which way if bytes do?");
      new Slider(box, { label: "Ranks", min: 2, max: MOST, value: c.curves.p, act: (p) => c.curves.show({ p }) });
      c.sizes = new Slider(box, {
        label: "Size of an array", min: 3, max: 25, value: Math.log2(c.curves.nbytes), text: (k) => bytesText(2 ** k),
        act: (k) => c.curves.show({ nbytes: 2 ** k }),
      });
      const rate = (name, label, values, text) => new Slider(box, {
        label, min: 0, max: values.length - 1, value: values.indexOf(MACHINE[name]), text: (k) => text(values[k]),
        act: (k) => c.curves.show({ machine: { ...c.curves.machine, [name]: values[k] } }),
      });
      rate("alpha", "alpha, of a message:", [1e-7, 2e-7, 5e-7, 1e-6, 2e-6, 5e-6, 1e-5, 2e-5, 5e-5], timeText);
      rate("beta", "1 / beta, in a second:", [1e-8, 5e-9, 2e-9, 1e-9, 5e-10, 2e-10, 1e-10, 5e-11, 2e-11], speedText);
    },
  },
  {
    id: "straggler",
    title: "A straggler",
    lead: [
      "So far, all ranks began at the same time. Now rank 2 has more data to compute with, and it begins late.",
      `The network is the slow one of the first chapters again: ${timeText(FIGURE.alpha)} for a message and `
        + `${timeText(FIGURE.beta)} for a byte, so that four numbers take as long as a few messages.`,
    ],
    view: { algorithm: "ring", shape: "ring", lanes: true, time: true, blind: true, more: { late: [0, 0, LATE, 0] } },
    asks: [
      {
        text: (c) => `Without a straggler, this ring takes ${timeText(c.made({ more: lateOf(4, 0, 0) }).end)}. `
          + `Rank 2 begins ${timeText(LATE)} late. When is the last rank done?`,
        truth: ({ run }) => timeText(run.end),
        others: (c) => {
          const alone = c.made({ more: lateOf(4, 0, 0) }).end;
          return [timeText(alone), timeText(alone + LATE / 4), timeText(alone + 4 * LATE)];
        },
        play: async (c) => {
          c.figure.reveal();
          await c.figure.playTo(c.run.depth);
        },
        why: ({ run }) => `All wait for rank 2, and then the ring takes as long as ever. Below the picture, each rank `
          + "has a line of time: its sent messages above, its received ones below, and grey while rank 2 computes. "
          + `Rank 0 has done nothing for ${timeText(idle(run, 0))} of the ${timeText(run.end)}.`,
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
        play: played("end", { algorithm: "butterfly", shape: "cube", blind: false }),
        why: (c) => `They lose: ${losses(c)}. Every result `
          + "needs the numbers of every rank, so no allreduce can end before the last one has come. If it is known "
          + "who comes late, the others can add up their own numbers meanwhile: the library has *stragglar* for that. "
          + "If it is not known, a method that does not wait helps: a *parameter server* that continues without the "
          + "slowest rank, or arrays that are sent in the background.",
      },
    ],
    part(c) {
      const box = c.trying();
      const said = make("p", "counted", box);
      let [rank, micros] = [2, 20];
      const show = () => {
        c.show({ more: lateOf(4, rank, micros * 1e-6) });
        c.figure.seek(c.run.end);
        tell();
      };
      const tell = () => {
        const waits = [0, 1, 2, 3].map((r) => timeText(idle(c.run, r)));
        said.textContent = `All are done after ${timeText(c.run.end)}. Ranks 0 to 3 do nothing for `
          + `${waits.join(", ")}.`;
      };
      new Slider(box, { label: "Who is late: rank", min: 0, max: 3, value: rank, act: (r) => { rank = r; show(); } });
      new Slider(box, {
        label: "How late", min: 0, max: 60, value: micros, text: (each) => timeText(each * 1e-6),
        act: (each) => { micros = each; show(); },
      });
      tell();
    },
  },
  {
    id: "hang",
    title: "Who holds up the others?",
    lead: [
      "A program on four ranks calls two allreduces, one after the other. Sometimes the second one does not end: a "
        + "*hang*. Without a deadline, all ranks would wait for ever, and print nothing.",
      "Here rank 0 has a deadline of two seconds. The library prints which call each rank has reached. "
        + "A rank that waits is not to blame: look for the one that has not come. A *round* is a step of one rank, and "
        + "a *segment* a part of a long block.",
    ],
    view: { algorithm: "ring", shape: "ring", blind: true, more: lateOf(4, 2, NEVER) },
    asks: [
      {
        text: () => "Rank 0 prints this. Which rank is late?",
        printed: (c) => c.course.data.printed.late,
        truth: () => 2,
        others: () => [0, 1, 3],
        say: (rank) => `rank ${rank}`,
        play: heldUp(2),
        why: () => "Rank 2 has left call 1, and all the others are in call 2. Rank 0 waits for rank 3 in round 2, but "
          + "rank 3 only waits for a block that rank 2 should have sent in round 1. Perhaps it still computes, or "
          + "its call is under an *if*.",
      },
      {
        text: () => "Another run prints this. What has happened?",
        printed: (c) => c.course.data.printed.stopped,
        truth: () => "rank 1 is stopped",
        others: () => ["rank 1 is stopped", "rank 3 is stopped", "rank 3 sends slowly", "rank 0 is late"],
        play: heldUp(1),
        why: () => "The process of rank 1 is stopped: by a debugger, by Ctrl-Z, or by the system that runs the job. "
          + "It would go on where it was. A rank that has died is reported at once, and not at the deadline.",
      },
      {
        text: () => "And this run?",
        printed: (c) => c.course.data.printed.other,
        truth: () => "rank 3 makes another call",
        others: () => ["rank 3 makes another call", "rank 3 is late", "rank 0 is the root", "the arrays differ"],
        play: heldUp(3),
        why: () => "Ranks 0 to 2 call an allreduce, and rank 3 a broadcast, in which all get the array of "
          + "one rank, its root. The ranks of a host compare their calls, "
          + "so all of them get this error at once, and nobody waits for the deadline.",
      },
    ],
  },
  {
    id: "broken",
    title: "What is wrong here?",
    lead: [
      "An algorithm is a short generator: each *yield* is a round, with the blocks that rank r sends and receives: "
        + "*(right, 0)* is block 0, to or from the rank on the right. With *fold=True*, the received block is added, "
        + "and otherwise it is stored. "
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
];
