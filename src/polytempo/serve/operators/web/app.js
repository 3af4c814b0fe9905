// The operators' page: sign in, ask the server every two seconds, show what it says. The token stays in this tab.

import { askCode, askReload, manageClient, useActions } from "./dialogs.js";
import { emptyTable, makeTable, showClients } from "./clients.js";
import { find, say, show } from "./dom.js";
import { forgetFigures, showFigures } from "./figures.js";
import * as notes from "./notes.js";
import { brief, clock, duration, isNumber } from "./words.js";

const EVERY = 2000, PATIENCE = 15000, OLD = 6; // ms, ms (a wrong token is answered late), s
const TOKEN = "polytempo-token";

const session = { token: sessionStorage.getItem(TOKEN), status: null, at: null, lostSince: null, timer: 0 };
let asking = false;

// Asking.

async function request(path, { body, method = "GET" } = {}) {
  const answer = await fetch(path, {
    method,
    headers: { Authorization: `Bearer ${session.token}` },
    body: body ? JSON.stringify(body) : undefined,
    signal: AbortSignal.timeout(PATIENCE),
    cache: "no-store",
    credentials: "omit",
  });
  const content = await answer.json().catch(() => ({}));
  if (answer.ok) return content;
  throw Object.assign(new Error(content.error ?? `The server answered ${answer.status}.`), { status: answer.status });
}

async function act(path, body) {
  const done = await request(path, { body, method: "POST" });
  notes.add(`You: ${done.done}${done.client === undefined ? "" : ` client ${done.client}`}`);
  ask();
  return done;
}

async function ask() {
  clearTimeout(session.timer);
  if (!session.token || asking || document.hidden) return;
  asking = true;
  const { token } = session;
  const answer = await request("api/status").catch((error) => ({ error }));
  asking = false;
  if (session.token !== token) return;
  session.timer = setTimeout(ask, EVERY);
  if (answer.error?.status === 401) signOut("No operator has this token: it is wrong, was revoked, or has expired.");
  else if (answer.error) lost(answer.error);
  else take(answer);
}

function take({ operator, role, now, status: sent }) {
  const status = { clients: [], branches: {}, refusals: {}, ...sent };
  found();
  if (session.status === null) notes.begin(status);
  else notes.compare(session.status, status);
  Object.assign(session, { status, at: { now, uptime: status.uptime + Math.max(now - status.written, 0) } });
  document.body.classList.toggle("is-admin", role === "admin");
  for (const button of [find("new-code"), find("reload")]) show(button, role === "admin");
  say(find("operator"), `${operator} · ${role}`);
  enter();
  say(find("uptime"), `${status.strategy ?? ""} · up ${duration(status.uptime)}${certificate(status)}`);
  tell(now - status.written);
  showAll();
}

function showAll() {
  if (!session.status || find("app").hidden) return;
  showFigures(session.status);
  showClients(session.status.clients, session.at);
}

// How it is with the server.

function tell(age) {
  if (session.status.stopped) return state("Stopped", "bad", "The service has stopped. This page goes on trying.");
  if (age > OLD) {
    const words = `The server answers, but its host has written no status for ${duration(age)}. Its log says more.`;
    return state("Old", "warn", words);
  }
  if (session.status.journal_failing) {
    const words = "The server cannot write its journal, and takes nothing. Is its disk full? It goes on by itself.";
    return state("Not writing", "bad", words);
  }
  if (session.status.access_problem) {
    const words = `The server cannot read who may talk to it, and lets nobody new in. ${session.status.access_problem}`;
    return state("Locked", "bad", words);
  }
  if (session.status.role === "standby") {
    const leader = session.status.servers.find((one) => one.role === "leader");
    const words = `${leader ? leader.address : "No server"} leads. This one reads along, and takes over when it has to.`;
    return state("Standing by", "warn", words);
  }
  if (session.status.draining) return state("Draining", "warn", "The server finishes what it has, and then it stops.");
  return state("Live", "good", "");
}

function lost(error) {
  if (session.lostSince === null) {
    session.lostSince = Date.now();
    notes.add("The server cannot be reached", "bad");
  }
  const restarting = session.status?.draining || session.status?.stopped;
  const what = restarting ? "The server was stopping, and has not answered" : "The server has not been reached";
  const why = error.status ? ` It says: ${error.message}` : "";
  const since = clock(new Date(session.lostSince));
  const words = `${what} since ${since}. What you see is from then; this page goes on trying.`;
  state(restarting ? "Restarting" : "Unreachable", "bad", words + why);
  if (!session.status) signInProblem("The server cannot be reached. Is it running?");
}

function found() {
  if (session.lostSince === null) return;
  notes.add(`The server answers again, after ${duration((Date.now() - session.lostSince) / 1000)}`);
  session.lostSince = null;
}

function state(word, kind, notice) {
  const pill = find("state");
  say(pill, word);
  pill.className = `pill ${kind}`;
  const line = find("notice");
  say(line, notice);
  line.className = `notice ${kind}`;
  show(line, Boolean(notice));
  find("board").classList.toggle("stale", !["Live", "Draining", "Locked", "Not writing"].includes(word));
  document.title = word === "Live" ? "Polytempo" : `${word} · Polytempo`;
}

// Signing in and out.

function enter() {
  if (!find("app").hidden) return;
  show(find("login"), false);
  show(find("app"), true);
}

function signOut(problem = "") {
  clearTimeout(session.timer);
  sessionStorage.removeItem(TOKEN);
  Object.assign(session, { token: null, status: null, lostSince: null });
  document.body.classList.remove("is-admin");
  if (find("dialog").open) find("dialog").close();
  find("dialog").replaceChildren();
  notes.forget();
  forgetFigures();
  emptyTable();
  show(find("app"), false);
  show(find("login"), true);
  signInProblem(problem);
  find("token").value = "";
  find("token").focus();
}

function signInProblem(words) {
  say(find("login-problem"), words);
  find("login-button").disabled = false;
}

async function signIn(event) {
  event.preventDefault();
  session.token = find("token").value.trim();
  find("login-button").disabled = true;
  say(find("login-problem"), "");
  if (/[^\x21-\x7e]/.test(session.token)) {
    signOut("A token is one word of plain letters, digits and signs.");
    return;
  }
  sessionStorage.setItem(TOKEN, session.token);
  await ask();
  find("login-button").disabled = false;
}

function certificate(status) {
  if (!isNumber(status.certificate_expires)) return "";
  const mutual = status.mutual ? " · mTLS" : "";
  return `${mutual} · certificate ends in ${brief(status.certificate_expires - status.written)}`;
}

function begin() {
  useActions(act);
  makeTable((client) => {
    const row = session.status.clients.find((one) => one.client === client);
    if (row) manageClient(row, session.at);
  });
  notes.forget();
  find("login-form").addEventListener("submit", signIn);
  find("sign-out").addEventListener("click", () => signOut());
  find("new-code").addEventListener("click", () => askCode());
  find("reload").addEventListener("click", askReload);
  document.addEventListener("visibilitychange", ask);
  addEventListener("resize", showAll);
  show(find("login"), !session.token);
  if (session.token) ask();
  else find("token").focus();
}

begin();
