import assert from "node:assert/strict";
import { test } from "node:test";

import { fromHalf, readBody, toHalf, writeBody } from "../dist/bodies.js";
import { checkEncoding, encode } from "../dist/encodings.js";
import { WireError } from "../dist/errors.js";
import { Assembler, frames } from "../dist/messages.js";

function body(header, data) {
  const text = Buffer.from(JSON.stringify(header));
  const length = Buffer.alloc(8);
  length.writeBigUInt64LE(BigInt(text.length));
  return Buffer.concat([length, text, data]);
}

test("a body that was written can be read", () => {
  const data = Float32Array.of(1, -2.5, 3);
  const read = readBody(writeBody({ "a.b": { dtype: "F32", shape: [3], data } }));
  assert.deepEqual([...read], [["a.b", data]]);
});

test("tensors are read in any order, in halves and as masks, with metadata among them", () => {
  const header = {
    mask: { dtype: "BOOL", shape: [2], data_offsets: [2, 4] },
    __metadata__: { format: "np" },
    half: { dtype: "F16", shape: [1], data_offsets: [0, 2] },
  };
  const read = readBody(body(header, Buffer.from([0x00, 0xc1, 0, 1])));
  assert.deepEqual(read.get("half"), Float32Array.of(-2.5));
  assert.deepEqual(read.get("mask"), Float32Array.of(0, 1));
});

test("a body that is none is an error of the wire", () => {
  for (const [header, data] of [
    [{ w: { dtype: "F32", shape: [2], data_offsets: [0, 8] } }, Buffer.alloc(4)],
    [{ w: { dtype: "F32", shape: [2], data_offsets: [8, 0] } }, Buffer.alloc(8)],
    [{ w: { dtype: "I64", shape: [1], data_offsets: [0, 8] } }, Buffer.alloc(8)],
    [{ w: 3 }, Buffer.alloc(8)],
  ]) {
    assert.throws(() => readBody(body(header, data)), WireError);
  }
  assert.throws(() => readBody(Buffer.from("abc")), WireError);
});

test("every half is itself after float32", () => {
  for (let bits = 0; bits < 65_536; bits++) {
    const value = fromHalf(bits);
    if (!Number.isNaN(value)) assert.equal(toHalf(value), bits);
  }
});

test("numbers between halves go to the nearest, and to the even one", () => {
  const rounded = [1 + 2 ** -11, 1 + 3 * 2 ** -11, 2 ** -25, 3 * 2 ** -25, 65_519, 65_520, -1e10].map((n) => fromHalf(toHalf(n)));
  assert.deepEqual(rounded, [1, 1 + 2 ** -9, 0, 2 ** -23, 65_504, Infinity, -Infinity]);
});

test("fp16 arrives within a thousandth, however small it is", () => {
  const difference = Float32Array.of(3e-12, -1e-12, 2.5e-13);
  const { arrives } = encode("fp16", difference);
  difference.forEach((value, i) => assert.ok(Math.abs(arrives[i] - value) < 1e-3 * Math.abs(value)));
});

test("topk sends the largest entries with the gaps before them", () => {
  const { entries, arrives } = encode("topk:0.4", Float32Array.of(0, 4, 1, -8, 0.5));
  assert.deepEqual(entries.gaps.data, Uint16Array.of(1, 1));
  assert.deepEqual(arrives, Float32Array.of(0, 4, 0, -8, 0));
});

test("gaps above 65535 are wide", () => {
  const difference = new Float32Array(70_000);
  difference[69_999] = 1;
  assert.deepEqual(encode("topk:0.00001", difference).entries.gaps.data, Uint32Array.of(69_999));
});

test("an update of zeros can be encoded", () => {
  assert.deepEqual(encode("fp16", new Float32Array(2)).arrives, new Float32Array(2));
});

test("an encoding that is none is an error", () => {
  for (const wrong of ["fp8", "topk:0", "topk:2", "topk:x"]) assert.throws(() => checkEncoding(wrong), /Expected fp16/);
});

test("frames are put together as they were cut", () => {
  const assembler = new Assembler();
  const content = Buffer.from("a body of some length");
  const found = [...frames({ push: {} }, content, 4)].map((frame) => assembler.add(frame));
  assert.deepEqual(found.at(-1).body, content);
  assert.ok(found.slice(0, -1).every((message) => message === undefined));
});

test("frames that make no message are an error of the wire", () => {
  assert.throws(() => new Assembler().add({ data: Buffer.from("x") }), WireError);
  assert.throws(() => new Assembler().add({ head: { size: 1 }, data: Buffer.from("xy") }), WireError);
});
