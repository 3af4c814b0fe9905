/** The messages of the protocol. wire.proto says what every field means. */

import { loadSync, type MethodDefinition, type ServiceDefinition } from "@grpc/proto-loader";
import { fileURLToPath } from "node:url";

import { WireError } from "./errors.js";

export interface Hello {
  task: number;
  heeded: number;
  uploads: string[];
  downloads: string[];
  protocol: number;
}

export interface Welcome {
  client: number;
  names: string[];
  shapes: { sizes: number[] }[];
  parameters: number;
  seed: number;
  task: number;
  upload: string;
  download: string;
  frameBytes: number;
  protocol: number;
}

export interface Refusal {
  reason: string;
  again: boolean;
  replaced: boolean;
  void: boolean;
  failed: boolean;
  ends: boolean;
}

/** How to train. Either steps or epochs is there; steps win. */
export interface Work {
  steps?: number;
  epochs?: number;
  batchSize: number;
  optimizer: string;
  lr: number;
  momentum: number;
  weightDecay: number;
  stream: number;
}

/** What is added to the loss. */
export interface Objective {
  proximal: number;
  cosine: number;
  l2: number;
}

export interface TaskMessage {
  number: number;
  version: number;
  count: number;
  work: Work;
  objective: Objective | null;
  candidateVersions: number[];
  candidateUse: string;
  questions: string[];
  trainable: string[];
  answered: number;
}

export interface ModelMessage {
  number: number;
  version: number;
  task: number;
  rebase: boolean;
}

/** Clients with the same `branch` share a model: so many `members`. */
export interface Membership {
  branch: number;
  version: number;
  members: number;
}

export interface Push {
  task: number;
  base: number;
  samples: number;
  steps: number;
  chosen?: number;
  answers: string;
  ready: boolean;
  encoding: string;
  accuracy?: number;
  loss?: number;
}

interface Kinds {
  hello: Hello;
  ready: object;
  push: Push;
  pull: object;
  leave: object;
  branch: object;
  welcome: Welcome;
  accepted: object;
  refusal: Refusal;
  task: TaskMessage;
  model: ModelMessage;
  report: { number: number; task: number };
  membership: Membership;
}

/** Of its kinds at most one is there. */
export interface Head extends Partial<Kinds> {
  size?: number;
  request?: number;
  answers?: number;
}

export interface Frame {
  head?: Head | null;
  data?: Uint8Array;
}

export interface Message {
  head: Head;
  body: Buffer;
}

const definition = loadSync(fileURLToPath(new URL("../wire.proto", import.meta.url)), {
  longs: Number,
  defaults: true,
  oneofs: false,
});
export const service = definition["polytempo.Federation"] as ServiceDefinition;
export const SESSION = service["Session"] as MethodDefinition<Frame, Frame>;
export const ENROL = service["Enrol"] as MethodDefinition<
  { code: string; tokenSha256: string },
  { client: number; expires: number }
>;

export const PROTOCOL = 1;
export const FRAME_BYTES = 262_144;

/** A message, cut into frames. */
export function* frames(head: Head, body: Uint8Array, most: number): Generator<Frame> {
  yield { head: { ...head, size: body.length }, data: body.subarray(0, most) };
  for (let begin = most; begin < body.length; begin += most) {
    yield { data: body.subarray(begin, begin + most) };
  }
}

/** Puts frames together. */
export class Assembler {
  #head: Head | undefined;
  #parts: Uint8Array[] = [];
  #missing = 0;

  /** The message that this frame completes. */
  add(frame: Frame): Message | undefined {
    const data = frame.data ?? new Uint8Array();
    if (frame.head) {
      if (this.#head) throw new WireError("a message began before the last one was whole");
      this.#head = frame.head;
      this.#missing = frame.head.size ?? 0;
    } else if (!this.#head || data.length === 0) {
      throw new WireError("a frame has neither a head nor data of a message");
    }
    if (data.length > this.#missing) throw new WireError("a message has more data than its head says");
    this.#parts.push(data);
    this.#missing -= data.length;
    if (this.#missing > 0) return undefined;
    const whole = { head: this.#head, body: Buffer.concat(this.#parts) };
    this.#head = undefined;
    this.#parts = [];
    return whole;
  }
}
