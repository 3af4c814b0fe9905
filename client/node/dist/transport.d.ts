/** Connections as gRPC makes them, and what it means when they end. */
import { Client, Metadata, type ChannelCredentials } from "@grpc/grpc-js";
import { PolytempoError } from "./errors.js";
/** How to reach a service. */
export interface Endpoint {
    /** HOST:PORT, or several of one service. */
    servers: string | readonly string[];
    /** The file with the certificate of the authority that signed the server's. */
    ca?: string;
    /** Files: this client's certificate and its key, where the server asks for one. */
    certificate?: {
        cert: string;
        key: string;
    };
    /** Plaintext, on loopback only. */
    insecure?: boolean;
}
export declare function addressesOf(endpoint: Endpoint): string[];
/** A connection of one's own. Files are read anew. */
export declare function connect(endpoint: Endpoint, address: string, oneOfSeveral: boolean): Client;
export declare function credentialsOf({ ca, certificate, insecure }: Endpoint, host: string): ChannelCredentials;
export declare function bearer(token: string): Metadata;
/** How a session ended. */
export interface End {
    code: number;
    details: string;
}
/** What to give up with; undefined if trying again may help. */
export declare function failureOf({ code, details }: End, address: string): PolytempoError | undefined;
/** Does another server of the service have the sessions? */
export declare function isElsewhere({ code, details }: End): boolean;
