// The spectrogram: short-time Fourier transforms in mel bands.

export const COLUMN_SECONDS = 0.02;
export const BANDS = 96;
const LOWEST_HERTZ = 80;
const HIGHEST_HERTZ = 8000;
const KEPT_COLUMNS = 30000; // ten minutes

/** The discrete Fourier transform of a power of two, in place: bit reversal, then butterflies. */
export class Fourier {
  constructor(size) {
    this.size = size;
    this.cos = Float64Array.from({ length: size / 2 }, (_, n) => Math.cos((2 * Math.PI * n) / size));
    this.sin = Float64Array.from({ length: size / 2 }, (_, n) => -Math.sin((2 * Math.PI * n) / size));
  }

  transform(re, im) {
    const { size, cos, sin } = this;
    for (let n = 1, reversed = 0; n < size; n++) {
      let bit = size >> 1;
      for (; reversed & bit; bit >>= 1) reversed ^= bit;
      reversed ^= bit;
      if (n < reversed) {
        [re[n], re[reversed]] = [re[reversed], re[n]];
        [im[n], im[reversed]] = [im[reversed], im[n]];
      }
    }
    for (let half = 1; half < size; half *= 2) {
      const stride = size / (2 * half);
      for (let first = 0; first < size; first += 2 * half) {
        for (let k = 0; k < half; k++) {
          const a = first + k;
          const b = a + half;
          const x = re[b] * cos[k * stride] - im[b] * sin[k * stride];
          const y = re[b] * sin[k * stride] + im[b] * cos[k * stride];
          [re[b], im[b]] = [re[a] - x, im[a] - y];
          [re[a], im[a]] = [re[a] + x, im[a] + y];
        }
      }
    }
  }
}

/** Columns of levels (0 is -100 dB, 255 is 0 dB), computed on demand and cached. */
export class Spectrogram {
  constructor(buffer) {
    this.buffer = buffer;
    const size = 2 ** Math.round(Math.log2(0.032 * buffer.rate));
    this.fourier = new Fourier(size);
    this.window = Float64Array.from({ length: size }, (_, n) => 0.5 - 0.5 * Math.cos((2 * Math.PI * (n + 0.5)) / size));
    this.edges = edges(buffer.rate, size);
    this.re = new Float64Array(size);
    this.im = new Float64Array(size);
    this.columns = new Map();
  }

  /** The number of columns for which there is audio. */
  get length() {
    return Math.floor((this.buffer.end - this.fourier.size / 2) / (COLUMN_SECONDS * this.buffer.rate)) + 1;
  }

  /** Compute the columns of new audio before the buffer drops it. */
  follow() {
    for (let n = this.followed ?? 0; n < this.length; n++) this.column(n);
    this.followed = Math.max(0, this.length);
  }

  column(number) {
    let column = this.columns.get(number);
    if (column === undefined && number >= 0 && number < this.length) {
      column = this.make(number);
      this.columns.set(number, column);
      if (this.columns.size > KEPT_COLUMNS) this.columns.delete(this.columns.keys().next().value);
    }
    return column;
  }

  make(number) {
    const { size } = this.fourier;
    const first = Math.round(number * COLUMN_SECONDS * this.buffer.rate) - size / 2;
    const samples = this.buffer.read(Math.max(first, this.buffer.start), first + size);
    this.re.fill(0);
    this.im.fill(0);
    const offset = size - samples.length;
    for (let n = 0; n < samples.length; n++) this.re[offset + n] = (samples[n] / 32768) * this.window[offset + n];
    this.fourier.transform(this.re, this.im);
    const column = new Uint8Array(BANDS);
    for (let band = 0; band < BANDS; band++) {
      let most = 1e-12;
      for (let k = this.edges[band]; k < Math.max(this.edges[band] + 1, this.edges[band + 1]); k++) {
        most = Math.max(most, this.re[k] ** 2 + this.im[k] ** 2);
      }
      const decibels = 10 * Math.log10((16 * most) / size ** 2); // a full sine is 0 dB
      column[band] = Math.max(0, Math.min(255, 2.55 * (decibels + 100)));
    }
    return column;
  }
}

/** First lines of the transform of each band, equally far apart in mel. */
function edges(rate, size) {
  const mel = (hertz) => Math.log1p(hertz / 700);
  const [low, high] = [mel(LOWEST_HERTZ), mel(Math.min(HIGHEST_HERTZ, rate / 2))];
  return Array.from({ length: BANDS + 1 }, (_, n) => {
    const hertz = 700 * Math.expm1(low + ((high - low) * n) / BANDS);
    return Math.min(size / 2 - 1, Math.round((hertz * size) / rate));
  });
}
