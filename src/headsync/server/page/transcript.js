// The text: a line for every utterance, its words with their times. Committed words are final, the rest is grey.

export class Transcript {
  constructor(element) {
    this.element = element;
    this.lines = new Map(); // by utterance
    this.lit = new Set();
    this.playable = false; // whether words can be pressed to play the recording from there
  }

  get empty() {
    return [...this.lines.values()].every((line) => !line.words.length);
  }

  /** Show a partial or final event; returns the new words. */
  update(event) {
    const line = this.lines.get(event.utterance) ?? this.open(event.utterance);
    const before = line.words.length;
    line.words = event.words;
    line.isFinal = event.type === "final";
    const committed = line.isFinal ? event.words.length : wordsIn(event.committed);
    this.write(line, committed);
    if (line.isFinal && !event.words.length) this.drop(event.utterance);
    return event.words.slice(before);
  }

  open(utterance) {
    const element = make("p", "line");
    const line = { words: [], committed: 0, element, time: make("time"), finalWords: make("span"), tentative: make("span", "tentative") };
    line.tentative.setAttribute("aria-hidden", "true"); // a screen reader would read words that change later
    element.append(line.time, line.finalWords, line.tentative);
    this.element.append(element);
    this.lines.set(utterance, line);
    return line;
  }

  drop(utterance) {
    this.lines.get(utterance).element.remove();
    this.lines.delete(utterance);
  }

  /** Committed words are only appended, so a screen reader reads each of them once. */
  write(line, committed) {
    const shown = [...line.finalWords.children];
    const same = shown.every((word, n) => n < committed && word.textContent === line.words[n].text);
    if (!same) line.finalWords.replaceChildren();
    line.words.slice(0, committed).forEach((word, n) => {
      if (!same || n >= shown.length) line.finalWords.append(n ? " " : "", place(make("span", "word new"), word));
      else place(shown[n], word);
    });
    const rest = line.words.slice(committed).map((word) => place(make("span", "word"), word));
    line.tentative.replaceChildren(...rest.flatMap((word, n) => (n || committed ? [" ", word] : [word])));
    line.committed = committed;
    if (line.words.length) {
      const seconds = line.words[0].start_seconds;
      line.time.textContent = clock(seconds);
      line.time.dateTime = `PT${seconds.toFixed(2)}S`;
    }
  }

  /** Let words be pressed, or not. One word is a Tab stop; arrow keys move between words. */
  setPlayable(playable) {
    if (playable === this.playable) return;
    this.playable = playable;
    this.words.forEach((word, n) => {
      if (playable) word.setAttribute("role", "button");
      else word.removeAttribute("role");
      if (playable) word.tabIndex = n ? -1 : 0;
      else word.removeAttribute("tabindex");
    });
  }

  get words() {
    return [...this.element.querySelectorAll(".word")];
  }

  /** Move the focus to another word; returns whether the key does that. */
  moveFocus(word, key) {
    const words = this.words;
    const from = words.indexOf(word);
    const to = { ArrowLeft: from - 1, ArrowRight: from + 1, Home: 0, End: words.length - 1 }[key];
    if (!this.playable || from < 0 || to === undefined) return false;
    const target = words[Math.max(0, Math.min(to, words.length - 1))];
    word.tabIndex = -1;
    target.tabIndex = 0;
    target.focus();
    return true;
  }

  /** Highlight the words that are being played; null: none. */
  highlight(seconds) {
    const now = new Set();
    if (seconds !== null) {
      for (const word of this.words) {
        if (Number(word.dataset.start) <= seconds && seconds < Number(word.dataset.end)) now.add(word);
      }
    }
    for (const word of this.lit) if (!now.has(word)) word.classList.remove("lit");
    for (const word of now) word.classList.add("lit");
    this.lit = now;
  }

  clear() {
    this.lines.clear();
    this.playable = false;
    this.element.replaceChildren();
  }

  /** The final words, line by line. */
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
  element.title = `${word.start_seconds.toFixed(2)} s, ${Math.round(100 * word.confidence)} % confidence`;
  return element;
}

export function clock(seconds) {
  const whole = Math.floor(seconds);
  return `${Math.floor(whole / 60)}:${String(whole % 60).padStart(2, "0")}`;
}
