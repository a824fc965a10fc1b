// The page: sound in, events out of the stream, and what they change on the screen.

import { Microphone, loudness, readRecording } from "./sound.js";
import { Address, Stream } from "./stream.js";
import { Picture } from "./picture.js";
import { FileTape, LiveTape } from "./tape.js";
import { Transcript, clock } from "./transcript.js";
import { toSrt, toText, toVtt } from "./subtitles.js";

const $ = (id) => document.getElementById(id);
const calm = matchMedia("(prefers-reduced-motion: reduce)");
const transcript = new Transcript($("text"));
const picture = new Picture($("canvas"), $("legend"), $("looks"));
const address = new Address(location.href, stored(sessionStorage, "token") ?? "");

let now = null; // what is going on: { stream, tape, microphone, began, delays, ratios }

// ---- what people see of it

function say(sentence) {
  $("state").textContent = sentence;
}

function complain(sentence) {
  $("trouble").textContent = sentence;
  $("trouble").hidden = !sentence;
}

function show() {
  const busy = now !== null;
  $("speak").setAttribute("aria-pressed", String(busy));
  $("speak").classList.toggle("on", busy);
  $("speak-label").textContent = !busy ? "Speak" : now.stopping ? "Stop now" : "Stop";
  for (const id of ["choose", "file", "model", "along"]) $(id).disabled = busy || (id === "model" && !$("model").length);
  for (const id of ["copy", "save-txt", "save-srt", "save-vtt"]) $(id).disabled = transcript.empty;
  $("clear").disabled = busy || transcript.empty;
  $("empty").hidden = !transcript.empty;
}

function level(value) {
  $("level").firstElementChild.style.transform = `scaleX(${value.toFixed(3)})`;
  $("level").setAttribute("aria-valuenow", String(Math.round(100 * value)));
}

// ---- one recording, from its first sample to its last word

function begin(tape, microphone) {
  complain("");
  transcript.clear();
  picture.reset(tape);
  for (const id of ["delay", "factor", "ratio"]) $(id).textContent = "–";
  $("back").hidden = true;
  now = { tape, microphone, began: null, delays: [], ratios: [], stopping: false };
  const start = { sample_rate: tape.rate, model: $("model").value || null, attention: true, progress: true };
  now.stream = new Stream(address, start, tape, hear, changed);
  now.stream.open();
  show();
}

function changed(state, sentence) {
  const usual = { listening: now?.microphone ? "Listening." : "Listening along.", finishing: "The last words …", done: "Done." };
  say(sentence || (usual[state] ?? ""));
  document.body.dataset.state = state;
  if (state === "waiting" && now) picture.forget(now.stream.utterances);
  if (state === "token") askForToken();
  if (state === "failed") complain(sentence);
  if (["done", "token", "failed"].includes(state)) over();
  show();
}

function over() {
  if (!now) return;
  now.microphone?.close();
  now = null;
  level(0);
  $("back").min = Math.min(picture.span, picture.seconds).toFixed(1);
  $("back").max = picture.seconds.toFixed(1);
  $("back").value = Math.max(picture.span, picture.lately).toFixed(1);
  $("back").hidden = picture.seconds <= picture.span;
  picture.describe();
  paint();
}

function hear(message) {
  if (message.type === "partial" || message.type === "final") text(message);
  if (message.type === "final" && message.halts.length) ratio(message);
  if (message.type === "attention") picture.look(message);
  if (message.type === "progress" || message.type === "done") {
    $("factor").textContent = (message.computing_seconds / Math.max(0.1, message.audio_seconds)).toFixed(3);
  }
}

function text(message) {
  const atEnd = innerHeight + scrollY >= document.body.scrollHeight - 40;
  const fresh = transcript.tell(message);
  if (fresh.length) delay(fresh[fresh.length - 1], message);
  if (atEnd && message.type === "partial") $("text").lastElementChild?.scrollIntoView({ block: "nearest" });
  if (message.type === "final") picture.describe();
  show();
}

/** On the clock of the wall where sound comes in as it is spoken, else on that of the sound. */
function delay(word, message) {
  if (!now) return;
  const live = now.began !== null;
  const seconds = live ? performance.now() / 1000 - now.began - word.end_seconds : message.delay_seconds;
  now.delays = [...now.delays, Math.max(0, seconds)].slice(-9);
  const sorted = [...now.delays].sort((a, b) => a - b);
  $("delay").textContent = `${sorted[Math.floor(sorted.length / 2)].toFixed(2)} s`;
}

function ratio(message) {
  if (!now) return;
  now.ratios.push([message.cost_ratio, message.halts.length]);
  const tokens = now.ratios.reduce((sum, [, count]) => sum + count, 0);
  $("ratio").textContent = (now.ratios.reduce((sum, [r, count]) => sum + r * count, 0) / tokens).toFixed(2);
}

// ---- the microphone

async function speak() {
  if (now) return stop();
  complain("");
  say("Waiting for the microphone …");
  $("player").hidden = true;
  $("player").pause();
  $("speak").disabled = true;
  try {
    const microphone = await Microphone.open(heard, lost);
    begin(new LiveTape(microphone.rate), microphone);
  } catch (error) {
    say("");
    complain(error.message);
  } finally {
    $("speak").disabled = false;
  }
}

function heard(samples) {
  if (!now || now.tape.closed) return;
  now.tape.append(samples);
  now.began ??= performance.now() / 1000 - now.tape.end / now.tape.rate;
  picture.follow();
  level(loudness(samples));
  now.stream.pump();
}

function lost() {
  complain("The microphone was unplugged or taken away; what was said before is written.");
  stop();
}

/** No more sound; once more: no more patience either. */
function stop() {
  if (!now) return;
  if (now.stopping) return now.stream.end("done", "Stopped.");
  now.stopping = true;
  now.microphone?.close();
  $("player").pause();
  if (now.tape instanceof LiveTape) now.tape.closed = true;
  else now.stream.end("done", "Stopped.");
  level(0);
  say("The last words …");
  now?.stream.pump();
  show();
}

// ---- recordings

async function take(file) {
  if (now || !file) return;
  complain("");
  say(`Reading ${file.name} …`);
  try {
    const { samples, rate } = await readRecording(file);
    const tape = new FileTape(samples, rate);
    if (player.src) URL.revokeObjectURL(player.src);
    player.src = URL.createObjectURL(file);
    player.hidden = false;
    const along = $("along").checked && (await plays());
    if (along) tape.waitForPlayer();
    begin(tape, null);
    if (along) now.began = performance.now() / 1000 - player.currentTime;
  } catch (error) {
    say("");
    complain(error.message);
  }
}

const player = $("player");

async function plays() {
  try {
    await player.play();
    return true;
  } catch {
    return false; // the browser wants a press of a button before there is sound
  }
}

/** While a recording is played: its sound goes out as it is heard, and words light up. */
function played() {
  const { tape } = now ?? {};
  if (tape instanceof FileTape && !tape.closed) {
    const from = tape.end;
    tape.playUpTo(player.currentTime);
    if (player.ended) tape.playOut();
    now.began = performance.now() / 1000 - player.currentTime;
    if (tape.end > from) level(loudness(tape.read(tape.end - tape.rate / 25, tape.end)));
    now.stream.pump();
  }
}

player.onended = () => {
  if (now?.tape instanceof FileTape) {
    now.tape.playOut();
    now.stream.pump();
  }
  transcript.light(null);
};
player.onerror = () => now?.tape instanceof FileTape && player.onended();
setInterval(() => player.paused || played(), 40);

$("text").onclick = ({ target }) => {
  if (!player.hidden && !now && target.dataset.start) {
    player.currentTime = Number(target.dataset.start);
    player.play();
  }
};

// ---- the picture

function paint() {
  const playing = !player.hidden && !player.paused && !player.ended;
  picture.cursor = playing ? player.currentTime : null;
  if (playing) transcript.light(player.currentTime);
  else if (transcript.lit.size) transcript.light(null);
  let end = picture.seconds;
  if (now?.tape instanceof LiveTape || (now && !playing)) end = Math.max(end, picture.span);
  else if (playing) end = Math.max(picture.span, Math.min(picture.seconds, player.currentTime + 0.4 * picture.span));
  else end = Math.max(picture.span, Number($("back").hidden ? end : $("back").value));
  picture.draw(end);
  $("elapsed").textContent = clock(now ? now.tape.end / now.tape.rate : picture.seconds);
}

let painted = 0;

function tick(time) {
  const moves = now || !player.paused;
  if (moves && time - painted >= (calm.matches ? 1000 : 30)) {
    paint();
    painted = time;
  }
  requestAnimationFrame(tick);
}

$("back").oninput = paint;
new ResizeObserver(paint).observe($("canvas"));
picture.dark.addEventListener("change", paint);

// ---- taking the text along

function save(name, text, type) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([text], { type }));
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
}

$("save-txt").onclick = () => save("headsync.txt", toText(transcript.utterances()), "text/plain");
$("save-srt").onclick = () => save("headsync.srt", toSrt(transcript.utterances()), "application/x-subrip");
$("save-vtt").onclick = () => save("headsync.vtt", toVtt(transcript.utterances()), "text/vtt");
$("clear").onclick = () => {
  transcript.clear();
  picture.reset(null);
  player.hidden = true;
  player.pause();
  $("back").hidden = true;
  say("Press Speak, or drop a recording anywhere.");
  show();
  paint();
  $("speak").focus();
};
$("copy").onclick = async () => {
  const text = toText(transcript.utterances());
  try {
    await navigator.clipboard.writeText(text);
    say("Copied.");
  } catch {
    const range = document.createRange(); // no clipboard without https: let people press Ctrl-C
    range.selectNodeContents($("text"));
    getSelection().removeAllRanges();
    getSelection().addRange(range);
    say("Selected: press Ctrl-C to copy.");
  }
};

// ---- models and tokens

async function listModels() {
  try {
    const refusal = await address.refusal();
    if (refusal === "token") return askForToken();
    const wanted = stored(localStorage, "model");
    const names = refusal ? [] : await address.models();
    $("model").replaceChildren(...names.map((name) => new Option(name, name, false, name === wanted)));
    complain(refusal ? "The server does not answer; is `headsync serve` still running?" : "");
  } catch {
    complain("The server does not answer; is `headsync serve` still running?");
  }
  show();
}

function askForToken() {
  $("token-form").hidden = false;
  complain(address.token ? "This is not the token of this server." : "This server wants a token: the one it was started with.");
  $("token").focus();
}

$("token-form").onsubmit = async (event) => {
  event.preventDefault();
  address.token = $("token").value.trim();
  store(sessionStorage, "token", address.token);
  $("token-form").hidden = true;
  $("token").value = "";
  complain("");
  await listModels();
  $("speak").focus();
};
$("model").onchange = () => store(localStorage, "model", $("model").value);

function stored(storage, name) {
  try {
    return storage.getItem(`headsync.${name}`);
  } catch {
    return null; // private windows may forbid it
  }
}

function store(storage, name, value) {
  try {
    storage.setItem(`headsync.${name}`, value);
  } catch {} // it is asked again next time
}

// ---- hands

$("speak").onclick = speak;
$("choose").onclick = () => $("file").click();
$("file").onchange = () => {
  take($("file").files[0]);
  $("file").value = "";
};
addEventListener("keydown", (event) => {
  if (event.key === "Escape" && now) stop();
});
addEventListener("dragover", (event) => {
  event.preventDefault();
  $("drop").hidden = now !== null;
});
addEventListener("dragleave", (event) => {
  if (!event.relatedTarget) $("drop").hidden = true;
});
addEventListener("drop", (event) => {
  event.preventDefault();
  $("drop").hidden = true;
  take(event.dataTransfer.files[0]);
});

listModels();
show();
paint();
requestAnimationFrame(tick);
