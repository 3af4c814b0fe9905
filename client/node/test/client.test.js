import assert from "node:assert/strict";
import { existsSync, readFileSync, statSync } from "node:fs";
import { join } from "node:path";
import { test } from "node:test";

import { fromHalf, readBody } from "../dist/bodies.js";
import {
  addObjective, AccessError, CertificateError, Client, enrol, KeepError, NamesError, NotFiniteError, PolytempoError,
  RefusedError, Schema, ShapeError, Task, TokenError, UnreachableError, VersionError,
} from "../dist/index.js";
import { folder, model, serving, task, tokenFile, WELCOME } from "./server.js";

const result = (value, more = {}) => ({ tensors: { w: new Float32Array(4).fill(value) }, samples: 10, ...more });

/** A client of this script, which is closed with the test. */
async function joined(test, script, options = {}) {
  const server = await serving(test, script);
  const client = new Client({ servers: server.address, token: tokenFile(), insecure: true, ...options });
  test.after(() => client.close());
  return { client, server };
}

/** Says welcome, and gives tasks 1, 2, ... of models of ones. */
function usual(pushed = () => undefined, welcome = {}) {
  let number = 0;
  return ({ head, body, answer, say, end, session }) => {
    if (head.hello) answer({ welcome: { ...WELCOME, ...welcome } });
    if (head.ready) answer({ task: task(++number) }, model(1));
    if (head.leave) answer({ accepted: {} });
    if (head.pull) answer({ model: { number: 0, version: 9 } }, model(2));
    if (head.branch) answer({ membership: { branch: 4, version: -1, members: 2 } });
    if (head.push) {
      const said = pushed({ push: head.push, body, answer, say, end, session });
      if (!said) answer({ task: task(++number) }, model(1));
    }
  };
}

test("it shows its token, gets tasks, and hands in what was trained", async (t) => {
  const pushes = [];
  const { client, server } = await joined(t, usual(({ push, body }) => void pushes.push([push, readBody(body)])));
  await client.run((open) => result(open.tensors.w[0] + 1, { steps: 2, accuracy: 0.5 }), 2);
  assert.deepEqual(server.tokens, ["Bearer a-token"]);
  const [push, tensors] = pushes[0];
  assert.deepEqual([push.task, push.base, push.samples, push.steps, push.ready, push.accuracy], [1, 1, 10, 2, true, 0.5]);
  assert.deepEqual(tensors.get("w"), new Float32Array(4).fill(2));
  assert.deepEqual([pushes.length, pushes[1][0].ready], [2, false]);
});

test("it says what it knows, and asks without training", async (t) => {
  const { client } = await joined(t, usual());
  const { client: number, seed, schema } = await client.welcome();
  assert.deepEqual([number, seed, schema.shapes.get("w")], [3, 5, [4]]);
  assert.deepEqual((await client.pull()).tensors.w, new Float32Array(4).fill(2));
  assert.deepEqual(await client.branch(), { branch: 4, version: -1, members: 2 });
});

test("a refresh is taken, with or without what was trained, and a report stops", async (t) => {
  const script = ({ head, answer, say }) => {
    if (head.hello) answer({ welcome: WELCOME });
    if (head.ready) {
      answer({ task: task(1) }, model(1));
      say({ model: { number: 2, task: 1, rebase: true } }, model(10));
      say({ model: { number: 3, task: 99 } }, model(50));
    }
    if (head.branch) {
      say({ model: { number: 4, task: 1 } }, model(20));
      say({ report: { number: 5, task: 1 } });
      answer({ membership: {} });
    }
    if (head.pull) answer({ model: { number: 0 } }, model(0));
  };
  const { client } = await joined(t, script);
  const open = await client.task();
  await client.pull(); // what was sent before has arrived
  const moved = Float32Array.of(2, 1, 1, 1);
  const first = await open.look({ w: moved });
  assert.deepEqual([first.tensors.w, first.refreshed, first.stop], [Float32Array.of(11, 10, 10, 10), true, false]);
  await client.branch();
  const second = await open.look(first.tensors);
  assert.deepEqual([second.tensors.w, second.stop], [new Float32Array(4).fill(20), true]);
  assert.deepEqual([open.base, open.heeded], [4, 5]);
});

test("a result whose answer was lost is sent again, and says what is in hand", async (t) => {
  const [bodies, hellos] = [[], []];
  let lost = false;
  const script = usual(({ push, body, end }) => {
    bodies.push([push.task, body.toString("hex")]);
    if (lost) return false;
    lost = true;
    end();
    return true;
  });
  const { client } = await joined(t, (asked) => {
    if (asked.head.hello) hellos.push(asked.head.hello.task);
    if (asked.head.hello && lost) return asked.answer({ welcome: { ...WELCOME, task: 1 } });
    return script(asked);
  });
  await client.run(() => result(3), 1);
  assert.deepEqual(hellos, [0, 1]);
  assert.deepEqual(bodies[0], bodies[1]);
});

test("an open task that the welcome does not name is withdrawn", async (t) => {
  let ends = true;
  const script = usual(({ push, answer }) => (push.task === 1 ? (answer({ refusal: { void: true } }), true) : false));
  const { client } = await joined(t, (asked) => {
    script(asked);
    if (asked.head.branch && ends) asked.end((ends = false));
  });
  const open = await client.task();
  await client.branch();
  await client.branch(); // in the next session
  const next = await client.task();
  assert.deepEqual([open.withdrawn, next.number], [true, 2]);
  await assert.rejects(client.push(open, result(2)), RefusedError);
});

test("a refused update is begun anew, and five in a row are enough", async (t) => {
  let [leaves, tries] = [0, 0];
  const script = usual(({ answer }) => (answer({ refusal: { reason: "no" } }), true));
  const { client } = await joined(t, (asked) => {
    leaves += asked.head.leave ? 1 : 0;
    script(asked);
  });
  await assert.rejects(client.run(() => result(++tries)), RefusedError);
  assert.deepEqual([tries, leaves], [5, 4]);
});

test("nothing that does not fit its task is sent", async (t) => {
  const { client } = await joined(t, usual(() => assert.fail("it was sent")));
  const open = await client.task();
  await assert.rejects(client.push(open, { tensors: { v: new Float32Array(4) }, samples: 1 }), NamesError);
  await assert.rejects(client.push(open, { tensors: {}, samples: 1 }), NamesError);
  await assert.rejects(client.push(open, { tensors: { w: new Float32Array(3) }, samples: 1 }), ShapeError);
  await assert.rejects(client.push(open, result(NaN)), NotFiniteError);
  await assert.rejects(client.push(open, result(Infinity)), NotFiniteError);
});

/** The first value of an encoded update, and how many entries are skipped before it. */
function firstOf(body) {
  const begin = 8 + Number(body.readBigUInt64LE());
  const { values, exponent, gaps } = JSON.parse(body.toString("utf8", 8, begin));
  const at = (tensor) => begin + tensor.data_offsets[0];
  const half = fromHalf(body.readUInt16LE(at(values)));
  return [half * 2 ** body.readInt32LE(at(exponent)), body.readUInt16LE(at(gaps))];
}

test("encoded updates carry over what they left out", async (t) => {
  const sent = [];
  const script = usual(({ push, body }) => void sent.push([push.encoding, firstOf(body)]), { upload: "topk:0.25" });
  const { client } = await joined(t, script, { upload: "topk:0.25" });
  await client.push(await client.task(), { tensors: { w: Float32Array.of(2, 3, 1, 1) }, samples: 1 });
  await client.push(await client.task(), { tensors: { w: Float32Array.of(1, 1.5, 1, 1) }, samples: 1 });
  assert.deepEqual(sent, [["topk:0.25", [2, 1]], ["topk:0.25", [1, 0]]]);
});

test("layers and masks say what trains", () => {
  const schema = new Schema({ names: ["a.w", "ab.w", "b"], shapes: [], parameters: 3 });
  const open = new Task({ ...task(1), trainable: ["a"] }, Buffer.alloc(0), {
    ...schema, names: schema.names, read: () => ({}),
  });
  assert.deepEqual(schema.names.map((name) => open.trains(name)), [true, false, false]);
});

test("the objective's gradient is that of its value", () => {
  const [w, a] = [Float32Array.of(1, -2, 0.5), Float32Array.of(0.5, 1, 2)];
  const objective = { proximal: 0.3, cosine: 0.7, l2: 0.2 };
  const norm = (v) => Math.hypot(...v);
  const value = (v) => {
    const distance = norm(v.map((one, i) => one - a[i]));
    const product = v.reduce((sum, one, i) => sum + one * a[i], 0);
    const cosine = 1 - product / (norm(v) * norm(a));
    return (objective.proximal / 2) * distance ** 2 + objective.cosine * cosine + objective.l2 * distance + v[0];
  };
  const vectors = (prefix) => ({ w: prefix === "anchor/" ? a : Float32Array.of(1, 0, 0) });
  const gradients = { w: new Float32Array(3) };
  addObjective({ objective, vectors, schema: { names: ["w"], buffers: new Set() } }, { w }, gradients);
  gradients.w.forEach((found, i) => {
    const near = (step) => value([...w].map((one, k) => (k === i ? one + step : one)));
    assert.ok(Math.abs(found - (near(1e-5) - near(-1e-5)) / 2e-5) < 1e-4);
  });
});

test("a kept task is gone on with after a start, and forgotten when it is done", async (t) => {
  const keep = join(folder(), "task");
  const hellos = [];
  const server = await serving(t, (asked) => {
    const { head, answer } = asked;
    if (!head.hello) return usual()(asked);
    hellos.push([head.hello.task, head.hello.heeded]);
    answer({ welcome: { ...WELCOME, task: head.hello.task } });
  });
  const options = { servers: server.address, token: tokenFile(), insecure: true, keep };
  const first = new Client(options);
  assert.equal((await first.task()).number, 1);
  first.close();
  assert.equal(statSync(keep).mode & 0o777, 0o600);
  const second = new Client(options);
  t.after(() => second.close());
  const open = await second.task();
  assert.deepEqual([open.number, open.tensors.w, hellos], [1, new Float32Array(4).fill(1), [[0, 0], [1, 1]]]);
  await second.leave();
  assert.ok(!existsSync(keep));
});

test("a task that cannot be kept is an error once, and is open all the same", async (t) => {
  const { client } = await joined(t, usual(), { keep: join(folder(), "no such folder", "task") });
  await assert.rejects(client.task(), KeepError);
  assert.equal((await client.task()).number, 1);
});

test("a client without access gives up", async (t) => {
  for (const [code, kind] of [[16, TokenError], [7, AccessError], [12, VersionError]]) {
    const { client } = await joined(t, ({ end }) => end({ code, details: "no" }));
    await assert.rejects(client.task(), (error) => error.constructor === kind);
  }
});

test("without a server it gives up when it was told to", async (t) => {
  const { client, server } = await joined(t, () => undefined, { giveUpAfter: 0 });
  server.stop();
  await assert.rejects(client.task(), UnreachableError);
});

test("it goes to the address where the service is", async (t) => {
  const standby = await serving(t, ({ end }) => end({ code: 14, details: "not here: stands by" }));
  const leader = await serving(t, usual());
  const servers = [standby.address, leader.address];
  const client = new Client({ servers, token: tokenFile(), insecure: true });
  t.after(() => client.close());
  assert.equal((await client.task()).number, 1);
});

test("what it is given is checked before it connects", () => {
  const token = tokenFile();
  assert.throws(() => new Client({ servers: "nowhere", token, insecure: true }), /expected HOST:PORT/);
  assert.throws(() => new Client({ servers: "example.org:1", token, insecure: true }), /not on loopback/);
  assert.throws(() => new Client({ servers: "127.0.0.1:1", token }), /needs the certificate/);
  assert.throws(() => new Client({ servers: "127.0.0.1:1", token, ca: "no such file" }), CertificateError);
  assert.throws(() => new Client({ servers: "127.0.0.1:1", token: "no such file", insecure: true }), TokenError);
  assert.throws(() => new Client({ servers: "127.0.0.1:1", token: tokenFile(""), insecure: true }), TokenError);
  assert.throws(() => new Client({ servers: "127.0.0.1:1", token, insecure: true, download: "fp16" }), PolytempoError);
});

test("a code becomes a token, which the server never sees", async (t) => {
  const said = [];
  const server = await serving(t, ({ enrolment }) => {
    said.push(enrolment);
    return { client: 7, expires: 100 };
  });
  const out = join(folder(), "new.token");
  const { client, expires } = await enrol({ servers: server.address, insecure: true, code: " abc ", out });
  const token = readFileSync(out, "ascii");
  assert.deepEqual([client, expires.getTime(), said[0].code, said[0].tokenSha256.length], [7, 100_000, "abc", 64]);
  assert.ok(token.trim().length >= 22 && !JSON.stringify(said).includes(token.trim()));
  await assert.rejects(enrol({ servers: server.address, insecure: true, code: "abc", out }), /exists/);
});
