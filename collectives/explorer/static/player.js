"use strict";

/* The player of the page and of the course: it plays, stops, steps and seeks. A subclass has the `end`
   of time, the `marks` at which steps end, a `pace` and a `beat`, and shows a moment of it. */

class Player {
  constructor() {
    this.time = 0;
    this.playing = false;
    this.target = null; // where a step that plays will stop
    this.turn = 0; // another one begins whenever the reader does something
    this.ended = null; // keeps the promise of `play`
    this.still = window.matchMedia("(prefers-reduced-motion: reduce)");
  }

  /* The last moment that may be shown. */
  get limit() {
    return this.end;
  }

  /* Where what plays will stop. */
  get until() {
    return Math.min(this.target === null ? this.end : this.target, this.limit);
  }

  /* Nothing moves any more. */
  rested() {}

  stop() {
    this.playing = false;
    this.target = null;
    this.turn += 1;
    if (this.ended) this.ended();
    this.ended = null;
  }

  seek(time) {
    this.stop();
    this.time = Math.max(0, Math.min(time, this.limit));
    this.show();
    this.rested();
  }

  /* Play to a target or to the end; the promise is kept when it is over, or something else is done. */
  play(target = null) {
    this.stop();
    if (this.time >= this.end) this.time = 0;
    Object.assign(this, { target, from: this.time, playing: true });
    if (this.until <= this.time) {
      this.seek(this.until);
      return Promise.resolve();
    }
    const done = new Promise((resolve) => { this.ended = resolve; });
    const { turn } = this;
    let last = null;
    const tick = (now) => {
      if (turn !== this.turn) return;
      const passed = last === null ? 0 : (now - last) / 1000;
      last = now;
      const next = this.still.matches ? this.marks.find((mark) => mark > this.time)
        : this.time + passed * this.pace();
      if (next === undefined || next >= this.until) {
        this.seek(this.until);
        return;
      }
      this.time = next;
      this.show();
      this.later(tick);
    };
    this.show();
    this.later(tick);
    return done;
  }

  /* Where motion is unwelcome, time goes on in steps. */
  later(tick) {
    if (this.still.matches) setTimeout(() => tick(performance.now()), 1000 * this.beat());
    else requestAnimationFrame(tick);
  }

  toggle(target = null) {
    if (!this.playing) return this.play(target);
    this.seek(this.time);
    return Promise.resolve();
  }

  /* Play one step, or go back by one; a step that is playing is over. */
  step(by) {
    const here = this.target === null ? this.time : this.target;
    const mark = by > 0 ? this.marks.find((each) => each > here) : this.marks.filter((each) => each < here).pop();
    this.stop();
    this.time = here;
    if (by > 0 && mark !== undefined && !this.still.matches) this.play(mark);
    else this.seek(mark === undefined ? here : mark);
  }
}
