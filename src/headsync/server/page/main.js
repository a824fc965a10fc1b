// The page: audio in, events from the stream, and what they change on the screen.

import { Microphone, loudness, readRecording } from "./audio_input.js";
import { Address, Stream } from "./stream.js";
import { AttentionView } from "./attention_view.js";
import { chosenBudget, describeBudget, disableBudget } from "./budget.js";
import { FileBuffer, LiveBuffer } from "./audio_buffer.js";
import { Transcript, clock } from "./transcript.js";
import { toSrt, toText, toVtt } from "./subtitles.js";

const $ = (id) => document.getElementById(id);
const reducedMotion = matchMedia("(prefers-reduced-motion: reduce)");
const transcript = new Transcript($("text"));
const view = new AttentionView($("canvas"), $("legend"), $("tokens"));
const address = new Address(location.href, loadItem(sessionStorage, "token") ?? "");

let active = null; // the current stream: { stream, buffer, microphone, began, delays, ratios, stopping }
let title = ""; // file name for downloads, without its suffix

// ---- controls and messages

function setStatus(sentence) {
  $("state").textContent = sentence;
}

function showError(sentence) {
  $("error").textContent = sentence;
  $("error").hidden = !sentence;
}

function updateControls() {
  const busy = active !== null;
  $("speak").setAttribute("aria-pressed", String(busy));
  $("speak").classList.toggle("on", busy);
  $("speak-label").textContent = !busy ? "Speak" : active.stopping ? "Stop now" : "Stop";
  disableBudget(busy);
  for (const id of ["choose", "file", "model", "along"]) $(id).disabled = busy || (id === "model" && !$("model").length);
  for (const id of ["copy", "save-txt", "save-srt", "save-vtt"]) $(id).disabled = transcript.empty;
  $("clear").disabled = busy || transcript.empty;
  $("empty").hidden = !transcript.empty;
  $("view").hidden = !busy && !view.seconds; // an empty spectrogram says nothing
  transcript.setPlayable(!busy && !player.hidden);
  $("play-hint").hidden = busy || player.hidden || transcript.empty;
}

function showLevel(value) {
  $("level").firstElementChild.style.transform = `scaleX(${value.toFixed(3)})`;
  $("level").setAttribute("aria-valuenow", String(Math.round(100 * value)));
}

// ---- one stream, from its first sample to its last word

function startStream(buffer, microphone, name) {
  title = name;
  showError("");
  transcript.clear();
  view.reset(buffer);
  for (const id of ["delay", "factor", "ratio"]) $(id).textContent = "–";
  $("back").hidden = true;
  active = { buffer, microphone, began: null, delays: [], ratios: [], stopping: false };
  const settings = chosenBudget();
  const start = { sample_rate: buffer.rate, model: $("model").value || null, settings, attention: true, progress: true };
  active.stream = new Stream(address, start, buffer, onMessage, onStateChange);
  active.stream.open();
  updateControls();
}

function onStateChange(state, sentence) {
  const usual = { listening: active?.microphone ? "Listening." : "Transcribing.", finishing: "Finishing …", done: "Done." };
  setStatus(sentence || (usual[state] ?? ""));
  document.body.dataset.state = state;
  if (state === "waiting" && active) view.removeUtterance(active.stream.utterances);
  if (state === "token") askForToken();
  if (state === "failed") showError(sentence);
  if (["done", "token", "failed"].includes(state)) streamEnded();
  updateControls();
}

function streamEnded() {
  if (!active) return;
  active.microphone?.close();
  active = null;
  showLevel(0);
  $("back").min = Math.min(view.span, view.seconds).toFixed(1);
  $("back").max = view.seconds.toFixed(1);
  $("back").value = Math.max(view.span, view.latestEnd).toFixed(1);
  $("back").hidden = view.seconds <= view.span;
  view.describe();
  draw();
}

function onMessage(message) {
  if (message.type === "partial" || message.type === "final") showText(message);
  if (message.type === "final" && message.halts.length) showRatio(message);
  if (message.type === "attention") view.addToken(message);
  if (message.type === "progress" || message.type === "done") {
    $("factor").textContent = (message.computing_seconds / Math.max(0.1, message.audio_seconds)).toFixed(3);
  }
}

function showText(message) {
  const atEnd = innerHeight + scrollY >= document.body.scrollHeight - 40;
  const fresh = transcript.update(message);
  if (fresh.length) showDelay(fresh[fresh.length - 1], message);
  if (atEnd && message.type === "partial") $("text").lastElementChild?.scrollIntoView({ block: "nearest" });
  if (message.type === "final") view.describe();
  updateControls();
}

/** In real time if audio arrives as it is spoken, else in the time of the audio. */
function showDelay(word, message) {
  if (!active) return;
  const live = active.began !== null;
  const seconds = live ? performance.now() / 1000 - active.began - word.end_seconds : message.delay_seconds;
  active.delays = [...active.delays, Math.max(0, seconds)].slice(-9);
  const sorted = [...active.delays].sort((a, b) => a - b);
  $("delay").textContent = `${sorted[Math.floor(sorted.length / 2)].toFixed(2)} s`;
}

function showRatio(message) {
  if (!active) return;
  active.ratios.push([message.cost_ratio, message.halts.length]);
  const tokens = active.ratios.reduce((sum, [, count]) => sum + count, 0);
  $("ratio").textContent = (active.ratios.reduce((sum, [r, count]) => sum + r * count, 0) / tokens).toFixed(2);
}

// ---- the microphone

async function toggleMicrophone() {
  if (active) return stopStream();
  showError("");
  setStatus("Waiting for the microphone …");
  $("player").hidden = true;
  $("player").pause();
  $("speak").disabled = true;
  try {
    const microphone = await Microphone.open(onAudio, onMicrophoneLost);
    startStream(new LiveBuffer(microphone.rate), microphone, `speech-${timestamp()}`);
  } catch (error) {
    setStatus("");
    showError(error.message);
  } finally {
    $("speak").disabled = false;
  }
}

function onAudio(samples) {
  if (!active || active.buffer.closed) return;
  active.buffer.append(samples);
  active.began ??= performance.now() / 1000 - active.buffer.end / active.buffer.rate;
  view.follow();
  showLevel(loudness(samples));
  active.stream.pump();
}

function onMicrophoneLost() {
  showError("The microphone was disconnected; the text so far is complete.");
  stopStream();
}

/** The first call ends the audio and waits for the last words; the second does not wait. */
function stopStream() {
  if (!active) return;
  if (active.stopping) return active.stream.end("done", "Stopped.");
  active.stopping = true;
  active.microphone?.close();
  $("player").pause();
  if (active.buffer instanceof LiveBuffer) active.buffer.closed = true;
  else active.stream.end("done", "Stopped.");
  showLevel(0);
  setStatus("Finishing …");
  active?.stream.pump();
  updateControls();
}

// ---- recordings

async function openRecording(file) {
  if (active || !file) return;
  showError("");
  setStatus(`Reading ${file.name} …`);
  try {
    const { samples, rate } = await readRecording(file);
    const buffer = new FileBuffer(samples, rate);
    if (player.src) URL.revokeObjectURL(player.src);
    player.src = URL.createObjectURL(file);
    player.hidden = false;
    const play = $("along").checked && (await startPlayer());
    if (play) buffer.waitForPlayer();
    startStream(buffer, null, file.name.replace(/\.[^.]*$/, "") || "recording");
    if (play) active.began = performance.now() / 1000 - player.currentTime;
  } catch (error) {
    setStatus("");
    showError(error.message);
  }
}

const player = $("player");

async function startPlayer() {
  try {
    await player.play();
    return true;
  } catch {
    return false; // the browser plays audio only after a user gesture
  }
}

/** While a recording plays, its audio is sent as far as it has been played. */
function followPlayer() {
  const { buffer } = active ?? {};
  if (buffer instanceof FileBuffer && !buffer.closed) {
    const from = buffer.end;
    buffer.playUpTo(player.currentTime);
    if (player.ended) buffer.playOut();
    active.began = performance.now() / 1000 - player.currentTime;
    if (buffer.end > from) showLevel(loudness(buffer.read(buffer.end - buffer.rate / 25, buffer.end)));
    active.stream.pump();
  }
}

player.onended = () => {
  if (active?.buffer instanceof FileBuffer) {
    active.buffer.playOut();
    active.stream.pump();
  }
  transcript.highlight(null);
};
player.onerror = () => active?.buffer instanceof FileBuffer && player.onended();
setInterval(() => player.paused || followPlayer(), 40);

function playFrom(word) {
  if (player.hidden || active || !word.dataset.start) return;
  player.currentTime = Number(word.dataset.start);
  player.play();
}

$("text").onclick = ({ target }) => playFrom(target);
$("text").onkeydown = (event) => {
  if (event.key === "Enter" || event.key === " ") playFrom(event.target);
  else if (!transcript.moveFocus(event.target, event.key)) return;
  event.preventDefault();
};

// ---- the attention view

function draw() {
  const playing = !player.hidden && !player.paused && !player.ended;
  view.cursor = playing ? player.currentTime : null;
  if (playing) transcript.highlight(player.currentTime);
  else if (transcript.lit.size) transcript.highlight(null);
  let end = view.seconds;
  if (active?.buffer instanceof LiveBuffer || (active && !playing)) end = Math.max(end, view.span);
  else if (playing) end = Math.max(view.span, Math.min(view.seconds, player.currentTime + 0.4 * view.span));
  else end = Math.max(view.span, Number($("back").hidden ? end : $("back").value));
  view.draw(end);
  $("elapsed").textContent = clock(active ? active.buffer.end / active.buffer.rate : view.seconds);
}

let drawn = 0;

function tick(time) {
  const moves = active || !player.paused;
  if (moves && time - drawn >= (reducedMotion.matches ? 1000 : 30)) {
    draw();
    drawn = time;
  }
  requestAnimationFrame(tick);
}

$("back").oninput = draw;
new ResizeObserver(draw).observe($("canvas"));
view.dark.addEventListener("change", draw);

// ---- copy and download

function save(suffix, text, type) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([text], { type }));
  link.download = `${title}.${suffix}`;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
}

/** The local time as part of a file name. */
function timestamp() {
  const date = new Date();
  return new Date(date - 60000 * date.getTimezoneOffset()).toISOString().slice(0, 19).replace(/[:]/g, "").replace("T", "-");
}

$("save-txt").onclick = () => save("txt", toText(transcript.utterances()), "text/plain");
$("save-srt").onclick = () => save("srt", toSrt(transcript.utterances()), "application/x-subrip");
$("save-vtt").onclick = () => save("vtt", toVtt(transcript.utterances()), "text/vtt");
$("clear").onclick = () => {
  transcript.clear();
  view.reset(null);
  player.hidden = true;
  player.pause();
  $("back").hidden = true;
  setStatus("Press Speak, or drop a recording on this page.");
  updateControls();
  draw();
  $("speak").focus();
};
$("copy").onclick = async () => {
  const text = toText(transcript.utterances());
  try {
    await navigator.clipboard.writeText(text);
    setStatus("Copied.");
  } catch {
    const range = document.createRange(); // without https there is no clipboard: select the text instead
    range.selectNodeContents($("text"));
    getSelection().removeAllRanges();
    getSelection().addRange(range);
    setStatus("Selected: press Ctrl-C to copy.");
  }
};

// ---- models and tokens

let models = [];

/** Say what the chosen model recognises. */
function describeModel() {
  const model = models.find(({ id }) => id === $("model").value);
  const words = model?.vocabulary ? ` It recognises only these words: ${model.vocabulary.join(", ")}.` : "";
  $("about").textContent = model ? `${model.description ?? ""}${words}`.trim() : "";
  describeBudget(model);
}

async function listModels() {
  try {
    const refusal = await address.refusal();
    if (refusal === "token") return askForToken();
    const wanted = loadItem(localStorage, "model");
    models = refusal ? [] : await address.models();
    $("model").replaceChildren(...models.map(({ id }) => new Option(id, id, false, id === wanted)));
    describeModel();
    showError(refusal ? "The server does not answer; check that `headsync serve` is running." : "");
  } catch {
    showError("The server does not answer; check that `headsync serve` is running.");
  }
  updateControls();
}

function askForToken() {
  $("token-form").hidden = false;
  showError(address.token ? "The token is wrong." : "This server requires a token: the one it was started with.");
  $("token").focus();
}

$("token-form").onsubmit = async (event) => {
  event.preventDefault();
  address.token = $("token").value.trim();
  saveItem(sessionStorage, "token", address.token);
  $("token-form").hidden = true;
  $("token").value = "";
  showError("");
  await listModels();
  $("speak").focus();
};
$("model").onchange = () => {
  saveItem(localStorage, "model", $("model").value);
  describeModel();
};

function loadItem(storage, name) {
  try {
    return storage.getItem(`headsync.${name}`);
  } catch {
    return null; // private windows may forbid storage
  }
}

function saveItem(storage, name, value) {
  try {
    storage.setItem(`headsync.${name}`, value);
  } catch {} // the user is asked again next time
}

// ---- mouse, keyboard, drop

$("speak").onclick = toggleMicrophone;
$("choose").onclick = () => $("file").click();
$("file").onchange = () => {
  openRecording($("file").files[0]);
  $("file").value = "";
};
addEventListener("keydown", (event) => {
  if (event.key === "Escape" && active) stopStream();
});
addEventListener("dragover", (event) => {
  event.preventDefault();
  $("drop").hidden = active !== null;
});
addEventListener("dragleave", (event) => {
  if (!event.relatedTarget) $("drop").hidden = true;
});
addEventListener("drop", (event) => {
  event.preventDefault();
  $("drop").hidden = true;
  openRecording(event.dataTransfer.files[0]);
});

listModels();
updateControls();
draw();
requestAnimationFrame(tick);
