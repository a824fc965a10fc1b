// Subtitle files, with the same rules as `headsync transcribe --format`.

const LINE_CHARACTERS = 42; // the usual limit of subtitle guidelines
const CUE_SECONDS = 6; // longest cue
const PAUSE_SECONDS = 1; // a pause of this length ends a cue

export function toText(utterances) {
  return utterances.map((words) => `${join(words)}\n`).join("");
}

export function toSrt(utterances) {
  const cues = utterances.flatMap(cut).map((words, n) => {
    return `${n + 1}\n${clock(words[0].start_seconds, ",")} --> ${clock(last(words).end_seconds, ",")}\n${join(words)}\n`;
  });
  return cues.join("\n");
}

export function toVtt(utterances) {
  const cues = utterances.flatMap(cut).map((words) => {
    const text = join(words).replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;");
    return `\n${clock(words[0].start_seconds, ".")} --> ${clock(last(words).end_seconds, ".")}\n${text}\n`;
  });
  return ["WEBVTT\n", ...cues].join("");
}

/** Cues that fit one line, split at pauses. */
function cut(words) {
  const cues = [];
  for (const word of words) {
    const cue = last(cues);
    if (cue && fits(cue, word)) cue.push(word);
    else cues.push([word]);
  }
  return cues;
}

function fits(cue, word) {
  const characters = cue.reduce((sum, earlier) => sum + earlier.text.length + 1, 0) + word.text.length;
  const pause = word.start_seconds - last(cue).end_seconds;
  return (
    characters <= LINE_CHARACTERS && pause < PAUSE_SECONDS && word.end_seconds - cue[0].start_seconds <= CUE_SECONDS
  );
}

function clock(seconds, point) {
  const all = Math.round(seconds * 1000);
  const two = (number) => String(number).padStart(2, "0");
  const minutes = Math.floor(all / 60000);
  const rest = `${two(Math.floor((all % 60000) / 1000))}${point}${String(all % 1000).padStart(3, "0")}`;
  return `${two(Math.floor(minutes / 60))}:${two(minutes % 60)}:${rest}`;
}

function join(words) {
  return words.map((word) => word.text).join(" ");
}

function last(list) {
  return list[list.length - 1];
}
