/** What is handed in: checked, and encoded if that was agreed. */
import { type Tensors } from "./bodies.js";
import type { Task } from "./tasks.js";
/** What a question is answered with. An object is a table; a Float32Array an array of numbers. */
export type Answer = number | string | boolean | null | Float32Array | Answer[] | {
    [key: string]: Answer;
};
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
export declare class Uploads {
    #private;
    encoding: string;
    make(task: Task, result: Result): Upload;
}
