/** Bodies of messages: the safetensors format, and numbers in half precision. */
import { WireError } from "./errors.js";
export function writeBody(entries) {
    const table = {};
    const parts = [];
    let end = 0;
    for (const [name, { dtype, shape, data }] of Object.entries(entries)) {
        table[name] = { dtype, shape, data_offsets: [end, (end += data.byteLength)] };
        parts.push(new Uint8Array(data.buffer, data.byteOffset, data.byteLength));
    }
    const header = Buffer.from(JSON.stringify(table));
    const length = Buffer.alloc(8);
    length.writeBigUInt64LE(BigInt(header.length));
    return Buffer.concat([length, header, ...parts]);
}
/** The tensors of a body as float32; those of BOOL are 0 or 1. */
export function readBody(body) {
    if (body.length === 0)
        return new Map();
    const found = new Map();
    try {
        const begin = 8 + Number(body.readBigUInt64LE());
        const table = JSON.parse(body.toString("utf8", 8, begin));
        for (const [name, { dtype, data_offsets: offsets }] of Object.entries(table)) {
            if (name === "__metadata__")
                continue;
            const [first, last] = offsets;
            if (!(0 <= first && first <= last && begin + last <= body.length))
                throw new RangeError(`${name} lies outside`);
            found.set(name, numbers(dtype, body.subarray(begin + first, begin + last)));
        }
    }
    catch (error) {
        throw new WireError(`a body cannot be read: ${error.message}`);
    }
    return found;
}
function numbers(dtype, bytes) {
    const aligned = new Uint8Array(bytes).buffer; // a copy, which whoever trains may write into
    if (dtype === "F32")
        return new Float32Array(aligned);
    if (dtype === "F16")
        return Float32Array.from(new Uint16Array(aligned), fromHalf);
    if (dtype === "BOOL")
        return Float32Array.from(new Uint8Array(aligned));
    throw new TypeError(`${dtype} is not known`);
}
const one = new Float32Array(1);
const bitsOfOne = new Uint32Array(one.buffer);
/** The bits of the nearest half; of two equally near ones the even one. */
export function toHalf(value) {
    one[0] = value;
    const bits = bitsOfOne[0];
    const sign = (bits >>> 16) & 0x8000;
    const magnitude = bits & 0x7fffffff;
    if (magnitude > 0x7f800000)
        return sign | 0x7e00;
    if (magnitude >= 0x47800000)
        return sign | 0x7c00;
    if (magnitude < 0x38800000)
        return sign | nearestEven(Math.abs(one[0]) * 2 ** 24);
    return sign | ((magnitude + 0xfff + ((magnitude >>> 13) & 1) - 0x38000000) >>> 13);
}
export function fromHalf(bits) {
    const exponent = (bits >>> 10) & 31;
    const fraction = bits & 1023;
    const sign = bits & 0x8000 ? -1 : 1;
    if (exponent === 31)
        return fraction ? NaN : sign * Infinity;
    return sign * (exponent ? (fraction + 1024) * 2 ** (exponent - 25) : fraction * 2 ** -24);
}
function nearestEven(value) {
    const below = Math.floor(value);
    const rest = value - below;
    return below + (rest > 0.5 || (rest === 0.5 && below % 2 === 1) ? 1 : 0);
}
