/** Updates in fewer bytes: the difference to the base in half precision, all of it or its largest entries. */
import { type Entry } from "./bodies.js";
export interface Encoded {
    entries: Record<string, Entry>;
    /** The difference as it arrives. */
    arrives: Float32Array;
}
/** `fp16`, or `topk:SHARE` with the share of the entries that is sent. */
export declare function checkEncoding(encoding: string): void;
export declare function encode(encoding: string, difference: Float32Array): Encoded;
