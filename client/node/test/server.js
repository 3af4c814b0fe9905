/** A server inside the test, on loopback: it says what the script says. */

import { Server, ServerCredentials } from "@grpc/grpc-js";
import { mkdtempSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";

import { writeBody } from "../dist/bodies.js";
import { Assembler, frames, service } from "../dist/messages.js";

export const WELCOME = { client: 3, names: ["w"], shapes: [{ sizes: [4] }], parameters: 4, seed: 5, task: 0, upload: "" };

/** The body of a model whose numbers are all `value`. */
export function model(value) {
  return writeBody({ w: { dtype: "F32", shape: [4], data: new Float32Array(4).fill(value) } });
}

export function task(number, more = {}) {
  return { number, version: 1, count: 0, work: { steps: 3, batchSize: 8, optimizer: "sgd", lr: 0.1 }, ...more };
}

/** `script` is given every message of the client, and how to reply: say(head, body), end(status). */
export async function serving(test, script, address = "127.0.0.1:0") {
  const server = new Server();
  const tokens = [];
  let sessions = 0;
  server.addService(service, {
    session(call) {
      const session = ++sessions;
      tokens.push(call.metadata.get("authorization")[0]);
      const assembler = new Assembler();
      const say = (head, body = Buffer.alloc(0)) => {
        for (const frame of frames(head, body, 7)) call.write(frame);
      };
      call.on("data", (frame) => {
        const message = assembler.add(frame);
        if (!message) return;
        const answer = (head, body) => say({ ...head, answers: message.head.request }, body);
        script({ ...message, session, say, answer, end: (status) => (status ? call.emit("error", status) : call.end()) });
      });
      call.on("error", () => undefined);
    },
    enrol: (call, reply) => reply(null, script({ enrolment: call.request })),
  });
  const port = await new Promise((resolve, reject) => {
    server.bindAsync(address, ServerCredentials.createInsecure(), (error, port) => (error ? reject(error) : resolve(port)));
  });
  test.after(() => server.forceShutdown());
  return { address: `127.0.0.1:${port}`, tokens, stop: () => server.forceShutdown() };
}

export function folder() {
  return mkdtempSync(join(tmpdir(), "polytempo-"));
}

export function tokenFile(text = "a-token\n") {
  const file = join(folder(), "client.token");
  writeFileSync(file, text);
  return file;
}

