/** What is handed in: checked, and encoded if that was agreed. */

import { writeBody, type Entry, type Tensors } from "./bodies.js";
import { encode } from "./encodings.js";
import { NamesError, NotFiniteError, ShapeError } from "./errors.js";
import type { Task } from "./tasks.js";

/** What a question is answered with. An object is a table; a Float32Array an array of numbers. */
export type Answer = number | string | boolean | null | Float32Array | Answer[] | { [key: string]: Answer };

/** What training came to. */
export interface Result {
  /** Those that the task does not train may be missing. */
  tensors: Tensors;
  /** Rows that the client has to train on. */
  samples: number;
  /** Those that were done, if not all. */
  steps?: number;
  /** Which candidate the training started from. */
  chosen?: number;
  /** To the task's questions. */
  answers?: Record<string, Answer>;
  /** Of the model that was received, on data of the client's own: shown to the operator. */
  accuracy?: number;
  loss?: number;
}

export interface Upload {
  body: Buffer;
  encoding: string;
  answers: string;
  /** The server has it. */
  confirm: () => void;
}

/** Of one client, which adds to each update what the encoding of the last ones left out. */
export class Uploads {
  encoding = "";
  #left: Tensors = {};

  make(task: Task, result: Result): Upload {
    const trained = checked(task, result.tensors);
    const arrays: Float32Array[] = [];
    const answers = JSON.stringify({ dict: pairs(result.answers ?? {}, arrays) });
    const extra = Object.fromEntries(
      arrays.map((data, i): [string, Entry] => [`answer/${i}`, { dtype: "F32", shape: [data.length], data }]),
    );
    const encoding = this.encoding;
    const { entries, confirm } = encoding ? this.#encoded(task, trained, encoding) : whole(task, trained);
    return { body: writeBody({ ...entries, ...extra }), encoding, answers: result.answers ? answers : "", confirm };
  }

  #encoded(task: Task, trained: Tensors, encoding: string): { entries: Record<string, Entry>; confirm: () => void } {
    const places = Object.keys(trained).flatMap((name) => placesOf(task, name));
    const left = (name: string, i: number): number => this.#left[name]?.[i] ?? 0;
    const difference = Float32Array.from(
      places,
      ([name, i]) => trained[name]![i]! - task.start[name]![i]! + left(name, i),
    );
    const { entries, arrives } = encode(encoding, difference);
    const confirm = (): void => {
      places.forEach(([name, i], k) => {
        (this.#left[name] ??= new Float32Array(task.schema.size(name)))[i] = difference[k]! - arrives[k]!;
      });
    };
    return { entries, confirm };
  }
}

/** Where a tensor trains. */
function placesOf(task: Task, name: string): [string, number][] {
  const mask = task.trains(name);
  const places: [string, number][] = [];
  for (let i = 0; i < task.schema.size(name); i++) {
    if (mask === true || (mask && mask[i])) places.push([name, i]);
  }
  return places;
}

function whole(task: Task, trained: Tensors): { entries: Record<string, Entry>; confirm: () => void } {
  const entries = Object.entries(trained).map(([name, data]): [string, Entry] => [
    name,
    { dtype: "F32", shape: task.schema.shapes.get(name) ?? [], data },
  ]);
  return { entries: Object.fromEntries(entries), confirm: () => undefined };
}

/** The tensors that the task trains, in the model's order. */
function checked(task: Task, tensors: Tensors): Tensors {
  const { names } = task.schema;
  const strange = Object.keys(tensors).find((name) => !names.includes(name));
  if (strange !== undefined) throw new NamesError(`${strange} is no tensor of the model: ${names.join(", ")}.`);
  const trained = names.filter((name) => task.trains(name));
  for (const name of trained) {
    const [data, size] = [tensors[name], task.schema.size(name)];
    if (!data) throw new NamesError(`${name} is missing; the task trains ${trained.join(", ")}.`);
    if (data.length !== size) throw new ShapeError(`${name} has ${data.length} numbers; expected ${size}.`);
    if (!data.every(Number.isFinite)) {
      throw new NotFiniteError(`${name} holds NaN or Inf, and was not sent. Look at the learning rate and the data.`);
    }
  }
  return Object.fromEntries(trained.map((name) => [name, Float32Array.from(tensors[name]!)]));
}

function pairs(answers: Record<string, Answer>, arrays: Float32Array[]): [string, unknown][] {
  return Object.entries(answers).map(([key, answer]) => [key, packed(answer, arrays)]);
}

/** An answer as JSON; arrays of numbers go to the body. */
function packed(answer: Answer, arrays: Float32Array[]): unknown {
  if (answer instanceof Float32Array) {
    return { array: arrays.push(answer) - 1, type: "torch.float32", shape: [answer.length] };
  }
  if (Array.isArray(answer)) return answer.map((one) => packed(one, arrays));
  return answer !== null && typeof answer === "object" ? { dict: pairs(answer, arrays) } : answer;
}
