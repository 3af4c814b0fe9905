export type { Tensors } from "./bodies.js";
export { Client, type Options } from "./client.js";
export { enrol, type Enrolee } from "./enrol.js";
export * from "./errors.js";
export type { Membership, Objective, Work } from "./messages.js";
export { addObjective } from "./objective.js";
export { Schema, Task, type Look, type Model } from "./tasks.js";
export type { Endpoint } from "./transport.js";
export type { Answer, Result } from "./updates.js";
