// Audio input: the microphone or a recording. Errors carry a message for the user.

/** Live audio: `onAudio(samples)` is called for each piece, `onLost()` when the microphone is disconnected. */
export class Microphone {
  static async open(onAudio, onLost) {
    if (!window.isSecureContext || !navigator.mediaDevices) {
      throw new Error(
        "Browsers allow the microphone only on pages from this computer or over https. You can still drop a recording here.",
      );
    }
    const context = new AudioContext(); // everything is ready before the microphone opens, so no word is missed
    try {
      await context.audioWorklet.addModule(new URL("worklet.js", import.meta.url));
      const pieces = new AudioWorkletNode(context, "pieces", { numberOfOutputs: 0 });
      await context.resume();
      const stream = await ask();
      for (const track of stream.getTracks()) track.onended = onLost;
      pieces.port.onmessage = ({ data }) => onAudio(data);
      context.createMediaStreamSource(stream).connect(pieces);
      return new Microphone(context, stream);
    } catch (error) {
      context.close();
      throw error;
    }
  }

  constructor(context, stream) {
    this.context = context;
    this.stream = stream;
  }

  get rate() {
    return this.context.sampleRate;
  }

  close() {
    for (const track of this.stream.getTracks()) track.stop();
    if (this.context.state !== "closed") this.context.close();
  }
}

async function ask() {
  const audio = { channelCount: 1, echoCancellation: false, noiseSuppression: false, autoGainControl: false };
  try {
    return await navigator.mediaDevices.getUserMedia({ audio });
  } catch (error) {
    throw new Error(SENTENCES[error.name] ?? `The microphone cannot be used: ${error.message}`);
  }
}

const SENTENCES = {
  NotAllowedError: "The microphone is blocked; allow it for this page in the address bar and press Speak again.",
  NotFoundError: "No microphone was found; connect one and press Speak again.",
  NotReadableError: "The microphone cannot be opened; another program may be using it.",
};

/** A recording as 16-bit samples, one channel, at its own sample rate if that is known. */
export async function readRecording(file) {
  const bytes = await file.arrayBuffer();
  const rate = ownRate(new DataView(bytes)) ?? 16000;
  try {
    const decoded = await new OfflineAudioContext(1, 1, rate).decodeAudioData(bytes);
    return { samples: mixed(decoded), rate };
  } catch {
    throw new Error(`${file.name}: cannot be decoded as audio; choose a WAV, FLAC, MP3, M4A or Ogg file.`);
  }
}

/** The sample rate of a WAV or FLAC file; the browser resamples other files to 16 kHz. */
function ownRate(data) {
  if (data.byteLength < 44) return null;
  const name = String.fromCharCode(...[0, 1, 2, 3].map((n) => data.getUint8(n)));
  let rate = null;
  if (name === "RIFF") rate = data.getUint32(24, true);
  if (name === "fLaC") rate = data.getUint32(18) >>> 12;
  return rate >= 8000 && rate <= 96000 ? rate : null;
}

function mixed(decoded) {
  const channels = Array.from({ length: decoded.numberOfChannels }, (_, n) => decoded.getChannelData(n));
  const samples = new Int16Array(decoded.length);
  for (let n = 0; n < samples.length; n++) {
    let sum = 0;
    for (const channel of channels) sum += channel[n];
    samples[n] = Math.max(-32768, Math.min(32767, Math.round((32768 * sum) / channels.length)));
  }
  return samples;
}

/** The level of samples from 0 to 1, on a decibel scale. */
export function loudness(samples) {
  let sum = 0;
  for (const sample of samples) sum += sample * sample;
  const decibels = 10 * Math.log10(sum / Math.max(1, samples.length) / 32768 ** 2 + 1e-12);
  return Math.max(0, Math.min(1, (decibels + 65) / 55));
}
