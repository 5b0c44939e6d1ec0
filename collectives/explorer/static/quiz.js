"use strict";

/* A question of the course: the reader predicts, then the figure plays, then the answer is counted. */

/* Choices in a fixed order that does not tell which of them is right: by size where they are numbers. */
function choicesOf(truth, others) {
  const every = [...new Set([truth, ...others].map(String))];
  const numbers = every.every((each) => Number.isFinite(Number.parseFloat(each)));
  return numbers ? every.sort((a, b) => Number.parseFloat(a) - Number.parseFloat(b)) : every.sort();
}

class Quiz {
  constructor(parent, ask, context) {
    this.ask = ask;
    this.context = context;
    this.box = make("section", "quiz", parent);
    this.truth = String(ask.truth(context));
    const legend = make("h3", "", this.box, ask.text(context));
    legend.id = `ask-${Quiz.number = (Quiz.number || 0) + 1}`;
    legend.tabIndex = -1;
    this.legend = legend;
    if (ask.printed) make("pre", "printed", this.box, ask.printed(context));
    this.list = make("div", "choices", this.box);
    this.list.setAttribute("role", "group");
    this.list.setAttribute("aria-labelledby", legend.id);
    this.choices = choicesOf(this.truth, ask.others(context)).map((text) => {
      const button = make("button", "choice", this.list);
      button.type = "button";
      make("span", "", button, ask.say ? ask.say(text, context) : text);
      button.addEventListener("click", () => this.answer(text));
      button.dataset.value = text;
      return button;
    });
    this.skip = action(this.box, "plain", "I do not know: show me", () => this.answer(null));
    this.told = make("div", "told", this.box);
    this.told.setAttribute("role", "status");
  }

  /* Show what happens, and then whether the prediction was right, with the reason. */
  async answer(said) {
    if (this.said !== undefined) return;
    this.said = said;
    this.skip.hidden = true;
    for (const each of this.choices) {
      each.disabled = true;
      each.classList.toggle("said", each.dataset.value === said);
    }
    make("p", "watch", this.told, "Watch the picture.");
    await this.ask.play(this.context);
    this.told.replaceChildren();
    for (const each of this.choices) {
      const right = each.dataset.value === this.truth;
      each.classList.toggle("right", right);
      each.classList.toggle("missed", !right && each.dataset.value === said);
      if (right || each.dataset.value === said) make("span", "mark", each, right ? "✓" : "✗");
    }
    const right = said === this.truth;
    const name = this.ask.say ? this.ask.say(this.truth, this.context) : this.truth;
    const verdict = make("p", right ? "verdict right" : "verdict", this.told);
    const begins = right ? "Right: " : said === null ? "The answer: " : "No. The answer: ";
    make("strong", "", verdict, `${begins}${name}.`);
    rich("span", "", verdict, ` ${this.ask.why(this.context)}`);
    verdict.scrollIntoView({ block: "nearest" });
    this.onDone();
  }
}
