// What an admin may do, always with a question first.

import { find, make } from "./dom.js";
import { compared, doing, end, note, since } from "./clients.js";
import { NOTHING, ago, count, percent } from "./words.js";

const NUMBER = { type: "number", step: 1, required: true };

let act = null; // (path, body) => what the server answered; throws its words

export function useActions(function_) {
  act = function_;
}

const dialog = () => find("dialog");

function open(title, ...content) {
  dialog().replaceChildren(make("h2", { id: "dialog-title" }, title), ...content);
  if (!dialog().open) dialog().showModal();
}

const close = () => dialog().close();

const buttons = (...them) => make("p", { class: "buttons" }, ...them);

const button = (words, click, kind = "") => make("button", { type: "button", class: kind || null, click }, words);

export function manageClient(row, at) {
  const facts = {
    Doing: doing(row),
    Updates: count(row.updates),
    "Last update": ago(since(row, at)),
    Accuracy: percent(row.accuracy),
    "Used / alone": compared(row),
    Cluster: row.cluster ?? NOTHING,
    "Access ends": end(row, at),
    ...(row.quarantined ? { Quarantine: note(row) } : {}),
  };
  const rows = Object.entries(facts).flatMap(([name, value]) => [make("dt", {}, name), make("dd", {}, value)]);
  const back = () => manageClient(row, at);
  const choices = [
    row.quarantined ? button("Release…", () => askRelease(row.client, back)) : null,
    button("New code…", () => askCode(row.client, back)),
    button("Revoke…", () => askRevoke(row.client, back), "danger"),
    button("Close", close),
  ];
  open(`Client ${row.client}`, make("dl", {}, ...rows), buttons(...choices));
}

function askRevoke(client, back) {
  ask({
    title: `Revoke client ${client}?`,
    words: "Its token counts no more, its session ends at once, its codes are void. A new code lets it come back.",
    verb: "Revoke",
    kind: "danger",
    path: `api/clients/${client}/revoke`,
    after: `Client ${client} is revoked.`,
    back,
  });
}

function askRelease(client, back) {
  ask({
    title: `Release client ${client} from quarantine?`,
    words: "It may connect again and its updates count. Find out first why its messages were refused.",
    verb: "Release",
    path: `api/clients/${client}/release`,
    after: `Client ${client} is released.`,
    back,
  });
}

export function askReload() {
  ask({
    title: "Reload the settings?",
    words: "The server reads service.toml, its certificate and who may talk to it again. Clients notice nothing.",
    verb: "Reload",
    path: "api/reload",
    after: "The settings were read again.",
    back: close,
  });
}

export function askCode(client = null, back = close) {
  const number = make("input", { ...NUMBER, min: 0, max: 999999999, id: "code-client", value: client ?? "" });
  const hours = make("input", { ...NUMBER, min: 1, max: 8760, id: "code-hours", value: 24 });
  const days = make("input", { ...NUMBER, min: 1, max: 36500, id: "code-days", required: null, placeholder: "for ever" });
  const problem = make("p", { class: "problem", role: "alert" });
  const submit = async (event) => {
    event.preventDefault();
    const asked = { client: Number(number.value), hours: Number(hours.value) };
    const made = await tried(problem, "api/codes", days.value ? { ...asked, days: Number(days.value) } : asked);
    if (made) showCode(made);
  };
  const form = make("form", { submit });
  form.append(
    make("p", {}, "The client uses it once, with polytempo enrol, and gets a token that nobody else has seen."),
    make("label", { for: "code-client" }, "Client"),
    number,
    make("label", { for: "code-hours" }, "Valid for hours"),
    hours,
    make("label", { for: "code-days" }, "Its token lasts days"),
    days,
    problem,
    buttons(make("button", { class: "primary" }, "Make the code"), button("Cancel", back)),
  );
  open("New one-time code", form);
}

function showCode(made) {
  const code = make("output", { class: "code" }, made.code);
  const copy = button("Copy", async () => {
    try {
      await navigator.clipboard.writeText(made.code);
      copy.textContent = "Copied";
    } catch {
      getSelection().selectAllChildren(code);
    }
  });
  const words = `Hand it over on a channel that you trust. It is shown only now and counts for ${made.hours} hours.`;
  const advice = make("p", { class: "muted" }, words);
  open(`Code for client ${made.client}`, code, advice, buttons(copy, button("Done", close, "primary")));
}

function ask({ title, words, verb, path, after, back, kind = "primary" }) {
  const problem = make("p", { class: "problem", role: "alert" });
  const yes = button(verb, async () => {
    yes.disabled = true;
    if (await tried(problem, path, null)) open(after, buttons(button("Close", close, "primary")));
    else yes.disabled = false;
  }, kind);
  open(title, make("p", {}, words), problem, buttons(yes, button("Cancel", back)));
}

async function tried(problem, path, body) {
  problem.textContent = "";
  try {
    return await act(path, body);
  } catch (error) {
    problem.textContent = error.message;
    return null;
  }
}
