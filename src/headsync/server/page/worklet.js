// Runs on the audio thread: collects pieces of 40 ms as 16-bit samples and posts them to the page.

class Pieces extends AudioWorkletProcessor {
  constructor() {
    super();
    this.piece = new Int16Array(Math.round(sampleRate * 0.04));
    this.filled = 0;
  }

  process([channels]) {
    if (channels.length) for (let n = 0; n < channels[0].length; n++) this.take(channels, n);
    return true;
  }

  take(channels, n) {
    let sum = 0;
    for (const channel of channels) sum += channel[n];
    const value = Math.max(-1, Math.min(1, sum / channels.length));
    this.piece[this.filled++] = Math.round(value < 0 ? value * 32768 : value * 32767);
    if (this.filled === this.piece.length) {
      this.port.postMessage(this.piece.slice());
      this.filled = 0;
    }
  }
}

registerProcessor("pieces", Pieces);
