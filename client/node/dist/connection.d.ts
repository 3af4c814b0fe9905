/** A session that outlives connections: it comes back after pauses, and sends again what was not answered. */
import { PolytempoError } from "./errors.js";
import { type Head, type Message } from "./messages.js";
import { type Endpoint } from "./transport.js";
/** What the connection asks, and tells, whoever has it. */
export interface Owner {
    hello: () => Head;
    take: (message: Message) => void;
    failed: (error: PolytempoError) => void;
    log: (event: string, about: Record<string, unknown>) => void;
}
export declare class Connection {
    #private;
    private readonly endpoint;
    private readonly token;
    private readonly owner;
    failure: PolytempoError | undefined;
    constructor(endpoint: Endpoint & {
        giveUpAfter?: number;
    }, token: string, owner: Owner);
    open(): void;
    /** Send a request; its answer, however often the connection breaks in between. */
    ask(head: Head, body?: Uint8Array): Promise<Message>;
    close(): void;
}
