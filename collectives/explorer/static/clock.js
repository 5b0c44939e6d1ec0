"use strict";

/* The clock: when each message leaves and is in, by the model of costs.

   It knows messages, not algorithms. A rank enters a round when it is done with the one before, and
   is done when all that it sends has left, all that it receives is in, and what is to be folded is
   folded. Each rank has one port out, one port in, and folds one message at a time. A message starts
   when its sender has sent what stands before it in the round, its receiver is in the round that
   receives it, and both ports are free, which they are again when its last byte has left. It takes its
   latency first, then its bytes flow; links that it crosses are shared evenly by what flows. With a
   delay it is in so much later. Where several want one port at one instant, the receiver's round
   decides, then the sender, then the receiver. Python's `collectives.simulate` says the same, and the
   tests hold them together. */

const SAME = 1 + explorer.machines.instant; // instants closer together than this are the same

/* The machine of some settings: seconds to fold a byte, what each shared link carries in a second, and the way
   of a message: its latency, seconds a byte, shared links by number, and delay. `late` has the seconds after which
   each rank begins; by default all begin at once. */
function machineOf(settings, p) {
  const { topology, alpha, beta, gamma, delay, late } = settings;
  const product = (words) => words.reduce(
    (all, word) => (word[0] === "/" ? all / settings[word.slice(1)] : all * settings[word]), 1);
  const capacities = [];
  const groups = explorer.machines.kinds[topology].groups.map(([ranks, rate]) => {
    const [size, first] = [product(ranks), capacities.length];
    capacities.push(...Array(2 * Math.ceil(p / size)).fill(1 / product(rate)));
    return { size, first };
  });
  const torus = topology === "torus" && explorer.machines.tori[p];
  if (torus) capacities.push(...torus.ends.map(() => 1 / beta));

  function route(source, target) {
    const links = [];
    for (const { size, first } of groups) {
      const [from, to] = [source, target].map((rank) => Math.floor(rank / size));
      if (from !== to) links.push(first + 2 * from, first + 2 * to + 1);
    }
    if (groups.length && !links.length) {
      return { latency: settings.insideAlpha, beta: settings.insideBeta, links, delay: 0 };
    }
    for (let here = source; torus && here !== target; here = torus.ends[links[links.length - 1]]) {
      links.push(torus.ways[here * p + target] * p + here);
    }
    return { latency: alpha + (torus ? links.length * settings.hop : 0), beta, links, delay };
  }

  return { gamma, capacities, route, late };
}

/* How fast the bytes of each message flow: as fast as their pair of ranks can, with links shared so
   that nobody could have more without another who has no more having less. */
function share(flows, capacities) {
  const room = capacities.slice();
  const open = new Set(flows);
  for (const flow of flows) flow.rate = 0;
  while (open.size) {
    const users = capacities.map(() => 0);
    for (const flow of open) for (const link of flow.way.links) users[link] += 1;
    let more = Infinity;
    for (const flow of open) more = Math.min(more, 1 / flow.way.beta - flow.rate);
    users.forEach((count, link) => {
      if (count) more = Math.min(more, room[link] / count);
    });
    for (const flow of open) {
      flow.rate += more;
      for (const link of flow.way.links) room[link] -= more;
    }
    for (const flow of [...open]) {
      const capped = flow.rate * SAME >= 1 / flow.way.beta;
      const full = flow.way.links.some((link) => room[link] <= capacities[link] * explorer.machines.instant);
      if (capped || full) open.delete(flow);
    }
  }
}

/* Give each message of a run its times `start`, `flow`, `leave`, `arrive` and `done`.

   rounds: for each rank, how many rounds it has. messages: objects with source, sentIn, target,
   takenIn, folds, bytes, in the order in which each source sends. Returns the time of the end, for
   each rank its rounds as [entered, left], and a log of all that happens, in order. */
function timed(rounds, messages, topology) { // long: short functions that share one state
  const ranks = rounds.map((count) => ({ count, round: -1, out: null, into: null, queue: [] }));
  const log = [];
  const spans = rounds.map(() => []);
  const key = (rank, round) => rank * 65536 + round;
  const sends = new Map();
  const taken = new Map(); // how many messages a round receives
  for (const message of messages) {
    const from = key(message.source, message.sentIn);
    const to = key(message.target, message.takenIn);
    if (!sends.has(from)) sends.set(from, []);
    sends.get(from).push(message);
    taken.set(to, (taken.get(to) || 0) + 1);
  }
  let now = 0;
  let flying = []; // messages that have started: in latency, or flowing
  let delayed = []; // those whose last byte has left
  let folding = [];
  let asleep = (topology.late || []).map((ends, number) => ({ number, ends })).filter(({ ends }) => ends > 0);

  function enter(number) {
    const rank = ranks[number];
    for (;;) {
      if (rank.round >= 0) spans[number][rank.round][1] = now;
      rank.round += 1;
      if (rank.round === rank.count) return;
      spans[number].push([now, now]);
      log.push({ time: now, kind: "enter", rank: number, round: rank.round });
      rank.sends = (sends.get(key(number, rank.round)) || []).slice();
      rank.open = rank.sends.length + (taken.get(key(number, rank.round)) || 0);
      if (rank.open) return;
    }
  }

  function close(number) {
    ranks[number].open -= 1;
    if (!ranks[number].open) enter(number);
  }

  function happens(kind, message) {
    log.push({ time: now, kind, message });
  }

  function done(message) {
    message.done = now;
    happens("done", message);
    close(message.target);
  }

  function fold(number) {
    const rank = ranks[number];
    if (rank.folds || !rank.queue.length) return;
    const message = rank.queue.shift();
    rank.folds = true;
    folding.push({ message, ends: now + message.folds * message.bytes * topology.gamma });
  }

  function left(message, way) {
    message.leave = now;
    ranks[message.source].out = null;
    ranks[message.target].into = null;
    if (way.delay) delayed.push({ message, ends: now + way.delay });
    else arrived(message);
    close(message.source);
  }

  function arrived(message) {
    message.arrive = now;
    happens("arrive", message);
    if (message.folds) {
      ranks[message.target].queue.push(message);
      fold(message.target);
    } else done(message);
  }

  /* Take out of a list what ends now. */
  function ended(list) {
    const over = list.filter((each) => each.ends <= now * SAME);
    return [over, over.length ? list.filter((each) => each.ends > now * SAME) : list];
  }

  function settle() {
    for (;;) {
      const [over, still] = ended(flying);
      flying = still;
      const landing = over.filter((each) => each.flows);
      for (const each of over) {
        if (each.flows) continue;
        each.flows = true;
        each.message.flow = now;
        each.ends = now + each.message.bytes * each.way.beta;
        flying.push(each);
      }
      const [coming, away] = ended(delayed);
      delayed = away;
      for (const { message } of coming) arrived(message);
      for (const { message, way } of landing) left(message, way);
      const [folded, waiting] = ended(folding);
      folding = waiting;
      for (const { message } of folded) {
        ranks[message.target].folds = false;
        done(message);
        fold(message.target);
      }
      const [woken, others] = ended(asleep);
      asleep = others;
      for (const { number } of woken) enter(number);
      if (!over.length && !coming.length && !folded.length && !woken.length) return;
    }
  }

  function start() {
    const able = [];
    for (const rank of ranks) {
      const message = rank.sends && rank.sends[0];
      if (!message || rank.out || rank.round === rank.count) continue;
      if (ranks[message.target].round === message.takenIn) able.push(message);
    }
    able.sort((a, b) => a.takenIn - b.takenIn || a.source - b.source || a.target - b.target);
    for (const message of able) {
      if (ranks[message.target].into) continue;
      ranks[message.source].sends.shift();
      ranks[message.source].out = ranks[message.target].into = message;
      message.start = now;
      happens("start", message);
      const way = topology.route(message.source, message.target);
      flying.push({ message, way, ends: now + way.latency, flows: false, left: message.bytes });
    }
  }

  /* What shares links has no end of its own: it follows from how fast all of them flow. */
  function flow() {
    const sharing = flying.filter((each) => each.flows && each.way.links.length);
    if (!sharing.length) return;
    share(sharing, topology.capacities);
    for (const each of sharing) each.ends = now + each.left / each.rate;
  }

  function pass(next) {
    for (const each of flying) if (each.rate) each.left -= each.rate * (next - now);
    now = next;
  }

  const sleeping = new Set(asleep.map(({ number }) => number));
  ranks.forEach((_, number) => sleeping.has(number) || enter(number));
  for (;;) {
    start();
    flow();
    const ends = [...flying, ...delayed, ...folding, ...asleep].map((each) => each.ends);
    if (!ends.length) break;
    pass(Math.min(...ends));
    settle();
  }
  return { end: now, spans, log };
}
