"use strict";

/* The chapter on a parameter server. Workers pull weights, compute gradients and push them; the server follows a
   policy. Its rules are those of `collectives.server`, and the tests hold them together. */

const POLICIES = [
  { name: "synchronous", quorum: (workers) => workers, waits: true },
  { name: "asynchronous", quorum: () => 1 },
  { name: "bounded staleness", quorum: () => 1, bound: 2 },
  { name: "backup workers", quorum: (workers) => workers - 1, waits: true, drops: true },
];
const FAST = [10, 11, 12]; // milliseconds for a gradient
const LAST = 120; // milliseconds of training

/* A training with one policy, in which the last worker needs `slow` milliseconds for a gradient. */
class Training extends Work {
  constructor(policy, slow) {
    super();
    this.policy = POLICIES.find(({ name }) => name === policy);
    this.workers = [...FAST, slow].map((needs, number) => (
      { number, needs, base: 0, from: 0, until: needs, steps: 0, waits: null }));
    this.rows = ["server", ...this.workers.map(({ number }) => `worker ${number}`)];
    this.names = {
      time: "Time", updates: "Updates", pushed: "Gradients", dropped: "Dropped", stale: "Mean staleness",
    };
    this.begin = "All workers have pulled version 0 of the weights.";
    this.boxes = [];
    this.lines = [];
    this.pushes = []; // with the number of updates in between, when they are applied
    this.queue = [];
    this.updates = [0]; // when each version began
    for (;;) {
      const able = this.workers.filter(({ waits }) => waits === null);
      const next = able.reduce((one, other) => (other.until < one.until ? other : one), able[0]);
      if (!next || next.until > LAST) break;
      const { until } = next;
      this.push(next, until);
      for (const worker of this.workers) this.pull(worker, until);
    }
    for (const worker of this.workers) { // as far as they have come
      if (worker.waits !== null) this.box(worker.number + 1, worker.waits, LAST, "idle", "");
      else this.box(worker.number + 1, worker.from, LAST, `c${worker.number}`, String(worker.base));
    }
    this.updates.forEach((from, version) => {
      const to = version + 1 < this.updates.length ? this.updates[version + 1] : LAST;
      if (to > from) this.box(0, from, to, "weights", String(version));
    });
    this.finish(LAST / 1e3, this.pushes.map(({ time }) => time / 1e3));
  }

  box(row, from, to, kind, text) {
    if (to > from) this.boxes.push([row, from / 1e3, to / 1e3, kind, text]);
  }

  get version() {
    return this.updates.length - 1;
  }

  push(worker, time) {
    const { policy } = this;
    this.box(worker.number + 1, worker.from, time, `c${worker.number}`, String(worker.base));
    const push = { worker: worker.number, base: worker.base, time, dropped: false, stale: null, left: 0 };
    this.pushes.push(push);
    worker.steps += 1;
    worker.waits = time;
    push.dropped = Boolean(policy.drops) && push.base < this.version;
    const kind = push.dropped ? "dropped" : `c${worker.number}`;
    this.lines.push([time / 1e3, worker.number + 1, time / 1e3, 0, kind]);
    if (push.dropped) return;
    this.queue.push(push);
    const quorum = policy.quorum(this.workers.length);
    if (this.queue.length >= quorum) {
      for (const each of this.queue.splice(0, quorum)) each.stale = this.version - each.base;
      this.updates.push(time);
    }
    push.left = this.queue.length && quorum - this.queue.length;
  }

  /* A worker that waits goes on if the policy lets it. */
  pull(worker, time) {
    const { policy } = this;
    if (worker.waits === null || (policy.waits && worker.base === this.version)) return;
    const slowest = Math.min(...this.workers.map(({ steps }) => steps));
    if (worker.steps - (policy.bound ?? Infinity) > slowest) return;
    this.box(worker.number + 1, worker.waits, time, "idle", "");
    Object.assign(worker, { base: this.version, from: time, until: time + worker.needs, waits: null });
  }

  said(step) {
    return this.pushes.filter(({ time }) => time / 1e3 === this.steps[step]).map((push) => {
      const from = `Worker ${push.worker} pushes a gradient that it has computed from version ${push.base}`;
      if (push.dropped) return `${from}: too late, it is dropped.`;
      if (push.left) return `${from}. The server waits for ${push.left} more.`;
      if (this.policy.quorum(this.workers.length) > 1) return `${from}, and the server applies the mean.`;
      return `${from}: ${countText(push.stale, "update")} came in between.`;
    }).join(" ");
  }

  counted(time) {
    const pushes = this.pushes.filter((push) => push.time / 1e3 <= time);
    const stale = pushes.filter((push) => push.stale !== null).map((push) => push.stale);
    return {
      time: timeText(time),
      updates: String(this.updates.filter((each) => each / 1e3 <= time).length - 1),
      pushed: String(pushes.length),
      dropped: String(pushes.filter((push) => push.dropped).length),
      stale: String(Number((stale.reduce((sum, each) => sum + each, 0) / (stale.length || 1)).toFixed(2))),
    };
  }

  /* The seconds that a worker has waited. */
  idle(worker) {
    return this.boxes.filter(([row, , , kind]) => row === worker + 1 && kind === "idle")
      .reduce((sum, [, from, to]) => sum + to - from, 0);
  }
}

const SLOW = 30; // milliseconds
const updatesOf = (run) => run.updates.length - 1;
const firstOf3 = (run) => run.pushes.find(({ worker }) => worker === 3);

CHAPTERS.splice(CHAPTERS.findIndex(({ id }) => id === "hang"), 0, {
  id: "server",
  title: "A server that does not wait",
  lead: [
    "An allreduce waits for the slowest rank. A *parameter server* need not. It has the weights of the model. A "
      + "worker *pulls* them, computes a *gradient*, which says how to change them, and *pushes* it. The "
      + "server applies gradients: an *update*, "
      + "after which the weights have a new *version*.",
    `Below, each box is a worker that computes, with the version that it has pulled. Worker 3 needs ${SLOW} ms for `
      + `a gradient, the others ${FAST[0]} to ${FAST[FAST.length - 1]} ms.`,
  ],
  view: { policy: "synchronous", slow: SLOW },
  run: ({ policy, slow }) => new Training(policy, slow),
  asks: [
    {
      text: () => `The server is synchronous: it waits for the gradients of all four, and applies their mean. How `
        + `many updates in ${LAST} ms?`,
      truth: ({ run }) => updatesOf(run),
      others: () => [Math.floor(LAST / FAST[2]), Math.floor(LAST / FAST[0]), 2],
      play: played("end"),
      why: ({ run }) => `Each update takes the ${SLOW} ms of the slowest worker. Grey is waiting: worker 0 has waited `
        + `for ${timeText(run.idle(0))} of the ${timeText(run.end)}.`,
    },
    {
      text: () => `An asynchronous server applies each gradient as it comes, and no worker waits. How many updates in `
        + `${LAST} ms?`,
      show: (c) => c.show({ policy: "asynchronous" }),
      truth: ({ run }) => updatesOf(run),
      others: () => [4, 12, 120],
      play: played("end"),
      why: ({ run }) => {
        const each = [0, 1, 2, 3].map((number) => run.pushes.filter(({ worker }) => worker === number).length);
        return `${each.join(" + ")} = ${updatesOf(run)}. Nobody waits. But an update has the gradient of only one `
          + "worker, so it must be a smaller step.";
      },
    },
    {
      text: () => "Worker 3 computes its first gradient from version 0. How many updates come before that is applied?",
      truth: ({ run }) => firstOf3(run).stale,
      others: () => [0, 3, 12],
      play: async (c) => {
        c.figure.seek(0);
        await c.figure.play(firstOf3(c.run).time / 1e3);
      },
      why: ({ run }) => "This number is the *staleness* of a gradient: it says where to go from old weights. The mean "
        + `over all is ${run.counted(run.end).stale}, about the number of other workers. A server can bound it: then `
        + "the fast workers wait for the slow one now and then.",
    },
    {
      text: () => "The server of another training with three workers prints its statistics. Which policy did it have?",
      printed: (c) => c.course.data.served,
      truth: () => "backup workers",
      others: () => POLICIES.map(({ name }) => name),
      play: async (c) => {
        c.show({ policy: "backup workers" });
        await c.figure.playTo(c.run.depth);
      },
      why: ({ run }) => "An update has the first two of three gradients, and the last one is dropped: only a server "
        + "with backup workers drops any. In the picture, it waits for three of four: "
        + `${countText(updatesOf(run), "update")}, and ${run.counted(run.end).dropped} gradients of worker 3 are lost.`,
    },
  ],
  part(c) {
    const box = c.trying();
    const said = make("p", "counted", box);
    const show = (more) => {
      c.show(more);
      c.figure.seek(c.run.end);
      const waits = [0, 1, 2, 3].map((worker) => timeText(c.run.idle(worker)));
      said.textContent = `${countText(updatesOf(c.run), "update")}. Workers 0 to 3 wait for ${waits.join(", ")}.`;
    };
    new Slider(box, {
      label: "Policy:", min: 0, max: POLICIES.length - 1,
      value: POLICIES.findIndex(({ name }) => name === c.view.policy),
      text: (place) => POLICIES[place].name, act: (place) => show({ policy: POLICIES[place].name }),
    });
    new Slider(box, {
      label: "Worker 3 needs", min: 10, max: 60, value: c.view.slow, text: (each) => `${each} ms`,
      act: (slow) => show({ slow }),
    });
    show({});
  },
});
