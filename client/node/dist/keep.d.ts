/** A client's open task in a file, so that a client that was off goes on with it. */
import { type Message, type TaskMessage, type Welcome } from "./messages.js";
/** The message that brought a task, and what the server had said before. */
export interface Kept {
    welcome: Welcome;
    task: TaskMessage;
    body: Buffer;
}
/** Is the kept task the one that the server waits for? */
export declare function isOpen(kept: Kept, welcome: Welcome): boolean;
/** Whole or not at all; only its owner can read it. */
export declare function writeKept(path: string, welcome: Welcome, { head, body }: Message): void;
/** The task in the file; undefined if there is none that can be read. */
export declare function readKept(path: string): Kept | undefined;
/** There is nothing to go on with. */
export declare function forgetKept(path: string): void;
export declare function writeWhole(path: string, content: Uint8Array): void;
