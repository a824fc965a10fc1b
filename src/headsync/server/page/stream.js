// A stream that survives lost connections: a new connection continues after the last final text.
//
// Each connection counts times and utterances from its own start; here they are shifted to those of the recording.

const MOST_QUEUED = 1 << 18; // bytes queued in the browser; the rest stays in the buffer
const PIECE_SECONDS = 0.5; // longest message
const FIRST_WAIT = 0.5;
const LONGEST_WAIT = 8; // seconds between attempts
const QUIET_SECONDS = 3; // of audio kept during silence, for the beginning of a word
const TAIL_SECONDS = 0.1; // of audio after the last word of a final utterance

const PERMANENT_ERRORS = new Set(["message", "version", "setting", "model", "audio"]);

export class Stream {
  /**
   * `start` has the fields of the first message; `onMessage(message)` gets the events, with times of the recording;
   * `onStateChange(state, sentence)` gets "connecting", "listening", "waiting", "finishing", "done", "token" or "failed".
   */
  constructor(address, start, buffer, onMessage, onStateChange) {
    Object.assign(this, { address, start, buffer, onMessage, onStateChange });
    this.sent = this.confirmed = this.base = 0; // positions on the buffer
    this.utterances = this.before = 0; // finals so far, and those of earlier connections
    this.attempts = 0;
    this.speaking = false; // whether an utterance is open
    this.over = false;
  }

  async open() {
    if (!this.attempts) this.onStateChange("connecting", "Connecting …");
    const refusal = await this.address.refusal();
    if (this.over) return;
    if (refusal === "token") this.end("token", "This server requires a token.");
    else if (refusal === "gone") this.wait("The server does not answer");
    else this.connect();
  }

  connect() {
    this.ready = this.finished = false;
    this.error = null;
    this.socket = new WebSocket(this.address.socket("/v1/stream"));
    this.socket.binaryType = "arraybuffer";
    this.socket.onopen = () => this.socket.send(JSON.stringify({ type: "start", version: 1, ...this.start }));
    this.socket.onmessage = ({ data }) => this.receive(JSON.parse(data));
    this.socket.onclose = () => this.closed();
  }

  receive(message) {
    if (message.type === "ready") this.begin();
    else if (message.type === "error") this.error = message;
    else if (message.type === "done") this.end("done", "");
    if (message.type === "progress" || message.type === "done") this.confirmQuiet(message);
    this.onMessage(this.shifted(message));
    if (message.type === "final") this.confirm(message);
    if (message.type === "partial") this.speaking = true;
  }

  begin() {
    this.base = this.sent = Math.max(this.confirmed, this.buffer.start);
    this.before = this.utterances;
    this.attempts = 0;
    this.ready = true;
    this.speaking = false;
    this.onStateChange(this.buffer.closed ? "finishing" : "listening", "");
    this.pump();
  }

  /** Send all available audio as fast as the connection accepts it. */
  pump() {
    if (!this.ready || this.finished || this.socket.readyState !== WebSocket.OPEN) return;
    const most = Math.round(PIECE_SECONDS * this.buffer.rate);
    while (this.sent < this.buffer.end && this.socket.bufferedAmount < MOST_QUEUED) {
      const piece = this.buffer.read(this.sent, this.sent + most);
      this.socket.send(piece);
      this.sent += piece.length;
    }
    if (this.sent < this.buffer.end) {
      setTimeout(() => this.pump(), 20);
    } else if (this.buffer.closed) {
      this.finished = true;
      this.socket.send('{"type": "finish"}');
    }
  }

  /** An utterance is final: audio before its end need not be sent again. */
  confirm({ words }) {
    this.utterances += 1;
    this.speaking = false;
    if (words.length) this.confirmUpTo(words[words.length - 1].end_seconds + TAIL_SECONDS);
  }

  confirmQuiet({ audio_seconds }) {
    if (!this.speaking) this.confirmUpTo(audio_seconds - QUIET_SECONDS);
  }

  confirmUpTo(seconds) {
    this.confirmed = Math.max(this.confirmed, this.base + Math.floor(seconds * this.buffer.rate));
    this.buffer.forget(this.confirmed);
  }

  /** A message with times and utterance numbers of the recording. */
  shifted(message) {
    const offset = this.base / this.buffer.rate;
    const shift = (seconds) => seconds + offset;
    const result = { ...message };
    for (const name of ["time_seconds", "start_seconds"]) if (name in result) result[name] = shift(result[name]);
    if ("utterance" in result) result.utterance += this.before;
    if (result.halts_seconds) result.halts_seconds = result.halts_seconds.map(shift);
    if (result.words) {
      result.words = result.words.map((word) => {
        return { ...word, start_seconds: shift(word.start_seconds), end_seconds: shift(word.end_seconds) };
      });
    }
    return result;
  }

  closed() {
    if (this.over) return;
    const was = this.ready;
    this.ready = false;
    if (this.error && PERMANENT_ERRORS.has(this.error.code)) this.end("failed", this.error.message);
    else if (this.error) this.wait(this.error.message.replace(/[.;].*$/, ""), this.error.retry_after);
    else this.wait(was ? "The connection was lost" : "The server does not answer");
  }

  wait(why, least = 0) {
    const backoff = Math.max(least, Math.min(LONGEST_WAIT, FIRST_WAIT * 2 ** this.attempts));
    const seconds = backoff * (0.9 + 0.2 * Math.random());
    this.attempts += 1;
    const kept = this.buffer.closed ? "" : " What you say is kept.";
    this.onStateChange("waiting", `${why}; trying again.${kept}`);
    this.timer = setTimeout(() => this.open(), 1000 * seconds);
  }

  end(state, sentence) {
    this.over = true;
    clearTimeout(this.timer);
    this.socket?.close();
    this.onStateChange(state, sentence);
  }
}

/** The address of the server, and the token for it. */
export class Address {
  constructor(place, token) {
    this.place = place;
    this.token = token;
  }

  socket(path) {
    const address = new URL(path, this.place);
    address.protocol = address.protocol === "https:" ? "wss:" : "ws:";
    if (this.token) address.searchParams.set("token", this.token);
    return address.href;
  }

  get(path) {
    const headers = this.token ? { Authorization: `Bearer ${this.token}` } : {};
    return fetch(new URL(path, this.place), { headers, cache: "no-store" });
  }

  /** "token" if the token is wrong, "gone" if the server does not answer, else null. */
  async refusal() {
    try {
      return (await this.get("/v1/models")).status === 401 ? "token" : null;
    } catch {
      return "gone";
    }
  }

  async models() {
    const answer = await this.get("/v1/models");
    return answer.ok ? (await answer.json()).data : [];
  }
}
