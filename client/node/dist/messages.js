/** The messages of the protocol. wire.proto says what every field means. */
import { loadSync } from "@grpc/proto-loader";
import { fileURLToPath } from "node:url";
import { WireError } from "./errors.js";
const definition = loadSync(fileURLToPath(new URL("../wire.proto", import.meta.url)), {
    longs: Number,
    defaults: true,
    oneofs: false,
});
export const service = definition["polytempo.Federation"];
export const SESSION = service["Session"];
export const ENROL = service["Enrol"];
export const PROTOCOL = 1;
export const FRAME_BYTES = 262_144;
/** A message, cut into frames. */
export function* frames(head, body, most) {
    yield { head: { ...head, size: body.length }, data: body.subarray(0, most) };
    for (let begin = most; begin < body.length; begin += most) {
        yield { data: body.subarray(begin, begin + most) };
    }
}
/** Puts frames together. */
export class Assembler {
    #head;
    #parts = [];
    #missing = 0;
    /** The message that this frame completes. */
    add(frame) {
        const data = frame.data ?? new Uint8Array();
        if (frame.head) {
            if (this.#head)
                throw new WireError("a message began before the last one was whole");
            this.#head = frame.head;
            this.#missing = frame.head.size ?? 0;
        }
        else if (!this.#head || data.length === 0) {
            throw new WireError("a frame has neither a head nor data of a message");
        }
        if (data.length > this.#missing)
            throw new WireError("a message has more data than its head says");
        this.#parts.push(data);
        this.#missing -= data.length;
        if (this.#missing > 0)
            return undefined;
        const whole = { head: this.#head, body: Buffer.concat(this.#parts) };
        this.#head = undefined;
        this.#parts = [];
        return whole;
    }
}
