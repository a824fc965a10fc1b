// The text: a line for every utterance, its words with their times. What is committed stays; the rest is grey.

export class Transcript {
  constructor(element) {
    this.element = element;
    this.lines = new Map(); // by utterance
    this.lit = new Set();
  }

  get empty() {
    return [...this.lines.values()].every((line) => !line.words.length);
  }

  /** An event with text; returns the words that were not there before. */
  tell(event) {
    const line = this.lines.get(event.utterance) ?? this.open(event.utterance);
    const before = line.words.length;
    line.words = event.words;
    line.final = event.type === "final";
    const committed = line.final ? event.words.length : wordsIn(event.committed);
    this.write(line, committed);
    if (line.final && !event.words.length) this.drop(event.utterance);
    return event.words.slice(before);
  }

  open(utterance) {
    const element = make("p", "line");
    const line = { words: [], committed: 0, element, time: make("time"), stays: make("span"), may: make("span", "may") };
    line.may.setAttribute("aria-hidden", "true"); // would be read aloud, and then be taken back
    element.append(line.time, line.stays, line.may);
    this.element.append(element);
    this.lines.set(utterance, line);
    return line;
  }

  drop(utterance) {
    this.lines.get(utterance).element.remove();
    this.lines.delete(utterance);
  }

  /** Committed words are only added, so that a screen reader reads each of them once. */
  write(line, committed) {
    const shown = [...line.stays.children];
    const same = shown.every((word, n) => n < committed && word.textContent === line.words[n].text);
    if (!same) line.stays.replaceChildren();
    line.words.slice(0, committed).forEach((word, n) => {
      if (!same || n >= shown.length) line.stays.append(n ? " " : "", place(make("span", "word new"), word));
      else place(shown[n], word);
    });
    const rest = line.words.slice(committed).map((word) => place(make("span", "word"), word));
    line.may.replaceChildren(...rest.flatMap((word, n) => (n || committed ? [" ", word] : [word])));
    line.committed = committed;
    if (line.words.length) {
      const seconds = line.words[0].start_seconds;
      line.time.textContent = clock(seconds);
      line.time.dateTime = `PT${seconds.toFixed(2)}S`;
    }
  }

  /** Light the words that are heard at a moment; null: none. */
  light(seconds) {
    const now = new Set();
    if (seconds !== null) {
      for (const word of this.element.querySelectorAll(".word")) {
        if (Number(word.dataset.start) <= seconds && seconds < Number(word.dataset.end)) now.add(word);
      }
    }
    for (const word of this.lit) if (!now.has(word)) word.classList.remove("lit");
    for (const word of now) word.classList.add("lit");
    this.lit = now;
  }

  clear() {
    this.lines.clear();
    this.element.replaceChildren();
  }

  /** The words that stay, line by line. */
  utterances() {
    const lines = [...this.lines.values()].map((line) => line.words.slice(0, line.committed));
    return lines.filter((words) => words.length);
  }
}

function wordsIn(text) {
  return text ? text.split(" ").length : 0;
}

function make(name, classes = "") {
  const element = document.createElement(name);
  if (classes) element.className = classes;
  return element;
}

function place(element, word) {
  element.textContent = word.text;
  element.dataset.start = word.start_seconds;
  element.dataset.end = word.end_seconds;
  element.title = `${word.start_seconds.toFixed(2)} s, ${Math.round(100 * word.confidence)} % sure`;
  return element;
}

export function clock(seconds) {
  const whole = Math.floor(seconds);
  return `${Math.floor(whole / 60)}:${String(whole % 60).padStart(2, "0")}`;
}
