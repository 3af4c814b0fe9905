/** What a server sends, as a client sees it: tasks and models, as named vectors. */
import { setImmediate } from "node:timers/promises";
import { readBody } from "./bodies.js";
import { WireError } from "./errors.js";
/** What the server's model looks like. */
export class Schema {
    names;
    shapes;
    /** Names of what is sent and handed in, but is no parameter: BatchNorm's statistics, for example. */
    buffers = new Set();
    constructor(welcome) {
        this.names = welcome.names;
        this.shapes = new Map(welcome.names.map((name, i) => [name, welcome.shapes[i]?.sizes ?? []]));
        let first = 0;
        for (const name of this.names) {
            if (first >= welcome.parameters)
                this.buffers.add(name);
            first += this.size(name);
        }
    }
    /** How many numbers a tensor has. */
    size(name) {
        return (this.shapes.get(name) ?? []).reduce((product, size) => product * size, 1);
    }
    /** The tensors of a body whose names have this prefix; undefined if there are none. */
    read(found, prefix = "") {
        if (!this.names.some((name) => found.has(prefix + name)))
            return undefined;
        return Object.fromEntries(this.names.map((name) => {
            const data = found.get(prefix + name);
            if (data?.length !== this.size(name))
                throw new WireError(`${prefix}${name} is missing, or has another size`);
            return [name, data];
        }));
    }
}
/** Train from `tensors`, `look` between batches, and push the result. */
export class Task {
    message;
    schema;
    /** The model to start from, the client's own copy. */
    tensors;
    /** The server asks for what there is. */
    reported = false;
    /** The server waits for this no longer. */
    withdrawn = false;
    /** Number of the model that the training last started from. */
    base;
    /** Number of the last order that belongs to this task. */
    heeded;
    /** The model that the training last started from. */
    start;
    #news = [];
    #found;
    constructor(message, body, schema) {
        this.message = message;
        this.schema = schema;
        this.#found = readBody(body);
        this.start = modelIn(this.#found, schema);
        this.tensors = copied(this.start);
        this.base = this.heeded = message.number;
    }
    get number() {
        return this.message.number;
    }
    get version() {
        return this.message.version;
    }
    /** How many tasks the client was given before. */
    get count() {
        return this.message.count;
    }
    get work() {
        return this.message.work;
    }
    /** What is added to the loss (`addObjective`); null: nothing, unless there is `linear`. */
    get objective() {
        return this.message.objective;
    }
    /** What an update is asked beside training. */
    get questions() {
        return this.message.questions;
    }
    /** What to do with `vectors("candidate/0/")` and so on: `best`, `mixture`, or nothing. */
    get candidateUse() {
        return this.message.candidateUse;
    }
    /** The client's last task whose result was taken. */
    get answered() {
        return this.message.answered;
    }
    /** Local steps, for so many rows. */
    stepsFor(rows) {
        const { steps, epochs, batchSize } = this.work;
        return steps ?? (epochs ?? 0) * Math.ceil(rows / batchSize);
    }
    /** Further vectors of the model's shape: `anchor/`, `linear/`, `candidate/0/`. Undefined if there are none. */
    vectors(prefix) {
        return this.schema.read(this.#found, prefix);
    }
    /** Which numbers of a tensor train: all (true), none (false), or those that are 1. */
    trains(name) {
        const layers = this.message.trainable;
        if (layers.length && !layers.some((layer) => name === layer || name.startsWith(`${layer}.`)))
            return false;
        const mask = this.#found.get(`mask/${name}`);
        if (!mask)
            return true;
        return mask.some((moves) => moves !== 0) && mask;
    }
    /** Let messages in. Call it between batches with what is trained, and go on with what it returns. */
    async look(tensors) {
        await setImmediate();
        const last = this.#news.at(-1);
        if (last) {
            const moved = this.#news.every((model) => model.rebase) ? this.start : undefined;
            tensors = moved ? plus(last.tensors, minus(tensors, moved)) : copied(last.tensors);
            [this.start, this.base, this.#news] = [last.tensors, last.number, []];
        }
        return { tensors, refreshed: last !== undefined, stop: this.reported || this.withdrawn };
    }
    /** The server has sent a newer model. */
    refresh(message, body) {
        this.#news.push({ ...message, tensors: modelIn(readBody(body), this.schema) });
        this.heeded = message.number;
    }
    /** The server asks for what there is. */
    report(number) {
        this.reported = true;
        this.heeded = number;
    }
}
export function modelOf({ head, body }, schema) {
    return { tensors: modelIn(readBody(body), schema), version: head.model?.version ?? 0 };
}
function modelIn(found, schema) {
    const tensors = schema.read(found);
    if (!tensors)
        throw new WireError("a body holds no model");
    return tensors;
}
function copied(tensors) {
    return Object.fromEntries(Object.entries(tensors).map(([name, data]) => [name, data.slice()]));
}
function plus(left, right) {
    return Object.fromEntries(Object.entries(left).map(([name, data]) => [name, data.map((value, i) => value + right[name][i])]));
}
function minus(left, right) {
    return Object.fromEntries(Object.entries(right).map(([name, data]) => [name, data.map((value, i) => (left[name]?.[i] ?? value) - value)]));
}
