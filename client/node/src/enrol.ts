/** A one-time code becomes a client's token. */

import { createHash, randomBytes } from "node:crypto";
import { existsSync, readFileSync, renameSync } from "node:fs";
import { setTimeout as sleep } from "node:timers/promises";
import { Metadata, status, type ServiceError } from "@grpc/grpc-js";

import { PolytempoError } from "./errors.js";
import { writeWhole } from "./keep.js";
import { ENROL } from "./messages.js";
import { addressesOf, connect, failureOf, type Endpoint } from "./transport.js";

const [ATTEMPTS, PAUSE] = [30, 1_000];

export interface Enrolee {
  client: number;
  /** When the token does; undefined: never. */
  expires?: Date;
}

/**
 * Make a token, let the server take it for the code, and keep it in the file `out`. Until the server has said yes it
 * lies in OUT.part, so that a second try after a broken connection is the same enrolment.
 */
export async function enrol(endpoint: Endpoint & { code: string; out: string }): Promise<Enrolee> {
  const { code, out } = endpoint;
  const part = `${out}.part`;
  const addresses = addressesOf(endpoint);
  if (existsSync(out)) throw new PolytempoError(`${out} exists. Choose another file, or remove it.`);
  if (!existsSync(part)) writeWhole(part, Buffer.from(`${randomBytes(32).toString("base64url")}\n`));
  const token = readFileSync(part, "ascii").trim();
  const tokenSha256 = createHash("sha256").update(token).digest("hex");
  for (let attempt = 1; ; attempt++) {
    const address = addresses[(attempt - 1) % addresses.length]!;
    try {
      const { client, expires } = await ask(endpoint, address, { code: code.trim(), tokenSha256 });
      renameSync(part, out);
      return { client, ...(expires ? { expires: new Date(expires * 1_000) } : {}) };
    } catch (error) {
      const { code: found, details } = error as ServiceError;
      const busy = found === status.RESOURCE_EXHAUSTED || (found === status.UNAVAILABLE && addresses.length > 1);
      if (!busy || attempt >= ATTEMPTS) {
        throw failureOf({ code: found, details }, address) ?? new PolytempoError(`${address}: ${details}`);
      }
      await sleep(PAUSE);
    }
  }
}

function ask(endpoint: Endpoint, address: string, request: { code: string; tokenSha256: string }): Promise<Enrolled> {
  const channel = connect(endpoint, address, addressesOf(endpoint).length > 1);
  return new Promise<Enrolled>((resolve, reject) => {
    channel.makeUnaryRequest(
      ENROL.path,
      ENROL.requestSerialize,
      ENROL.responseDeserialize,
      request,
      new Metadata(),
      { deadline: Date.now() + 30_000 },
      (error, reply) => (error || !reply ? reject(error ?? new Error("no reply")) : resolve(reply)),
    );
  }).finally(() => channel.close());
}

type Enrolled = { client: number; expires: number };
