"use strict";

/* A run of one case: its numbers and its times. Messages are copied and added here, as they say;
   who sends what to whom is data. */

/* The case of another root, where that follows from root 0: see `turned` in cases.py. */
function turned(found, p, root) {
  if (found.roots.length > 1 || !root) return found.roots[found.roots.length > 1 ? root : 0];
  const first = found.roots[0];
  const parts = first.due[0].length;
  const cut = first.nblocks / parts;
  const moves = found.turn === "parts" && parts > 1;
  const rank = (r) => (r + root) % p;
  const block = (b) => (moves ? ((Math.floor(b / cut) + root) % parts) * cut + (b % cut) : b);
  const mask = (ranks) => {
    const [from, turn, all] = [setOf(ranks), BigInt(root), (1n << BigInt(p)) - 1n];
    return (((from << turn) | (from >> (BigInt(p) - turn))) & all).toString(16);
  };
  const rows = (list) => (list.length > 1 ? list.map((_, r) => list[(r - root + p) % p]) : list);
  const due = first.due.map((row) =>
    row.map((_, part) => mask(row[moves ? (part - root + parts) % parts : part])));
  const messages = first.messages.map(([s, i, d, j, fold, step, ...blocks]) =>
    [rank(s), i, rank(d), j, fold, step, ...blocks.map(block)]);
  return {
    ...first,
    rounds: rows(first.rounds),
    messages: messages.sort((a, b) => a[0] - b[0] || a[1] - b[1]),
    held: rows(first.held.map((row) => row.map(block))),
    wanted: rows(first.wanted.map((row) => row.map(block))),
    due: rows(due),
  };
}

/* A set of ranks, one bit for each, from the hexadecimal number of the data. */
function setOf(text) {
  return BigInt(`0x${text}`);
}

function bits(mask) {
  const found = [];
  for (let [r, left] = [0, mask]; left; [r, left] = [r + 1, left >> 1n]) if (left & 1n) found.push(r);
  return found;
}

/* The first place of a list for which a test holds, which then holds for all that follow. */
function firstOf(list, test) {
  let [low, high] = [0, list.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (test(list[middle])) high = middle;
    else low = middle + 1;
  }
  return low;
}

/* Bytes of a block: the caller's array is cut into `pieces`, nearly equal. */
function sizeOf(block, pieces, nbytes) {
  const b = block % pieces;
  return Math.floor((nbytes * (b + 1)) / pieces) - Math.floor((nbytes * b) / pieces);
}

/* How many numbers an array is drawn with: one for each block, and as many as there are ranks where
   one block is the whole array, so that algorithms can be compared. */
function lengthOf(layout, nblocks, p) {
  return layout === "whole" ? Math.max(nblocks, Math.min(Math.max(p, 4), 8)) : nblocks;
}

/* The messages of a plan, whose whole array has so many bytes. */
function messagesOf(plan, nbytes) {
  return plan.messages.map(([source, sentIn, target, takenIn, fold, step, ...blocks]) => ({
    source, sentIn, target, takenIn, step,
    fold: Boolean(fold & 1), both: Boolean(fold & 2), folds: (fold & 1) + ((fold >> 1) & 1),
    fromScratch: blocks[0] >= plan.nblocks, toScratch: Boolean(fold & 4),
    blocks: blocks.map((b) => b % plan.nblocks),
    bytes: blocks.reduce((sum, b) => sum + sizeOf(b, plan.pieces, nbytes), 0),
  }));
}

/* What is played in steps; `steps` are their ends, from 0 on. */
class Stepped {
  /* The step that is under way at a time, or ends then. */
  stepAt(time) {
    const step = this.steps.findIndex((end) => end >= time);
    return step < 0 ? this.depth : this.steps.lastIndexOf(this.steps[step]);
  }

  /* The end of the step before. */
  before(time) {
    return Math.max(-1, ...this.steps.filter((end) => end < time));
  }
}

class Run extends Stepped {
  constructor(contract, found, settings, length) {
    super();
    const { p, root } = settings;
    const nbytes = contract.idempotent ? 0 : settings.nbytes; // a barrier sends no data
    // An algorithm that is wrong is there only for the root for which it fails.
    const plan = found.error ? found.roots[0] : turned(found, p, contract.rooted ? root : 0);
    this.error = found.error;
    this.stuck = found.stuck || [];
    this.groups = found.groups || [];
    this.late = settings.late || []; // seconds after which ranks begin
    this.contract = contract;
    this.plan = plan;
    this.sets = plan.due.map((row) => row.map(setOf)); // whose contributions each part has in the end
    this.p = p;
    this.root = contract.rooted ? root : 0;
    this.nblocks = plan.nblocks;
    this.depth = plan.depth;
    this.length = contract.layout === "whole" && !contract.idempotent ? length : plan.nblocks;
    this.messages = messagesOf(plan, nbytes);
    const { end, spans, log } = timed(plan.rounds.map((row) => row.length), this.messages, machineOf(settings, p));
    this.end = end;
    this.spans = spans;
    this.messages = this.messages.filter((message) => message.done !== undefined);
    this.into = plan.rounds.map(() => []); // the messages that each rank receives
    for (const message of this.messages) this.into[message.target].push(message);
    this.starts = [...this.messages].sort((a, b) => a.start - b.start);
    this.arrivals = [...this.messages].sort((a, b) => a.arrive - b.arrive);
    this.longest = Math.max(0, ...this.messages.map((m) => m.done - m.start));
    this.allBytes = this.messages.reduce((sum, m) => sum + m.bytes, 0);
    this.replay(log, settings.numbers);
    this.steps = [0];
    for (let step = 1; step <= this.depth; step += 1) {
      const ends = this.messages.filter((m) => m.step <= step).map((m) => m.done);
      this.steps.push(Math.max(0, ...ends));
    }
  }

  /* The first of a block's numbers, and the one after its last. */
  bounds(block) {
    const of = (b) => Math.floor((this.length * b) / this.nblocks);
    return [of(block), of(block + 1)];
  }

  elements(blocks) {
    const found = [];
    for (const b of blocks) {
      const [first, last] = this.bounds(b);
      for (let e = first; e < last; e += 1) found.push(e);
    }
    return found;
  }

  blockOf(element) {
    let block = Math.floor((element * this.nblocks) / this.length);
    while (this.bounds(block)[1] <= element) block += 1;
    return block;
  }

  /* Whose contributions a number must hold in the end. */
  due(rank, element) {
    const row = this.sets[this.sets.length > 1 ? rank : 0];
    return row[Math.floor((this.blockOf(element) * row.length) / this.nblocks)];
  }

  /* Write down how each number of each rank changes. */
  replay(log, numbers) {
    const counts = this.contract.idempotent;
    const now = [];
    const kept = []; // the scratch blocks, which are not drawn
    this.changes = [];
    for (let r = 0; r < this.p; r += 1) {
      now.push(new Map());
      kept.push(new Map());
      this.changes.push(new Map());
      for (const e of this.elements(this.plan.held[r])) {
        const row = numbers[r];
        const value = counts ? 1 : row[(this.contract.layout === "pairs" ? e % this.p : e) % row.length];
        const mask = 1n << BigInt(r);
        now[r].set(e, { value, mask });
        kept[r].set(e, { value, mask });
        this.changes[r].set(e, [{ time: 0, value, mask, kind: "start" }]);
      }
    }
    const leaving = new Map();
    for (const message of this.messages) {
      const key = `${message.source} ${message.sentIn}`;
      if (!leaving.has(key)) leaving.set(key, []);
      leaving.get(key).push(message);
    }
    for (const { time, kind, message, rank, round } of log) {
      if (kind === "enter") {
        // What a round sends is what the rank holds when it enters it.
        for (const each of leaving.get(`${rank} ${round}`) || []) {
          const from = (each.fromScratch ? kept : now)[rank];
          each.load = this.elements(each.blocks).filter((e) => from.has(e))
            .map((e) => ({ element: e, ...from.get(e) }));
        }
      } else if (kind === "done") {
        for (const taken of message.load) {
          this.take(message, taken, now[message.target], kept[message.target], time);
        }
      }
    }
  }

  /* Store what arrived at a place, or fold it, into the block, its scratch block, or both. */
  take(message, { element, value, mask }, block, scratch, time) {
    const put = (place, fold) => {
      const held = fold && place.get(element);
      const every = held ? held.mask | mask : mask;
      const sum = held ? held.value + value : value;
      place.set(element, { value: this.contract.idempotent ? bits(every).length : sum, mask: every });
    };
    if (message.toScratch) put(scratch, message.fold);
    if (!message.toScratch && message.both) put(scratch, true);
    if (message.toScratch && !message.both) return;
    const fold = message.fold || message.toScratch;
    put(block, fold);
    const changes = this.changes[message.target];
    if (!changes.has(element)) changes.set(element, []);
    changes.get(element).push({ time, ...block.get(element), kind: fold ? "fold" : "store" });
  }

  /* What a rank holds at a place of its array at a time, or undefined. */
  held(rank, element, time) {
    const list = this.changes[rank].get(element);
    let found;
    for (const each of list || []) {
      if (each.time > time) break;
      found = each;
    }
    return found;
  }

  /* Whether all ranks end with what they must, by the numbers that they began with. */
  right() {
    return this.plan.wanted.every((blocks, rank) => this.elements(blocks).every((element) => {
      const state = this.held(rank, element, Infinity);
      const due = this.due(rank, element);
      if (!state || state.mask !== due) return false;
      if (this.contract.idempotent) return state.value === bits(due).length;
      const sum = bits(due).reduce((total, r) => total + this.changes[r].get(element)[0].value, 0);
      return state.value === sum;
    }));
  }

  /* The messages that are under way at a time. */
  under(time) {
    const found = [];
    for (let k = firstOf(this.starts, (m) => m.start >= time) - 1; k >= 0; k -= 1) {
      const m = this.starts[k];
      if (m.start + this.longest < time) break;
      if (time < m.done && m.load.length) found.push(m);
    }
    return found.reverse();
  }

  /* The round that a rank is in, or has just finished; -1 once it is out of the last. */
  round(rank, time) {
    const spans = this.spans[rank];
    const found = firstOf(spans, ([, left]) => time <= left);
    if (found < spans.length && spans[found][0] <= time) return found;
    const last = spans.length - 1;
    const waits = last >= 0 && this.stuck.includes(rank) && time >= spans[last][0];
    return waits ? last : -1;
  }

  /* Messages and bytes that have arrived, of how many, and how many through each rank, in and out.
     It goes on from the time of the last call, if that was earlier. */
  counts(time) {
    if (!this.counted || this.counted.time > time) {
      this.counted = { messages: 0, allMessages: this.messages.length, bytes: 0, allBytes: this.allBytes,
        through: Array(this.p).fill(0), perRank: Array(this.p).fill(0) };
    }
    const found = this.counted;
    found.time = time;
    for (; found.messages < this.arrivals.length; found.messages += 1) {
      const m = this.arrivals[found.messages];
      if (m.arrive > time) break;
      found.bytes += m.bytes;
      for (const rank of [m.source, m.target]) {
        found.through[rank] += m.bytes;
        found.perRank[rank] += 1;
      }
    }
    return found;
  }
}

/* When steps end, in the order of time. */
function marksOf(runs) {
  return [...new Set(runs.flatMap((run) => [...run.steps, run.end]))].sort((a, b) => a - b);
}

/* The ranks through which most goes, and how much. */
function busiest(run, time = Infinity) {
  const { through } = run.counts(time);
  const most = Math.max(...through);
  return { most, ranks: through.flatMap((each, r) => (each === most ? [r] : [])), all: run.p };
}

function busiestText(run, time) {
  const { most, ranks, all } = busiest(run, time);
  if (!most) return bytesText(0);
  if (ranks.length === all) return `every rank: ${bytesText(most)}`;
  if (ranks.length > 4) return `${countText(ranks.length, "rank")}: ${bytesText(most)}`;
  return `${ranks.length > 1 ? "ranks" : "rank"} ${spansText(ranks)}: ${bytesText(most)}`;
}
