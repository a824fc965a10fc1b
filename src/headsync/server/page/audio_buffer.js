// Audio to be sent, as 16-bit samples. Positions count samples from the first one.

const KEPT_SECONDS = 60; // of live audio that the server has not confirmed; older audio is lost

/** Live audio: grows at its end and drops what the server has confirmed. */
export class LiveBuffer {
  constructor(rate) {
    this.rate = rate;
    this.start = this.end = 0;
    this.closed = false;
    this.pieces = [];
  }

  append(samples) {
    this.pieces.push(samples);
    this.end += samples.length;
    this.forget(this.end - KEPT_SECONDS * this.rate);
  }

  /** Drop whole pieces before a position. */
  forget(before) {
    while (this.pieces.length && this.start + this.pieces[0].length <= before) this.start += this.pieces.shift().length;
  }

  /** The samples in a range, as far as they exist. */
  read(from, to) {
    const part = new Int16Array(Math.max(0, Math.min(to, this.end) - from));
    let position = this.start;
    for (const piece of this.pieces) {
      const first = Math.max(0, from - position);
      if (position < to && first < piece.length) {
        part.set(piece.subarray(first, Math.min(piece.length, to - position)), Math.max(0, position - from));
      }
      position += piece.length;
    }
    return part;
  }
}

/** A whole recording. While it plays, its end is the playback position. */
export class FileBuffer {
  constructor(samples, rate) {
    this.samples = samples;
    this.rate = rate;
    this.start = 0;
    this.end = samples.length;
    this.closed = true;
  }

  /** Move the end to a playback position. */
  playUpTo(seconds) {
    this.end = Math.min(this.samples.length, Math.max(this.end, Math.floor(seconds * this.rate)));
    this.closed = this.end === this.samples.length;
  }

  waitForPlayer() {
    this.end = 0;
    this.closed = false;
  }

  playOut() {
    this.playUpTo(Infinity);
  }

  forget() {}

  read(from, to) {
    return this.samples.subarray(Math.max(0, from), Math.min(to, this.samples.length));
  }
}
