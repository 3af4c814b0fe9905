/** Bodies of messages: the safetensors format, and numbers in half precision. */
/** Named vectors: the numbers of each tensor in a row, the last dimension fastest. */
export type Tensors = Record<string, Float32Array>;
/** What a client writes into a body. F16 are the bits of halves. */
export type Entry = {
    dtype: "F32";
    shape: readonly number[];
    data: Float32Array;
} | {
    dtype: "F16" | "U16";
    shape: readonly number[];
    data: Uint16Array;
} | {
    dtype: "I32";
    shape: readonly number[];
    data: Int32Array;
} | {
    dtype: "U32";
    shape: readonly number[];
    data: Uint32Array;
};
export declare function writeBody(entries: Record<string, Entry>): Buffer;
/** The tensors of a body as float32; those of BOOL are 0 or 1. */
export declare function readBody(body: Buffer): Map<string, Float32Array>;
/** The bits of the nearest half; of two equally near ones the even one. */
export declare function toHalf(value: number): number;
export declare function fromHalf(bits: number): number;
