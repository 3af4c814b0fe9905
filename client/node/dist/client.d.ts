/** A client of a federation: tasks in, updates out. */
import { type Membership } from "./messages.js";
import { Schema, Task, type Model } from "./tasks.js";
import type { Endpoint } from "./transport.js";
import { type Result } from "./updates.js";
export interface Options extends Endpoint {
    /** The file with the client's token. */
    token: string;
    /** Keep the open task in this file, and go on with it when started again. */
    keep?: string;
    /** How updates are to travel, if the server allows it: `fp16` or `topk:SHARE`. */
    upload?: string;
    /** How models are to travel: `fp16`, beside `upload`. */
    download?: "" | "fp16";
    /** End after so many seconds without a server. */
    giveUpAfter?: number;
    /** What happens to the session, for a log. */
    log?: (event: string, about: Record<string, unknown>) => void;
}
export declare class Client {
    #private;
    private readonly options;
    /** It begins at once, and tries for as long as it is not closed. */
    constructor(options: Options);
    /** Which client this is, and what the server's model looks like, as soon as it has said so. */
    welcome(): Promise<{
        client: number;
        schema: Schema;
        seed: number;
    }>;
    /** The model that this client would be served now, without training. */
    pull(): Promise<Model>;
    /** Which clients share a model with this one. */
    branch(): Promise<Membership>;
    /**
     * The next task, as soon as it is this client's turn. Where it cannot be kept in the file, that is an error once:
     * called again, it returns the task.
     */
    task(): Promise<Task>;
    /** Hand in the result of a task; afterwards it is safe with the server. With `ready` the next task is asked for. */
    push(task: Task, result: Result, ready?: boolean): Promise<void>;
    /**
     * Carry out tasks until so many updates were pushed (default: for ever). An update that is refused, or holds NaN, is
     * begun anew; after five in a row it gives up.
     */
    run(train: (task: Task) => Result | Promise<Result>, updates?: number): Promise<void>;
    /** Say goodbye: the server counts this client out at once. */
    leave(): Promise<void>;
    /** End the session. The server waits a while for this client to come back. */
    close(): void;
}
