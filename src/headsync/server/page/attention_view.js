// The attention view: the spectrogram, a lane for each head with its weights, marks where heads halted, the tokens.

import { BANDS, COLUMN_SECONDS, Spectrogram } from "./spectrogram.js";

const ROWS = 3; // of tokens, where they are close together
const ROW = 17;
const LABELS = 8 + ROWS * ROW;
const AXIS = 24;
const PIXELS_PER_SECOND = 118;
const RANGE = 150; // of the 255 loudness steps that are drawn
const MAX_TOKENS = 3000;

// Distinguishable with most kinds of colour blindness.
const HEADS = {
  light: ["#c75b00", "#00735c", "#a8337e", "#0072b2", "#8a6d00", "#5b4bb5", "#4f4f4f", "#b3261e"],
  dark: ["#ffb066", "#4fd1a5", "#ff8fcb", "#6cc4ff", "#f2d04b", "#b3a7ff", "#d0d0d0", "#ff8a80"],
};

export class AttentionView {
  constructor(canvas, legend, table) {
    Object.assign(this, { canvas, legend, table });
    this.context = canvas.getContext("2d");
    this.dark = matchMedia("(prefers-color-scheme: dark)");
    this.reset(null);
  }

  /** Start with a new recording; null clears the view. */
  reset(buffer) {
    this.sound = buffer ? new Spectrogram(buffer) : null;
    this.tokens = [];
    this.cursor = null; // playback position in seconds
    this.table.replaceChildren();
    this.drawLegend(0);
    this.describe();
  }

  get seconds() {
    return this.sound ? Math.max(0, this.sound.length * COLUMN_SECONDS) : 0;
  }

  /** The end of a view that shows the last tokens. */
  get latestEnd() {
    const last = this.tokens[this.tokens.length - 1];
    return last ? Math.min(this.seconds, Math.max(...last.halts_seconds) + 0.25 * this.span) : this.seconds;
  }

  /** Seconds of audio that fit into the view. */
  get span() {
    return Math.max(3, this.canvas.clientWidth / PIXELS_PER_SECOND);
  }

  follow() {
    this.sound?.follow();
  }

  /** The attention weights of a new token. */
  addToken(event) {
    if (!this.tokens.length) this.drawLegend(event.weights.length);
    this.tokens.push(event);
    if (this.tokens.length > MAX_TOKENS) this.tokens.shift();
    this.addRow(event);
  }

  /** Remove the tokens of an unfinished utterance; after a lost connection they are sent again. */
  removeUtterance(utterance) {
    this.tokens = this.tokens.filter((token) => token.utterance !== utterance);
    for (const row of [...this.table.rows]) if (row.dataset.utterance === String(utterance)) row.remove();
  }

  /** Draw the view that ends at `end` seconds. */
  draw(end) {
    const { canvas, context } = this;
    const [width, height, scale] = [canvas.clientWidth, canvas.clientHeight, devicePixelRatio || 1];
    if (canvas.width !== Math.round(width * scale)) canvas.width = Math.round(width * scale);
    if (canvas.height !== Math.round(height * scale)) canvas.height = Math.round(height * scale);
    context.setTransform(scale, 0, 0, scale, 0, 0);
    context.clearRect(0, 0, width, height);
    const view = { first: end - this.span, end, width, top: LABELS, bottom: height - AXIS };
    view.x = (seconds) => ((seconds - view.first) / this.span) * width;
    view.colours = this.dark.matches ? HEADS.dark : HEADS.light;
    view.ink = getComputedStyle(canvas).color;
    this.drawSpectrogram(view);
    const visible = this.tokens.filter((token) => Math.max(...token.halts_seconds) > view.first - 1 && token.start_seconds < end);
    for (const token of visible) this.drawWeights(view, token);
    for (const token of visible) this.drawHalts(view, token);
    this.drawTokens(view, visible);
    this.drawAxis(view);
    if (this.cursor !== null) this.drawCursor(view);
  }

  drawSpectrogram(view) {
    const first = Math.floor(view.first / COLUMN_SECONDS);
    const count = Math.ceil(this.span / COLUMN_SECONDS) + 1;
    if (!this.small) this.small = document.createElement("canvas");
    [this.small.width, this.small.height] = [count, BANDS];
    const paper = this.small.getContext("2d");
    const image = paper.createImageData(count, BANDS);
    const columns = Array.from({ length: count }, (_, n) => this.sound?.column(first + n));
    let loudest = 120;
    for (const column of columns) if (column) for (const value of column) loudest = Math.max(loudest, value);
    const ink = this.dark.matches ? 235 : 24;
    columns.forEach((column, x) => {
      for (let band = 0; column && band < BANDS; band++) {
        const loud = Math.max(0, 1 - (loudest - column[band]) / RANGE);
        const at = 4 * ((BANDS - 1 - band) * count + x);
        image.data.fill(ink, at, at + 3);
        image.data[at + 3] = 200 * loud ** 1.5;
      }
    });
    paper.putImageData(image, 0, 0);
    this.context.imageSmoothingEnabled = true;
    const left = view.x(first * COLUMN_SECONDS);
    const wide = (count * COLUMN_SECONDS * view.width) / this.span;
    this.context.drawImage(this.small, left, view.top, wide, view.bottom - view.top);
  }

  /** Bars in the lane of each head; height and opacity are the weight. */
  drawWeights(view, token) {
    const { context } = this;
    const lane = (view.bottom - view.top) / token.weights.length;
    const wide = Math.max(1, view.x(token.frame_seconds) - view.x(0) - 0.5);
    token.weights.forEach((weights, head) => {
      context.fillStyle = view.colours[head % view.colours.length];
      const floor = view.top + (head + 1) * lane - 2;
      weights.forEach((weight, n) => {
        if (weight < 0.02) return;
        const strong = Math.min(1, weight);
        const high = 2 + strong * (lane - 8);
        context.globalAlpha = 0.25 + 0.6 * strong;
        context.fillRect(view.x(token.start_seconds + n * token.frame_seconds), floor - high, wide, high);
      });
    });
    context.globalAlpha = 1;
  }

  /** Where each head halted: a line through its lane. */
  drawHalts(view, token) {
    const { context } = this;
    const lane = (view.bottom - view.top) / token.weights.length;
    token.halts_seconds.forEach((seconds, head) => {
      const [x, top, bottom] = [view.x(seconds), view.top + head * lane, view.top + (head + 1) * lane];
      context.strokeStyle = context.fillStyle = view.colours[head % view.colours.length];
      context.lineWidth = 1.5;
      context.beginPath();
      context.moveTo(x, top + 3);
      context.lineTo(x, bottom - 2);
      context.stroke();
      context.beginPath();
      context.moveTo(x + 0.75, bottom - 2);
      context.lineTo(x - 6, bottom - 2);
      context.lineTo(x + 0.75, bottom - 9);
      context.fill();
    });
  }

  drawTokens(view, tokens) {
    const { context } = this;
    context.font = "600 13px system-ui, sans-serif";
    context.textAlign = "right";
    context.fillStyle = view.ink;
    const free = new Array(ROWS).fill(-Infinity); // the x from which each row is free
    for (const token of tokens) {
      const x = view.x(Math.max(...token.halts_seconds));
      if (x < 0 || x > view.width) continue; // its mark is outside the view
      const text = token.token.replace("▁", "").replace("<space>", "␣");
      const wide = context.measureText(text).width;
      const right = Math.max(x + 1, wide + 1); // never clipped at the left edge
      const fitting = free.findIndex((from) => right - wide > from);
      const row = fitting < 0 ? free.indexOf(Math.min(...free)) : fitting;
      free[row] = right + 5;
      const y = LABELS - 9 - ROW * row;
      context.fillText(text, right, y);
      context.globalAlpha = 0.35;
      context.fillRect(x - 0.5, y + 4, 1, LABELS - y - 2);
      context.globalAlpha = 1;
    }
  }

  drawAxis(view) {
    const { context } = this;
    context.font = "12px system-ui, sans-serif";
    context.textAlign = "center";
    context.fillStyle = view.ink;
    context.globalAlpha = 0.25;
    context.fillRect(0, view.bottom, view.width, 1);
    for (let second = Math.max(0, Math.ceil(view.first)); second <= view.end; second++) {
      const x = view.x(second);
      context.globalAlpha = 0.25;
      context.fillRect(x, view.bottom, 1, 5);
      context.globalAlpha = 0.75;
      if (x > 12 && x < view.width - 12) context.fillText(`${second} s`, x, view.bottom + 18);
    }
    context.globalAlpha = 1;
  }

  drawCursor(view) {
    const x = view.x(this.cursor);
    this.context.fillStyle = view.ink;
    this.context.fillRect(x - 0.5, view.top - 4, 1.5, view.bottom - view.top + 4);
  }

  drawLegend(heads) {
    const items = Array.from({ length: heads }, (_, n) => [`head head-${n % 8}`, `head ${n + 1}`]);
    if (heads) items.push(["halt", "halting position"]);
    this.legend.replaceChildren(
      ...items.map(([kind, text]) => {
        const item = document.createElement("li");
        item.className = kind;
        item.textContent = text;
        return item;
      }),
    );
  }

  addRow(token) {
    const row = document.createElement("tr");
    row.dataset.utterance = token.utterance;
    const sums = token.weights.map((weights) => weights.reduce((sum, weight) => sum + weight, 0));
    const halts = [...new Set(token.halts_seconds.map((seconds) => seconds.toFixed(2)))].join(", ");
    const most = `head ${sums.indexOf(Math.max(...sums)) + 1}`;
    for (const [n, text] of [token.token, `${token.start_seconds.toFixed(2)} s`, `${halts} s`, most].entries()) {
      const cell = document.createElement(n ? "td" : "th");
      cell.textContent = text;
      if (!n) cell.scope = "row";
      row.append(cell);
    }
    this.table.append(row);
    if (this.table.rows.length > 200) this.table.rows[0].remove();
  }

  /** A text alternative; the table has the details. */
  describe() {
    const said = this.tokens.slice(-12).map((token) => `${token.token} at ${Math.max(...token.halts_seconds).toFixed(1)} s`);
    const text = said.length ? `Spectrogram. The heads halted for ${said.join(", ")}.` : "Spectrogram, no tokens yet.";
    this.canvas.setAttribute("aria-label", text);
  }
}
