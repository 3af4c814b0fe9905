/** A client of a federation: tasks in, updates out. */
import { readFileSync } from "node:fs";
import { checkEncoding } from "./encodings.js";
import { NotFiniteError, PolytempoError, RefusedError, TokenError } from "./errors.js";
import { Connection } from "./connection.js";
import { forgetKept, isOpen, readKept, writeKept } from "./keep.js";
import { PROTOCOL } from "./messages.js";
import { modelOf, Schema, Task } from "./tasks.js";
import { Uploads } from "./updates.js";
/** After so many refused updates in a row a client sends no more. */
const REFUSALS_IN_A_ROW = 5;
export class Client {
    options;
    #connection;
    #uploads = new Uploads();
    #log;
    #waiting = new Set();
    #welcome;
    #schema;
    #task;
    #kept;
    #keepError;
    #sessions = 0;
    /** It begins at once, and tries for as long as it is not closed. */
    constructor(options) {
        this.options = options;
        if (options.upload)
            checkEncoding(options.upload);
        if (options.download && !options.upload)
            throw new PolytempoError("download needs an encoding of updates: upload.");
        this.#log = options.log ?? (() => undefined);
        this.#connection = new Connection(options, tokenIn(options.token), {
            hello: () => this.#hello(),
            take: (message) => this.#take(message),
            failed: () => this.#changed(),
            log: this.#log,
        });
        this.#kept = options.keep === undefined ? undefined : readKept(options.keep);
        this.#connection.open();
    }
    /** Which client this is, and what the server's model looks like, as soon as it has said so. */
    async welcome() {
        const { client, seed } = await this.#until(() => this.#welcome);
        return { client, seed, schema: this.#schema };
    }
    /** The model that this client would be served now, without training. */
    async pull() {
        return modelOf(await this.#connection.ask({ pull: {} }), this.#schema);
    }
    /** Which clients share a model with this one. */
    async branch() {
        return (await this.#connection.ask({ branch: {} })).head.membership;
    }
    /**
     * The next task, as soon as it is this client's turn. Where it cannot be kept in the file, that is an error once:
     * called again, it returns the task.
     */
    async task() {
        const task = await this.#next();
        const error = this.#keepError;
        this.#keepError = undefined;
        if (error)
            throw error;
        return task;
    }
    /** Hand in the result of a task; afterwards it is safe with the server. With `ready` the next task is asked for. */
    async push(task, result, ready = true) {
        if (task.withdrawn)
            throw new RefusedError("The server waits for this task no longer.", true);
        const { tensors: _, steps, answers: __, ...rest } = result;
        const { body, encoding, answers, confirm } = this.#uploads.make(task, result);
        const counts = { steps: steps ?? task.stepsFor(result.samples), base: task.base, task: task.number };
        await this.#connection.ask({ push: { ...rest, ...counts, answers, encoding, ready } }, body);
        confirm();
        if (this.#task === task)
            this.#drop(); // the answer brought no new one
    }
    /**
     * Carry out tasks until so many updates were pushed (default: for ever). An update that is refused, or holds NaN, is
     * begun anew; after five in a row it gives up.
     */
    async run(train, updates = Infinity) {
        let refused = 0;
        for (let done = 0; done < updates;) {
            const task = await this.#next();
            const result = await train(task);
            if (task.withdrawn)
                continue;
            try {
                await this.push(task, result, done + 1 < updates);
                [done, refused] = [done + 1, 0];
            }
            catch (error) {
                if (!(error instanceof RefusedError || error instanceof NotFiniteError))
                    throw error;
                this.#log("refused", { task: task.number, reason: error.message });
                if (task.withdrawn)
                    continue;
                if (!(error instanceof RefusedError && (error.isVoid || error.hasFailed)))
                    refused += 1;
                if (refused >= REFUSALS_IN_A_ROW)
                    throw error;
                await this.#beginAnew();
            }
        }
    }
    /** Say goodbye: the server counts this client out at once. */
    async leave() {
        this.#drop();
        await this.#connection.ask({ leave: {} });
        this.close();
    }
    /** End the session. The server waits a while for this client to come back. */
    close() {
        this.#connection.close();
    }
    async #next() {
        await this.welcome(); // it says whether a kept task is the next one
        for (;;) {
            const sessions = this.#sessions;
            if (!this.#task)
                await this.#connection.ask({ ready: {} });
            // A task that was ordered while the connection was broken has to be asked for anew.
            await this.#until(() => this.#task ?? (this.#sessions !== sessions || undefined));
            if (this.#task)
                return this.#task;
        }
    }
    async #beginAnew() {
        this.#drop();
        await this.#connection.ask({ leave: {} });
        await this.#connection.ask(this.#hello());
    }
    #hello() {
        const { upload, download } = this.options;
        const task = this.#task?.number ?? this.#kept?.task.number ?? 0;
        const heeded = this.#task?.heeded ?? task;
        const wishes = { uploads: upload ? [upload] : [], downloads: download ? [download] : [] };
        return { hello: { task, heeded, ...wishes, protocol: PROTOCOL } };
    }
    #take({ head, body }) {
        const open = this.#task;
        if (head.welcome) {
            this.#welcomed(head.welcome);
        }
        else if (head.task && head.task.number !== open?.number) {
            this.#task = new Task(head.task, body, this.#schema);
            this.#keep({ head, body });
        }
        else if (head.model && head.model.task === open?.number) {
            open.refresh(head.model, body);
        }
        else if (head.report && head.report.task === open?.number) {
            open.report(head.report.number);
        }
        this.#changed();
    }
    #welcomed(welcome) {
        [this.#welcome, this.#schema] = [welcome, new Schema(welcome)];
        this.#sessions += 1;
        this.#uploads.encoding = welcome.upload;
        const kept = this.#kept;
        this.#kept = undefined;
        if (kept && isOpen(kept, welcome)) {
            this.#task = new Task(kept.task, kept.body, this.#schema);
        }
        else if (kept || (this.#task && this.#task.number !== welcome.task)) {
            if (this.#task)
                this.#task.withdrawn = true;
            this.#drop();
        }
    }
    #keep(message) {
        if (this.options.keep === undefined)
            return;
        try {
            writeKept(this.options.keep, this.#welcome, message);
        }
        catch (error) {
            this.#keepError = error;
            this.#log("task not kept", { reason: this.#keepError.message });
        }
    }
    #drop() {
        this.#task = undefined;
        if (this.options.keep !== undefined)
            forgetKept(this.options.keep);
    }
    #changed() {
        for (const look of this.#waiting)
            look();
    }
    /** What `found` finds, as soon as it does. */
    #until(found) {
        return new Promise((resolve, reject) => {
            const look = () => {
                const what = found();
                if (what === undefined && !this.#connection.failure)
                    return;
                this.#waiting.delete(look);
                if (what !== undefined)
                    resolve(what);
                else
                    reject(this.#connection.failure);
            };
            this.#waiting.add(look);
            look();
        });
    }
}
function tokenIn(file) {
    try {
        const token = readFileSync(file, "ascii").trim();
        if (token)
            return token;
    }
    catch (error) {
        throw new TokenError(`The token cannot be read: ${error.message}.`);
    }
    throw new TokenError(`${file} holds no token.`);
}
