/** What a server sends, as a client sees it: tasks and models, as named vectors. */
import { type Tensors } from "./bodies.js";
import type { Message, ModelMessage, Objective, TaskMessage, Welcome, Work } from "./messages.js";
/** What the server's model looks like. */
export declare class Schema {
    readonly names: readonly string[];
    readonly shapes: ReadonlyMap<string, readonly number[]>;
    /** Names of what is sent and handed in, but is no parameter: BatchNorm's statistics, for example. */
    readonly buffers: Set<string>;
    constructor(welcome: Pick<Welcome, "names" | "shapes" | "parameters">);
    /** How many numbers a tensor has. */
    size(name: string): number;
    /** The tensors of a body whose names have this prefix; undefined if there are none. */
    read(found: Map<string, Float32Array>, prefix?: string): Tensors | undefined;
}
/** A model as the server sent it. */
export interface Model {
    tensors: Tensors;
    version: number;
}
/** What a look at the messages came to. */
export interface Look {
    /** What to go on from: what was given, or where the server has sent a newer model, that. */
    tensors: Tensors;
    /** Did a newer model come? */
    refreshed: boolean;
    /** Stop training: the server asks for what there is, or does not wait for this any longer. */
    stop: boolean;
}
/** Train from `tensors`, `look` between batches, and push the result. */
export declare class Task {
    #private;
    private readonly message;
    readonly schema: Schema;
    /** The model to start from, the client's own copy. */
    readonly tensors: Tensors;
    /** The server asks for what there is. */
    reported: boolean;
    /** The server waits for this no longer. */
    withdrawn: boolean;
    /** Number of the model that the training last started from. */
    base: number;
    /** Number of the last order that belongs to this task. */
    heeded: number;
    /** The model that the training last started from. */
    start: Tensors;
    constructor(message: TaskMessage, body: Buffer, schema: Schema);
    get number(): number;
    get version(): number;
    /** How many tasks the client was given before. */
    get count(): number;
    get work(): Work;
    /** What is added to the loss (`addObjective`); null: nothing, unless there is `linear`. */
    get objective(): Objective | null;
    /** What an update is asked beside training. */
    get questions(): readonly string[];
    /** What to do with `vectors("candidate/0/")` and so on: `best`, `mixture`, or nothing. */
    get candidateUse(): string;
    /** The client's last task whose result was taken. */
    get answered(): number;
    /** Local steps, for so many rows. */
    stepsFor(rows: number): number;
    /** Further vectors of the model's shape: `anchor/`, `linear/`, `candidate/0/`. Undefined if there are none. */
    vectors(prefix: string): Tensors | undefined;
    /** Which numbers of a tensor train: all (true), none (false), or those that are 1. */
    trains(name: string): boolean | Float32Array;
    /** Let messages in. Call it between batches with what is trained, and go on with what it returns. */
    look(tensors: Tensors): Promise<Look>;
    /** The server has sent a newer model. */
    refresh(message: ModelMessage, body: Buffer): void;
    /** The server asks for what there is. */
    report(number: number): void;
}
export declare function modelOf({ head, body }: Message, schema: Schema): Model;
