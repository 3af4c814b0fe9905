export { Client } from "./client.js";
export { enrol } from "./enrol.js";
export * from "./errors.js";
export { addObjective } from "./objective.js";
export { Schema, Task } from "./tasks.js";
