// The delay budget of a stream: settings of the first message, whose names are the ids of the inputs.

const NAMES = ["lookahead_ms", "threshold", "pause_seconds"];
const input = (name) => document.getElementById(name);

/** The settings that the user has chosen; null if none. */
export function chosenBudget() {
  const chosen = NAMES.filter((name) => input(name).value).map((name) => [name, Number(input(name).value)]);
  return chosen.length ? Object.fromEntries(chosen) : null;
}

/** Show what applies where nothing is chosen. */
export function describeBudget(model) {
  for (const name of NAMES) input(name).placeholder = model?.budget?.[name] ?? "";
}

export function disableBudget(disabled) {
  for (const name of NAMES) input(name).disabled = disabled;
}
