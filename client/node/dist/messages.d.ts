/** The messages of the protocol. wire.proto says what every field means. */
import { type MethodDefinition, type ServiceDefinition } from "@grpc/proto-loader";
export interface Hello {
    task: number;
    heeded: number;
    uploads: string[];
    downloads: string[];
    protocol: number;
}
export interface Welcome {
    client: number;
    names: string[];
    shapes: {
        sizes: number[];
    }[];
    parameters: number;
    seed: number;
    task: number;
    upload: string;
    download: string;
    frameBytes: number;
    protocol: number;
}
export interface Refusal {
    reason: string;
    again: boolean;
    replaced: boolean;
    void: boolean;
    failed: boolean;
    ends: boolean;
}
/** How to train. Either steps or epochs is there; steps win. */
export interface Work {
    steps?: number;
    epochs?: number;
    batchSize: number;
    optimizer: string;
    lr: number;
    momentum: number;
    weightDecay: number;
    stream: number;
}
/** What is added to the loss. */
export interface Objective {
    proximal: number;
    cosine: number;
    l2: number;
}
export interface TaskMessage {
    number: number;
    version: number;
    count: number;
    work: Work;
    objective: Objective | null;
    candidateVersions: number[];
    candidateUse: string;
    questions: string[];
    trainable: string[];
    answered: number;
}
export interface ModelMessage {
    number: number;
    version: number;
    task: number;
    rebase: boolean;
}
/** Clients with the same `branch` share a model: so many `members`. */
export interface Membership {
    branch: number;
    version: number;
    members: number;
}
export interface Push {
    task: number;
    base: number;
    samples: number;
    steps: number;
    chosen?: number;
    answers: string;
    ready: boolean;
    encoding: string;
    accuracy?: number;
    loss?: number;
}
interface Kinds {
    hello: Hello;
    ready: object;
    push: Push;
    pull: object;
    leave: object;
    branch: object;
    welcome: Welcome;
    accepted: object;
    refusal: Refusal;
    task: TaskMessage;
    model: ModelMessage;
    report: {
        number: number;
        task: number;
    };
    membership: Membership;
}
/** Of its kinds at most one is there. */
export interface Head extends Partial<Kinds> {
    size?: number;
    request?: number;
    answers?: number;
}
export interface Frame {
    head?: Head | null;
    data?: Uint8Array;
}
export interface Message {
    head: Head;
    body: Buffer;
}
export declare const service: ServiceDefinition;
export declare const SESSION: MethodDefinition<Frame, Frame>;
export declare const ENROL: MethodDefinition<{
    code: string;
    tokenSha256: string;
}, {
    client: number;
    expires: number;
}>;
export declare const PROTOCOL = 1;
export declare const FRAME_BYTES = 262144;
/** A message, cut into frames. */
export declare function frames(head: Head, body: Uint8Array, most: number): Generator<Frame>;
/** Puts frames together. */
export declare class Assembler {
    #private;
    /** The message that this frame completes. */
    add(frame: Frame): Message | undefined;
}
export {};
