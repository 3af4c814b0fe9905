/** A client's open task in a file, so that a client that was off goes on with it. */

import { closeSync, fsyncSync, openSync, readFileSync, renameSync, rmSync, writeSync } from "node:fs";

import { KeepError } from "./errors.js";
import { SESSION, type Message, type TaskMessage, type Welcome } from "./messages.js";

/** The message that brought a task, and what the server had said before. */
export interface Kept {
  welcome: Welcome;
  task: TaskMessage;
  body: Buffer;
}

const SAME = ["client", "names", "shapes", "seed"] as const;

/** Is the kept task the one that the server waits for? */
export function isOpen(kept: Kept, welcome: Welcome): boolean {
  const same = SAME.every((name) => JSON.stringify(kept.welcome[name]) === JSON.stringify(welcome[name]));
  return same && kept.task.number === welcome.task;
}

/** Whole or not at all; only its owner can read it. */
export function writeKept(path: string, welcome: Welcome, { head, body }: Message): void {
  const about = [{ welcome, answers: 0 }, head].map((one) => SESSION.responseSerialize({ head: one }).toString("base64"));
  try {
    writeWhole(path, Buffer.concat([Buffer.from(`${JSON.stringify([...about, body.length])}\n`), body]));
  } catch (error) {
    throw new KeepError(
      `The task cannot be kept in ${path}: ${(error as Error).message}. Make room, or make the folder writable. ` +
        "The task is open all the same, and nothing that the server acknowledged is lost.",
    );
  }
}

/** The task in the file; undefined if there is none that can be read. */
export function readKept(path: string): Kept | undefined {
  try {
    const whole = readFileSync(path);
    const end = whole.indexOf("\n");
    const [said, ordered, length] = JSON.parse(whole.toString("utf8", 0, end)) as [string, string, number];
    const [welcome, task] = [said, ordered].map((text) => {
      return SESSION.responseDeserialize(Buffer.from(text, "base64")).head;
    });
    const body = whole.subarray(end + 1);
    if (!welcome?.welcome || !task?.task || body.length !== length) return undefined;
    return { welcome: welcome.welcome, task: task.task, body };
  } catch {
    return undefined;
  }
}

/** There is nothing to go on with. */
export function forgetKept(path: string): void {
  rmSync(path, { force: true });
}

export function writeWhole(path: string, content: Uint8Array): void {
  const part = `${path}.part`;
  rmSync(part, { force: true });
  const file = openSync(part, "wx", 0o600);
  try {
    for (let done = 0; done < content.length; ) done += writeSync(file, content, done);
    fsyncSync(file);
  } finally {
    closeSync(file);
  }
  renameSync(part, path);
}
