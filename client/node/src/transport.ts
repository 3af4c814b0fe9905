/** Connections as gRPC makes them, and what it means when they end. */

import { credentials, Client, Metadata, status, type ChannelOptions, type ChannelCredentials } from "@grpc/grpc-js";
import { readFileSync } from "node:fs";
import { isIP } from "node:net";
import { checkServerIdentity } from "node:tls";

import { AccessError, CertificateError, PolytempoError, TokenError, VersionError } from "./errors.js";

/** How to reach a service. */
export interface Endpoint {
  /** HOST:PORT, or several of one service. */
  servers: string | readonly string[];
  /** The file with the certificate of the authority that signed the server's. */
  ca?: string;
  /** Files: this client's certificate and its key, where the server asks for one. */
  certificate?: { cert: string; key: string };
  /** Plaintext, on loopback only. */
  insecure?: boolean;
}

export function addressesOf(endpoint: Endpoint): string[] {
  const { servers } = endpoint;
  const addresses = (typeof servers === "string" ? servers.split(",") : [...servers]).map((one) => one.trim());
  const wrong = addresses.find((one) => !/^.+:\d+$/.test(one));
  if (wrong !== undefined) throw new PolytempoError(`${wrong} is no address; expected HOST:PORT.`);
  const far = addresses.find((one) => !["127.0.0.1", "[::1]", "localhost"].includes(hostOf(one, true)));
  if (endpoint.insecure && far) throw new PolytempoError(`${far} is not on loopback; without TLS it has to be.`);
  if (!endpoint.insecure && !endpoint.ca) {
    throw new PolytempoError("A client needs the certificate of the authority that signed the server's: ca.");
  }
  return addresses;
}

function hostOf(address: string, bracketed = false): string {
  const host = address.slice(0, address.lastIndexOf(":"));
  return bracketed ? host : host.replace(/^\[(.*)\]$/, "$1");
}

/** A connection of one's own. Files are read anew. */
export function connect(endpoint: Endpoint, address: string, oneOfSeveral: boolean): Client {
  const options: ChannelOptions = {
    "grpc.use_local_subchannel_pool": 1,
    "grpc.enable_retries": 0,
    "grpc.enable_http_proxy": 0,
    "grpc.keepalive_time_ms": oneOfSeveral ? 11_000 : 20_000,
    "grpc.keepalive_timeout_ms": oneOfSeveral ? 5_000 : 20_000,
    "grpc.keepalive_permit_without_calls": 1,
  };
  // Node shows no IP address as the name that it wants, but it can check one.
  if (isIP(hostOf(address))) options["grpc.ssl_target_name_override"] = "localhost";
  return new Client(address, credentialsOf(endpoint, hostOf(address)), options);
}

export function credentialsOf({ ca, certificate, insecure }: Endpoint, host: string): ChannelCredentials {
  if (insecure) return credentials.createInsecure();
  const read = (file: string): Buffer => {
    try {
      return readFileSync(file);
    } catch (error) {
      throw new CertificateError(`A certificate cannot be read: ${(error as Error).message}.`);
    }
  };
  const [key, cert] = certificate ? [read(certificate.key), read(certificate.cert)] : [null, null];
  return credentials.createSsl(read(ca ?? ""), key, cert, {
    checkServerIdentity: (_, shown) => checkServerIdentity(host, shown),
  });
}

export function bearer(token: string): Metadata {
  const metadata = new Metadata();
  metadata.set("authorization", `Bearer ${token}`);
  return metadata;
}

/** How a session ended. */
export interface End {
  code: number;
  details: string;
}

const HOPELESS = new Map<number, new (text: string) => PolytempoError>([
  [status.UNAUTHENTICATED, TokenError],
  [status.PERMISSION_DENIED, AccessError],
  [status.UNIMPLEMENTED, VersionError],
]);
const WRONG_CERTIFICATE = /self.signed certificate|unable to (verify|get)|altnames|certificate has expired|wrong version/i;

/** What to give up with; undefined if trying again may help. */
export function failureOf({ code, details }: End, address: string): PolytempoError | undefined {
  const kind = WRONG_CERTIFICATE.test(details) ? CertificateError : HOPELESS.get(code);
  return kind && new kind(`${address} cannot be joined: ${details}`);
}

/** Does another server of the service have the sessions? */
export function isElsewhere({ code, details }: End): boolean {
  return code === status.UNAVAILABLE && details.startsWith("not here");
}
