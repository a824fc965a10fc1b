// A stream to the server that survives it: when the connection is lost, another one goes on where the text is certain.
//
// Times and utterances of every connection count from its own beginning; here they are moved to those of the recording.

const MOST_QUEUED = 1 << 18; // bytes that wait in the browser; more stays on the tape
const PIECE_SECONDS = 0.5; // longest message
const FIRST_WAIT = 0.5;
const LONGEST_WAIT = 8; // seconds between attempts
const QUIET_SECONDS = 3; // of sound kept for the beginning of a word, while nothing is said
const TAIL_SECONDS = 0.1; // of sound behind the last word of an utterance that is over

const HOPELESS = new Set(["message", "version", "setting", "model", "audio"]);

export class Stream {
  /**
   * `start` holds the fields of the first message; `told(message)` gets the events, with times of the recording;
   * `changed(state, sentence)` gets "connecting", "listening", "waiting", "finishing", "done", "token" or "failed".
   */
  constructor(address, start, tape, told, changed) {
    Object.assign(this, { address, start, tape, told, changed });
    this.sent = this.certain = this.base = 0; // positions on the tape
    this.utterances = this.before = 0; // finals so far, and those of earlier connections
    this.attempts = 0;
    this.speaking = false; // whether an utterance is open
    this.over = false;
  }

  async open() {
    if (!this.attempts) this.changed("connecting", "Connecting …");
    const refusal = await this.address.refusal();
    if (this.over) return;
    if (refusal === "token") this.end("token", "This server wants a token.");
    else if (refusal === "gone") this.wait("The server does not answer");
    else this.connect();
  }

  connect() {
    this.ready = this.finished = false;
    this.trouble = null;
    this.socket = new WebSocket(this.address.socket("/v1/stream"));
    this.socket.binaryType = "arraybuffer";
    this.socket.onopen = () => this.socket.send(JSON.stringify({ type: "start", version: 1, ...this.start }));
    this.socket.onmessage = ({ data }) => this.receive(JSON.parse(data));
    this.socket.onclose = () => this.closed();
  }

  receive(message) {
    if (message.type === "ready") this.begin();
    else if (message.type === "error") this.trouble = message;
    else if (message.type === "done") this.end("done", "");
    if (message.type === "progress" || message.type === "done") this.confirmQuiet(message);
    this.told(this.moved(message));
    if (message.type === "final") this.confirm(message);
    if (message.type === "partial") this.speaking = true;
  }

  begin() {
    this.base = this.sent = Math.max(this.certain, this.tape.start);
    this.before = this.utterances;
    this.attempts = 0;
    this.ready = true;
    this.speaking = false;
    this.changed(this.tape.closed ? "finishing" : "listening", "");
    this.pump();
  }

  /** Send what there is, as fast as it is taken. */
  pump() {
    if (!this.ready || this.finished || this.socket.readyState !== WebSocket.OPEN) return;
    const most = Math.round(PIECE_SECONDS * this.tape.rate);
    while (this.sent < this.tape.end && this.socket.bufferedAmount < MOST_QUEUED) {
      const piece = this.tape.read(this.sent, this.sent + most);
      this.socket.send(piece);
      this.sent += piece.length;
    }
    if (this.sent < this.tape.end) {
      setTimeout(() => this.pump(), 20);
    } else if (this.tape.closed) {
      this.finished = true;
      this.socket.send('{"type": "finish"}');
    }
  }

  /** An utterance is over: nothing before its end has to be sent again. */
  confirm({ words }) {
    this.utterances += 1;
    this.speaking = false;
    if (words.length) this.sureUpTo(words[words.length - 1].end_seconds + TAIL_SECONDS);
  }

  confirmQuiet({ audio_seconds }) {
    if (!this.speaking) this.sureUpTo(audio_seconds - QUIET_SECONDS);
  }

  sureUpTo(seconds) {
    this.certain = Math.max(this.certain, this.base + Math.floor(seconds * this.tape.rate));
    this.tape.forget(this.certain);
  }

  /** A message with the times and the utterance of the recording. */
  moved(message) {
    const offset = this.base / this.tape.rate;
    const late = (seconds) => seconds + offset;
    const moved = { ...message };
    for (const name of ["time_seconds", "start_seconds"]) if (name in moved) moved[name] = late(moved[name]);
    if ("utterance" in moved) moved.utterance += this.before;
    if (moved.halts_seconds) moved.halts_seconds = moved.halts_seconds.map(late);
    if (moved.words) {
      moved.words = moved.words.map((word) => {
        return { ...word, start_seconds: late(word.start_seconds), end_seconds: late(word.end_seconds) };
      });
    }
    return moved;
  }

  closed() {
    if (this.over) return;
    const was = this.ready;
    this.ready = false;
    if (this.trouble && HOPELESS.has(this.trouble.code)) this.end("failed", this.trouble.message);
    else if (this.trouble) this.wait(this.trouble.message.replace(/[.;].*$/, ""));
    else this.wait(was ? "The server has gone" : "The server does not answer");
  }

  wait(why) {
    const seconds = Math.min(LONGEST_WAIT, FIRST_WAIT * 2 ** this.attempts) * (0.9 + 0.2 * Math.random());
    this.attempts += 1;
    const kept = this.tape.closed ? "" : " What you say meanwhile is kept.";
    this.changed("waiting", `${why}; trying again.${kept}`);
    this.timer = setTimeout(() => this.open(), 1000 * seconds);
  }

  end(state, sentence) {
    this.over = true;
    clearTimeout(this.timer);
    this.socket?.close();
    this.changed(state, sentence);
  }
}

/** Where the server is, and how one is let in. */
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

  /** Why nobody is let in: "token", "gone", or null if one is. */
  async refusal() {
    try {
      return (await this.get("/v1/models")).status === 401 ? "token" : null;
    } catch {
      return "gone";
    }
  }

  async models() {
    const answer = await this.get("/v1/models");
    return answer.ok ? (await answer.json()).data.map((model) => model.id) : [];
  }
}
