// The delay budget of a stream: settings of the first message, whose names are the ids of the inputs.

const NAMES = ["lookahead_ms", "threshold", "pause_seconds", "centre_ms", "right_ms"];
const input = (name) => document.getElementById(name);

/** The settings that the user has chosen; null if none. */
export function chosenBudget() {
  const given = NAMES.filter((name) => input(name).value && !input(name).parentElement.hidden);
  const chosen = given.map((name) => [name, Number(input(name).value)]);
  return chosen.length ? Object.fromEntries(chosen) : null;
}

/** Show what applies where nothing is chosen; hide what this model does not let a stream choose. */
export function describeBudget(model) {
  for (const name of NAMES) {
    const own = model?.budget?.[name];
    input(name).placeholder = own ?? "";
    input(name).parentElement.hidden = Boolean(model) && own === undefined;
  }
}

export function disableBudget(disabled) {
  for (const name of NAMES) input(name).disabled = disabled;
}
