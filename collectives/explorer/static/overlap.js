"use strict";

/* The chapter on overlap: gradients are added up while others are still computed. An allreduce takes the time of
   the ring on four ranks. */

/* A backward pass, from the last layer to the first. `reduced` says how long an allreduce of some layers takes. */
class Backward extends Work {
  constructor(reduced, { layers, compute, bucket = 1, later = false, first = false }) {
    super();
    this.layers = layers;
    this.rows = ["compute", "network"];
    this.names = { time: "Time", computed: "Computed", sent: "Added up", hidden: "Both at once" };
    this.begin = "The backward pass begins with the last layer.";
    this.boxes = [];
    this.lines = [];
    this.calls = []; // allreduces, each of some layers
    const micro = (seconds) => Number(seconds.toFixed(9)); // so that equal times are equal
    for (let k = 0; k < layers; k += 1) {
      const layer = layers - k;
      this.boxes.push([0, micro(k * compute), micro((k + 1) * compute), `c${layer % 8}`, String(layer)]);
      if (k % bucket === 0) this.calls.push({ layers: [] });
      const call = this.calls[this.calls.length - 1];
      call.layers.push(layer);
      call.known = micro((later ? layers : k + 1) * compute);
    }
    const waiting = this.calls.slice();
    let free = 0;
    while (waiting.length) {
      const now = Math.max(free, Math.min(...waiting.map(({ known }) => known)));
      const able = waiting.filter(({ known }) => known <= now);
      const call = able[first ? able.length - 1 : 0];
      waiting.splice(waiting.indexOf(call), 1);
      Object.assign(call, { start: now, end: micro(now + reduced(call.layers.length)) });
      free = call.end;
      const span = [...new Set([call.layers[0], call.layers[call.layers.length - 1]])];
      this.boxes.push([1, call.start, call.end, `c${span[span.length - 1] % 8}`, span.join("–")]);
      this.lines.push([call.known, 0, call.start, 1, `c${span[span.length - 1] % 8}`]);
    }
    this.finish(free, [...this.boxes.map(([, , to]) => to)]);
  }

  said(step) {
    const time = this.steps[step];
    const parts = this.boxes.filter(([row, , to]) => !row && to === time)
      .map(([, , , , layer]) => `The gradient of layer ${layer} is known.`);
    for (const { layers } of this.calls.filter(({ end }) => end === time)) {
      parts.push(layers.length > 1 ? `Layers ${spansText([...layers].reverse())} are added up.`
        : `Layer ${layers[0]} is added up.`);
    }
    return parts.join(" ");
  }

  counted(time) {
    const sum = (row) => this.boxes.filter((box) => box[0] === row);
    const done = this.calls.filter(({ end }) => end <= time).flatMap(({ layers }) => layers);
    const both = sum(1).flatMap(([, from, to]) => sum(0).map(([, start, end]) =>
      Math.max(0, Math.min(to, end, time) - Math.max(from, start)))).reduce((one, other) => one + other, 0);
    return {
      time: timeText(time),
      computed: `${sum(0).filter(([, , to]) => to <= time).length} of ${this.layers}`,
      sent: `${done.length} of ${this.layers}`,
      hidden: timeText(both),
    };
  }

  /* When the first layer's gradient has been added up. */
  get first() {
    return this.calls.find(({ layers }) => layers.includes(1)).end;
  }
}

const SMALL = { layers: 4, compute: 16e-6, numbers: 4 };
const LONG = { ...SMALL, numbers: 16 };
const DEEP = { layers: 16, compute: 7e-6, numbers: 4 };
const BUCKETS = [1, 2, 4, 8, 16];

/* The time of an allreduce of so many numbers. */
const ringTime = (course, numbers) => course.made("ring", 4, { least: numbers }).end;
const backwardOf = (course, view) => new Backward((layers) => ringTime(course, layers * view.numbers), view);
const backwardTime = (c, view) => backwardOf(c.course, view).end;

CHAPTERS.splice(CHAPTERS.findIndex(({ id }) => id === "hang"), 0, {
  id: "overlap",
  title: "Send while you compute",
  lead: [
    "The *backward pass* computes the gradients of a network, from the last layer to the first. Each gradient is "
      + "added up over four ranks by an allreduce. The next layer does not need the result: so a rank can go on "
      + "computing while its network is busy. This is *overlap*.",
    `The first network has ${SMALL.layers} layers. Each takes ${timeText(SMALL.compute)} to compute, and has a `
      + `gradient of ${SMALL.numbers} numbers.`,
  ],
  view: { ...SMALL, bucket: 1, first: false },
  run: (view, course) => backwardOf(course, view),
  asks: [
    {
      text: (c) => `The library simulates one allreduce (below). If all gradients are sent at the end, the step takes `
        + `${timeText(backwardTime(c, { ...SMALL, later: true }))}. How long if each is sent as soon as it is known?`,
      printed: (c) => c.course.data.simulated,
      truth: ({ run }) => timeText(run.end),
      others: (c) => [SMALL.layers * SMALL.compute, SMALL.layers * ringTime(c.course, SMALL.numbers),
        backwardTime(c, { ...SMALL, later: true })].map(timeText),
      play: played("end"),
      why: ({ run }) => `Only the last allreduce is left when all is computed: layer 1 comes last, and there is `
        + `nothing to compute meanwhile. ${run.counted(run.end).hidden} of the others are hidden.`,
    },
    {
      text: (c) => `Now each gradient has ${LONG.numbers} numbers, and its allreduce takes `
        + `${timeText(ringTime(c.course, LONG.numbers))}. How long does the step take?`,
      show: (c) => c.show(LONG),
      truth: ({ run }) => timeText(run.end),
      others: (c) => {
        const one = ringTime(c.course, LONG.numbers);
        return [LONG.layers * LONG.compute + one, LONG.layers * one, backwardTime(c, { ...LONG, later: true })]
          .map(timeText);
      },
      play: played("end"),
      why: (c) => "Computing is faster than the network, and the gradients form a queue. Only the computation of layer "
        + `4, the first one, is not hidden: ${timeText(LONG.compute)} + ${LONG.layers} × `
        + `${timeText(ringTime(c.course, LONG.numbers))}.`,
    },
    {
      text: ({ run }) => `The next step begins with layer 1, whose gradient comes last, after ${timeText(run.first)}. `
        + "When does it come if it may overtake those that wait?",
      truth: (c) => timeText(backwardOf(c.course, { ...LONG, first: true }).first),
      others: (c) => [LONG.layers * LONG.compute, LONG.layers * LONG.compute + ringTime(c.course, LONG.numbers),
        c.run.first].map(timeText),
      play: async (c) => {
        c.show({ first: true });
        await c.figure.playTo(c.run.depth);
      },
      why: ({ run }) => "The allreduce that is under way ends first, and then layer 1 is next: it has a *priority*. "
        + `All gradients still take ${timeText(run.end)}, but the next step can begin earlier.`,
    },
    {
      text: () => `Another network has ${DEEP.layers} layers of ${timeText(DEEP.compute)} with ${DEEP.numbers} numbers `
        + "each. Several layers can share an allreduce, a bucket. How many layers in a bucket are the fastest?",
      show: (c) => c.show({ ...DEEP, first: false }),
      truth: (c) => BUCKETS.reduce((one, other) =>
        (backwardTime(c, { ...DEEP, bucket: other }) < backwardTime(c, { ...DEEP, bucket: one }) ? other : one)),
      others: () => [1, 4, 16],
      play: async (c) => {
        c.show({ bucket: 4 });
        await c.figure.playTo(c.run.depth);
      },
      why: (c) => {
        const times = BUCKETS.map((bucket) => `${bucket}: ${timeText(backwardTime(c, { ...DEEP, bucket }))}`);
        return "Small buckets cost a latency for each message; with one large bucket, there is nothing left to overlap "
          + `with. Layers in a bucket, and the time: ${times.join(", ")}.`;
      },
    },
  ],
  part(c) {
    const box = c.trying();
    const said = make("p", "counted", box);
    const show = (more) => {
      c.show(more);
      c.figure.seek(c.run.end);
      const alone = backwardTime(c, { ...c.view, later: true });
      said.textContent = `${timeText(c.run.end)}; ${timeText(alone)} if all is sent at the end. `
        + `${c.run.counted(c.run.end).hidden} are hidden.`;
    };
    new Slider(box, {
      label: "Layers in a bucket:", min: 0, max: BUCKETS.length - 1, value: BUCKETS.indexOf(c.view.bucket),
      text: (k) => String(BUCKETS[k]), act: (k) => show({ bucket: BUCKETS[k] }),
    });
    new Slider(box, {
      label: "A layer takes", min: 1, max: 40, value: Math.round(c.view.compute * 1e6),
      text: (each) => timeText(each * 1e-6), act: (each) => show({ compute: each * 1e-6 }),
    });
    new Slider(box, {
      label: "Numbers in the gradient of a layer:", min: 1, max: 8, value: c.view.numbers / 4,
      text: (each) => String(4 * each), act: (each) => show({ numbers: 4 * each }),
    });
    show({});
  },
});
